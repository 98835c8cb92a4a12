//! One process's memory, from outside: process_mrelease(2), since Linux 5.15.

use std::os::fd::{AsFd as _, AsRawFd, FromRawFd, OwnedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Released {
    /// Its memory is free, but for what others share and for what the kernel keeps until its end.
    Done,
    /// It has ended meanwhile.
    Gone,
    /// Some of it was in use by the kernel; worth another try.
    Again,
    /// It is not dying, or not alone in having this memory: nothing was done.
    Refused,
}

/// True where the kernel has the call and lets us make it.
pub(in crate::reactor) fn is_supported() -> bool {
    // SAFETY: both arguments are numbers; -1 is no file descriptor, which is the only error to expect.
    let answer = unsafe { libc::syscall(libc::SYS_process_mrelease, -1, 0) };
    answer == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EBADF)
}

/// Frees the memory of a process that was sent SIGKILL. One that was not is left alone by the kernel,
/// so an id that was taken over by another process does no harm. May block.
pub(super) fn release(pid: u32) -> Released {
    // SAFETY: both arguments are numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let Ok(fd @ 0..) = i32::try_from(fd) else {
        return Released::Gone;
    };
    // SAFETY: the descriptor is new and ours alone.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: both arguments are numbers; the descriptor is open until the end of this function.
    if unsafe { libc::syscall(libc::SYS_process_mrelease, fd.as_raw_fd(), 0) } == 0 {
        return Released::Done;
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::ESRCH) => Released::Gone,
        Some(libc::EAGAIN | libc::EINTR) => Released::Again,
        _ => Released::Refused,
    }
}

/// False once the process has ended or is a zombie: its memory is free, unless others share it.
pub(super) fn is_running(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let Some(Ok(pidfd)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else {
        return false;
    };
    // Readable once its last thread has ended: see pidfd_open(2).
    let mut wait = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
    matches!(poll(&mut wait, PollTimeout::ZERO), Ok(0))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_living_are_left_alone_and_the_dead_are_gone() {
        if !is_supported() {
            println!("skipped: no process_mrelease here");
            return;
        }
        assert_eq!(release(std::process::id()), Released::Refused);
        let mut child = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        assert_eq!(release(child.id()), Released::Refused);
        child.kill().unwrap();
        // It may be quicker than we are.
        assert!(matches!(
            release(child.id()),
            Released::Done | Released::Gone
        ));
        child.wait().unwrap();
        assert_eq!(release(child.id()), Released::Gone);
    }

    #[test]
    fn a_zombie_runs_no_more() {
        assert!(is_running(std::process::id()));
        assert!(!is_running(u32::MAX));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(is_running(child.id()));
        child.kill().unwrap();
        while is_running(child.id()) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!is_running(child.id()));
    }
}
