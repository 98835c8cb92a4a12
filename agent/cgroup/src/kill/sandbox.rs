//! The children of a pod's cgroup that stay alive: its sandbox container, and CRI-O's process beside each
//! container to see it end.
//!
//! The container runtime has the kinds ([`ChildKinds`]). Where it has none for a child, no file does, and a sandbox
//! is recognised by its content: one process, `pause`, which holds the pod's namespaces and no
//! notable memory. A workload may take that name, so its usage counts as well. It also counts where the runtime
//! has the kind: the sandbox of a virtual machine (Kata with `sandbox_cgroup_only`) holds the workload.

use std::{
    collections::BTreeSet,
    ffi::CStr,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd},
};

use rustix::{
    fs::{FileType, Mode, OFlags, RawDir, openat},
    io::{Errno, read, retry_on_intr},
};

use super::{
    spared::{Name, Spared, is_monitor},
    walk::{self, ENTRIES},
};
use crate::io::{decimal, parse_u64};

/// What the kernel and the runtimes keep for a process that does nothing is below 1 MiB; a workload
/// that hides behind the name keeps no more than this.
const MOST_MEMORY: u64 = 8 << 20;

/// The name of every runtime's sandbox process (`comm`, see proc_pid_comm(5)).
const PAUSE: &[u8] = b"pause";

/// What the runtime has told of the children of a pod's cgroup, by their names. What it has not told of is
/// in neither set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChildKinds {
    /// Sandboxes: at most one of them holds processes at a time. One that uses more than a sandbox's process
    /// needs holds a workload, and is not spared.
    pub sandboxes: BTreeSet<String>,
    /// Workload containers: none is spared, whatever it calls itself.
    pub workloads: BTreeSet<String>,
}

impl ChildKinds {
    /// Whether it is a sandbox, where known.
    fn is_sandbox(&self, name: &CStr) -> Option<bool> {
        let among = |names: &BTreeSet<String>| {
            let name = name.to_bytes();
            names.iter().any(|known| known.as_bytes() == name)
        };
        match among(&self.sandboxes) {
            true => Some(true),
            false => among(&self.workloads).then_some(false),
        }
    }
}

/// The children of a pod's memory cgroup that are to be spared; `None` when there are none. The sandbox is
/// the one that was told, has a process and is small, else one that was not told and looks like it. Costs four
/// system calls for a child, and three more for one that was told to be a sandbox, or was not told and has a
/// single process.
pub(super) fn find(pod: BorrowedFd<'_>, usage: &str, kinds: &ChildKinds) -> Option<Spared> {
    let (mut found, mut likely) = (None, None);
    let (mut monitors, mut hidden) = (false, false);
    let listing = walk::open(pod, ".", OFlags::RDONLY | OFlags::DIRECTORY).ok()?;
    let mut buffer = [MaybeUninit::uninit(); ENTRIES];
    let mut entries = RawDir::new(listing, &mut buffer);
    while let Some(entry) = entries.next() {
        // What was found so far counts for more than what could not be read.
        let Ok(entry) = entry else { break };
        let name = entry.file_name();
        if entry.file_type() != FileType::Directory || matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(child) = retry_on_intr(|| openat(pod, name, flags, Mode::empty())) else {
            continue;
        };
        if is_monitor(name) {
            // The name alone makes none.
            let small = is_small(child.as_fd(), usage);
            monitors |= small;
            hidden |= !small;
            continue;
        }
        match kinds.is_sandbox(name) {
            Some(true) if has_process(child.as_fd()) && is_small(child.as_fd(), usage) => {
                found = Name::new(name);
            }
            None if likely.is_none() && looks_like_one(child.as_fd(), usage) => {
                likely = Name::new(name);
            }
            _ => {}
        }
    }
    let sandbox = found.or(likely);
    let monitors = monitors && !hidden;
    (monitors || sandbox.is_some()).then_some(Spared { sandbox, monitors })
}

/// Whether a process runs in it. A sandbox that died by itself is not spared any more: another may have taken
/// its place.
fn has_process(child: BorrowedFd<'_>) -> bool {
    let mut any = false;
    let listed = walk::processes(child, None, &mut |_| any = true);
    any && listed.is_ok()
}

fn looks_like_one(child: BorrowedFd<'_>, usage: &str) -> bool {
    let (mut only, mut count) = (0, 0);
    let listed = walk::processes(child, None, &mut |pid| {
        only = pid;
        count += 1;
    });
    listed == Ok(true) && count == 1 && is_called_pause(only) && is_small(child, usage)
}

/// Whether it uses no more than a sandbox's process does.
fn is_small(child: BorrowedFd<'_>, usage: &str) -> bool {
    used(child, usage).is_ok_and(|bytes| bytes <= MOST_MEMORY)
}

fn is_called_pause(pid: u32) -> bool {
    let mut path = Path::default();
    path.push(b"/proc/");
    path.push_number(pid);
    path.push(b"/comm\0");
    let Ok(path) = CStr::from_bytes_until_nul(&path.bytes) else {
        return false;
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(file) = retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty())) else {
        return false;
    };
    let mut name = [0; 32];
    retry_on_intr(|| read(&file, &mut name)).is_ok_and(|n| name[..n].trim_ascii() == PAUSE)
}

fn used(child: BorrowedFd<'_>, usage: &str) -> Result<u64, Errno> {
    let file = walk::open(child, usage, OFlags::RDONLY)?;
    let mut text = [0; 32];
    let n = retry_on_intr(|| read(&file, &mut text))?;
    parse_u64(&text[..n]).ok_or(Errno::INVAL)
}

/// A path that is put together on the stack.
#[derive(Default)]
struct Path {
    bytes: [u8; 32],
    len: usize,
}

impl Path {
    /// What does not fit is left out, and the path leads nowhere.
    fn push(&mut self, text: &[u8]) {
        let end = self.len + text.len();
        if let Some(free) = self.bytes.get_mut(self.len..end) {
            free.copy_from_slice(text);
            self.len = end;
        }
    }

    fn push_number(&mut self, number: u32) {
        self.push(decimal(number, &mut [0; 10]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_out() {
        for number in [0, 7, 10, 4_194_304, u32::MAX] {
            let mut path = Path::default();
            path.push(b"/proc/");
            path.push_number(number);
            path.push(b"/comm\0");
            let want = format!("/proc/{number}/comm");
            let got = CStr::from_bytes_until_nul(&path.bytes).unwrap();
            assert_eq!(got.to_str().unwrap(), want);
        }
    }

    #[test]
    fn names_compare_whole() {
        let name = Name::new(c"cri-containerd-1").unwrap();
        assert!(name.is(c"cri-containerd-1"));
        assert!(!name.is(c"cri-containerd-12") && !name.is(c"cri-containerd-"));
    }

    #[test]
    fn what_was_told_is_told_apart_from_what_was_not() {
        let kinds = ChildKinds {
            sandboxes: ["s".to_owned()].into(),
            workloads: ["w".to_owned()].into(),
        };
        let answers = [c"s", c"w", c"x", c"ss"].map(|name| kinds.is_sandbox(name));
        assert_eq!(answers, [Some(true), Some(false), None, None]);
    }

    #[test]
    fn monitors_are_spared_where_there_are_any() {
        let spared = Spared {
            sandbox: Name::new(c"crio-1.scope"),
            monitors: true,
        };
        for name in [c"crio-1.scope", c"crio-conmon-1.scope", c"crio-conmon-2"] {
            assert!(spared.is(name), "{name:?}");
        }
        assert!(!spared.is(c"crio-2.scope"));
    }

    #[test]
    fn this_process_is_not_called_pause() {
        assert!(!is_called_pause(std::process::id()));
        assert!(!is_called_pause(0));
    }
}
