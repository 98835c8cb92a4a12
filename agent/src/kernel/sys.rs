//! bpf(2), for what no library passes on.

use std::{
    io,
    mem::size_of_val,
    os::fd::{FromRawFd as _, OwnedFd},
};

use aya_obj::generated::{bpf_attr, bpf_cmd};

/// Zeroes: what the kernel takes for "not given", also in fields that it does not know.
pub(super) fn empty() -> bpf_attr {
    // SAFETY: a union of structures of integers; zeroes are a value of each.
    unsafe { std::mem::zeroed() }
}

/// bpf(2), for commands that return no descriptor; the kernel may write to `attr`.
pub(super) fn command(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<()> {
    // SAFETY: the kernel uses `attr`, and what it points to, during the call only; the callers keep both alive.
    let done = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_uint,
            &raw mut *attr,
            size_of_val(attr),
        )
    };
    match done {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// bpf(2), for commands that return a descriptor.
pub(super) fn bpf(command: bpf_cmd, attr: &bpf_attr) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads `attr`, and what it points to, during the call only; the callers keep
    // both alive.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_uint,
            &raw const *attr,
            size_of_val(attr),
        )
    };
    let Ok(fd @ 0..) = i32::try_from(fd) else {
        return Err(io::Error::last_os_error());
    };
    // SAFETY: a descriptor that the kernel has just given to this call.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
