//! Ends every process below a cgroup, from a thread that must not allocate.
//!
//! On v2 the kernel does it: `cgroup.kill` (since 5.14) also catches what is being forked. On v1
//! the cgroup is frozen, so that nothing in it can fork or move on, every process found is sent
//! SIGKILL, and the cgroup is thawed for them to die; v1 delivers no signal to a frozen task.

mod pids;
mod walk;

use std::{
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::Arc,
};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open, pidfd_send_signal},
};

use crate::{Controller, Error, Result, Tree, io};
use pids::PidSet;

/// Passes over the processes at most. A frozen cgroup needs two: one that finds them and one that
/// finds nothing more. Without a freezer, a fork may run ahead of each pass.
const MAX_PASSES: u32 = 16;

/// What one [`KillHandle::kill`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Killed {
    /// Processes that were sent SIGKILL. With `cgroup.kill` those found just before it.
    pub processes: u32,
    /// Passes over the cgroup and all below it.
    pub passes: u32,
    /// False when something may still run: a process outside our pid namespace (an agent in a
    /// container needs the host's) or one we have no right to signal, cgroups nested deeper than
    /// 64, or new processes up to the last pass. Always true with `cgroup.kill`.
    pub complete: bool,
}

/// A cgroup whose processes can be killed at once. It holds open files and works without
/// allocating; it uses up to 128 KiB of stack. The system calls take the kernel's cgroup locks,
/// for microseconds unless a cgroup is being made or removed at that moment.
///
/// Killed is not freed: the processes die, and give their memory back, after `kill` returns.
#[derive(Debug)]
pub struct KillHandle {
    method: Method,
    /// Where the processes are listed: the memory hierarchy, whose memory is wanted back.
    directory: OwnedFd,
    path: Arc<Path>,
}

#[derive(Debug)]
enum Method {
    /// v2: the open `cgroup.kill`.
    Kernel(OwnedFd),
    /// v1: the cgroup of the same name in the freezer's hierarchy.
    Freeze { state: OwnedFd, directory: OwnedFd },
    /// Neither: v2 before 5.14, or v1 without a freezer.
    Chase,
}

impl KillHandle {
    /// Opens what [`KillHandle::kill`] needs.
    ///
    /// # Errors
    /// [`Error::NotFound`] when the cgroup does not exist; [`Error::NoController`] without a memory
    /// controller; [`Error::InvalidName`], also for the root: it is never killed;
    /// [`Error::OwnCgroup`] when the calling process is inside.
    pub fn open(tree: &Tree, rel: &str) -> Result<Self> {
        if rel.is_empty() {
            return Err(Error::InvalidName {
                name: rel.to_owned(),
                reason: "the root is not killed",
            });
        }
        let path = tree.path(Controller::Memory, rel)?;
        let method = if tree.hierarchies().is_on_v2(Controller::Memory) {
            match io::open_write(&path.join("cgroup.kill")) {
                Ok(file) => Method::Kernel(file),
                Err(Error::NotFound { .. }) => Method::Chase,
                Err(error) => return Err(error),
            }
        } else {
            match open_freezer(tree, rel) {
                Ok(method) => method,
                Err(Error::NoController { .. } | Error::NotFound { .. }) => Method::Chase,
                Err(error) => return Err(error),
            }
        };
        let handle = Self {
            directory: io::open_dir(&path)?,
            path: path.into(),
            method,
        };
        handle.refuse_our_own()?;
        Ok(handle)
    }

    /// Frozen together with the victim we would never thaw.
    fn refuse_our_own(&self) -> Result<()> {
        let us = getpid().as_raw_nonzero().get().unsigned_abs();
        let mut here = false;
        for directory in self.listed() {
            walk::processes(directory.as_fd(), &mut |pid| here |= pid == us)
                .map_err(|e| self.error("list the processes of", e))?;
        }
        if here {
            return Err(Error::OwnCgroup {
                path: Arc::clone(&self.path),
            });
        }
        Ok(())
    }

    /// Where processes are looked for. The freezer's hierarchy too: what is only in that one
    /// stands still, what is only in the other holds the memory.
    fn listed(&self) -> impl Iterator<Item = &OwnedFd> {
        let freezer = match &self.method {
            Method::Freeze { directory, .. } => Some(directory),
            Method::Kernel(_) | Method::Chase => None,
        };
        std::iter::once(&self.directory).chain(freezer)
    }

    /// Sends SIGKILL to every process in the cgroup and below it. Allocates nothing.
    ///
    /// # Errors
    /// [`Error::Gone`] when the cgroup was removed; what the kernel refuses. What this call froze
    /// it has thawed again also then.
    pub fn kill(&self) -> Result<Killed> {
        match &self.method {
            Method::Kernel(file) => self.kill_by_kernel(file),
            Method::Freeze { state, directory } => {
                self.write(state, "freeze", b"FROZEN")?;
                let _thawed_at_the_end = Thaw { state, directory };
                self.chase()
            }
            Method::Chase => self.chase(),
        }
    }

    fn kill_by_kernel(&self, file: &OwnedFd) -> Result<Killed> {
        let mut processes = 0;
        // The count is for the record: failing at it must not save the victim.
        let _ = walk::processes(self.directory.as_fd(), &mut |_| processes += 1);
        self.write(file, "kill", b"1")?;
        Ok(Killed {
            processes,
            passes: 1,
            complete: true,
        })
    }

    /// Signals until a pass finds no process that was not signalled before; those that were stay
    /// listed while they die.
    fn chase(&self) -> Result<Killed> {
        let mut seen = PidSet::new();
        let mut killed = Killed::default();
        let mut refused = false;
        while killed.passes < MAX_PASSES {
            let mut fresh = 0;
            let mut found = |pid| {
                if seen.insert(pid) {
                    match signal(pid) {
                        Signalled::Sent => fresh += 1,
                        Signalled::Exited => {}
                        Signalled::Refused => refused = true,
                    }
                }
            };
            let mut whole = true;
            for directory in self.listed() {
                whole &= walk::processes(directory.as_fd(), &mut found)
                    .map_err(|e| self.error("list the processes of", e))?;
            }
            killed.passes += 1;
            killed.processes += fresh;
            if fresh == 0 {
                killed.complete = whole && !refused;
                break;
            }
        }
        Ok(killed)
    }

    fn write(&self, file: &OwnedFd, operation: &'static str, value: &[u8]) -> Result<()> {
        io::write_fd(file, value).map_err(|e| self.error(operation, e))
    }

    /// What was open here can only be missing because it was removed.
    fn error(&self, operation: &'static str, errno: Errno) -> Error {
        let errno = match errno {
            Errno::NOENT => Errno::NODEV,
            other => other,
        };
        Error::os(operation, Arc::clone(&self.path), errno)
    }
}

fn open_freezer(tree: &Tree, rel: &str) -> Result<Method> {
    let freezer = tree.path(Controller::Freezer, rel)?;
    Ok(Method::Freeze {
        state: io::open_write(&freezer.join(walk::FREEZER_STATE))?,
        directory: io::open_dir(&freezer)?,
    })
}

/// Thaws a v1 cgroup and all below it when dropped: a nested cgroup that was frozen by itself (a
/// paused container) would keep its killed processes alive.
struct Thaw<'a> {
    state: &'a OwnedFd,
    directory: &'a OwnedFd,
}

impl Drop for Thaw<'_> {
    fn drop(&mut self) {
        const THAWED: &[u8] = b"THAWED";
        // A failure means that the cgroup is gone, and with it everything frozen in it.
        let _ = io::write_fd(self.state, THAWED);
        let _ = walk::freezer_states(self.directory.as_fd(), &mut |state| {
            let _ = io::write_fd(state, THAWED);
        });
    }
}

enum Signalled {
    Sent,
    /// It ended by itself after it was listed.
    Exited,
    /// It is in another pid namespace, or we lack the right.
    Refused,
}

/// Sends SIGKILL. The pidfd keeps the signal from a process that takes over the id after it was
/// opened; without one (before 5.3, or no file descriptor free) the plain id has to do.
fn signal(pid: u32) -> Signalled {
    // 0 stands for a process outside our pid namespace.
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return Signalled::Refused;
    };
    let sent = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd_send_signal(&pidfd, Signal::KILL),
        Err(Errno::SRCH) => Err(Errno::SRCH),
        Err(_) => kill_process(pid, Signal::KILL),
    };
    match sent {
        Ok(()) => Signalled::Sent,
        Err(Errno::SRCH) => Signalled::Exited,
        Err(_) => Signalled::Refused,
    }
}
