//! Ends every process below a cgroup, from a thread that must not allocate.
//!
//! Every process listed is sent SIGKILL first: listing and signalling take no lock that a cgroup's making,
//! removal or migration holds for long. Each is checked to be listed still after its pidfd was opened, so that a
//! process that took over an id, or left the cgroup, is spared (`listed`).
//!
//! On v2 `cgroup.kill` (since 5.14) follows for what was forked meanwhile. Its write takes `cgroup_mutex`
//! (`cgroup_kill_write`, `kernel/cgroup/cgroup.c`), which the attachment of a process holds for a grace period:
//! a thread that must not wait leaves it to another ([`KillHandle::signal_workload`], [`KillHandle::kill_forked`]).
//!
//! On v1 processes are found again until there is no new one. What goes on forking meanwhile is frozen for that:
//! nothing in a frozen cgroup can fork or move on. It is thawed to die; v1 delivers no signal to a frozen task. To
//! freeze first would be simpler, but an agent that dies in between leaves a pod that can neither run nor end. The
//! freezer has a lock of its own.
//!
//! A fork under way at the last look may still come to light: the caller looks again ([`KillHandle::processes`]).

mod freezer;
mod kernel;
mod listed;
mod pids;
mod record;
mod sandbox;
mod spared;
mod walk;

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::Arc,
};

use rustix::{fs::OFlags, io::Errno, process::getpid};

use crate::{CgroupPath, Controller, Error, Result, Tree, io, memory};
use freezer::Freezer;
use listed::{Recipients, Signalled, signal_listed};
use pids::PidSet;
pub use record::{FreezeRecord, LeftFrozen, freeze_record_file};
pub use sandbox::ChildKinds;
use spared::Spared;

/// Passes over the processes at most: two without forks, one that finds them and one that finds
/// nothing more. Without a freezer, a fork may run ahead of each pass.
const MAX_PASSES: u32 = 16;

/// Passes before what goes on forking is frozen.
const PASSES_UNFROZEN: u32 = 2;

/// What one [`KillHandle::kill_workload`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Killed {
    /// Processes that were sent SIGKILL. With `cgroup.kill` those listed just before it.
    pub processes: u32,
    /// Passes over the cgroup and all below it.
    pub passes: u32,
    /// True when the pod's sandbox was left alive.
    pub spared: bool,
    /// False when something may still run: a process outside our pid namespace (an agent in a
    /// container needs the host's) or one we have no right to signal, cgroups nested deeper than
    /// 64, or new processes up to the last pass. Always true with `cgroup.kill`.
    pub complete: bool,
    /// True when no process was found, and one is dying that the kernel no longer lists: see [`KillHandle::processes`].
    pub dying: bool,
}

/// A cgroup whose processes can be killed at once. It holds open files and works without
/// allocating; it uses up to 128 KiB of stack and 64 file descriptors. Its methods take the kernel's cgroup locks
/// for microseconds, but for those that say that they wait.
///
/// Killed is not freed: the processes die, and give their memory back, after these return.
#[derive(Debug)]
pub struct KillHandle {
    method: Method,
    /// Where the processes are listed: the memory hierarchy, whose memory is wanted back.
    directory: OwnedFd,
    path: Arc<Path>,
    is_v2: bool,
    kinds: ChildKinds,
}

#[derive(Debug)]
enum Method {
    /// v2: the open `cgroup.kill`.
    Kernel(OwnedFd),
    /// v1: the cgroup of the same name in the freezer's hierarchy.
    Freeze(Freezer),
    /// Neither: v2 before 5.14, or v1 without a freezer.
    Chase,
}

impl KillHandle {
    /// Opens what [`KillHandle::kill_workload`] needs. [`Error::InvalidName`] also for the root: it is never killed;
    /// [`Error::OwnCgroup`] when the calling process is inside.
    pub fn open(tree: &Tree, cgroup: &CgroupPath) -> Result<Self> {
        if cgroup.is_root() {
            return Err(Error::InvalidName {
                name: cgroup.to_string(),
                reason: "the root is not killed",
            });
        }
        let path = tree.path(Controller::Memory, cgroup)?;
        let is_v2 = tree.hierarchies().is_on_v2(Controller::Memory);
        let method = if is_v2 {
            match io::open_write(&path.join("cgroup.kill")) {
                Ok(file) => Method::Kernel(file),
                Err(Error::NotFound { .. }) => Method::Chase,
                Err(error) => return Err(error),
            }
        } else {
            match Freezer::open(tree, cgroup) {
                Ok(freezer) => Method::Freeze(freezer),
                Err(Error::NoController { .. } | Error::NotFound { .. }) => Method::Chase,
                Err(error) => return Err(error),
            }
        };
        let handle = Self {
            directory: io::open_dir(&path)?,
            path: path.into(),
            method,
            is_v2,
            kinds: ChildKinds::default(),
        };
        handle.refuse_our_own()?;
        Ok(handle)
    }

    /// With the kinds that the container runtime reports of the pod's containers.
    #[must_use]
    pub fn with_kinds(self, kinds: ChildKinds) -> Self {
        Self { kinds, ..self }
    }

    /// With the record in which each freeze is noted, so that [`LeftFrozen`] can end it for a process that was
    /// killed in between. Without one it stays.
    #[must_use]
    pub fn with_record(self, record: Arc<FreezeRecord>) -> Self {
        let method = match self.method {
            Method::Freeze(freezer) => Method::Freeze(freezer.with_record(record)),
            other => other,
        };
        Self { method, ..self }
    }

    /// The kinds that the container runtime has reported.
    pub fn kinds(&self) -> &ChildKinds {
        &self.kinds
    }

    /// Frozen together with the victim we would never thaw.
    fn refuse_our_own(&self) -> Result<()> {
        let us = getpid().as_raw_nonzero().get().unsigned_abs();
        let mut here = false;
        for directory in self.listed() {
            walk::processes(directory.as_fd(), None, &mut |pid| here |= pid == us)
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
            Method::Freeze(freezer) => Some(&freezer.directory),
            Method::Kernel(_) | Method::Chase => None,
        };
        std::iter::once(&self.directory).chain(freezer)
    }

    /// Sends SIGKILL to every process in a pod's cgroup and below it, but for its sandbox where there is one: the child
    /// that the runtime told of ([`ChildKinds`]), else the one with one process, called `pause`, and next to no
    /// memory. Without it the runtime could not take the pod's network down any more. CRI-O's monitors
    /// (`crio-conmon-*`) stay as well: they end with their containers. `found` gets every process that is killed.
    /// Allocates nothing. On v2 it waits for `cgroup_mutex` once those listed are signalled. What this call froze it
    /// has thawed again also after an error.
    pub fn kill_workload(&self, found: &mut dyn FnMut(u32)) -> Result<Killed> {
        self.kill_but(self.spared().as_ref(), found)
    }

    /// As [`KillHandle::kill_workload`], for a thread that must not wait for `cgroup_mutex`: on v2 every process
    /// listed is signalled, and [`KillHandle::kill_forked`] is left to another thread. Where a process listed
    /// cannot be signalled, or none can be listed, `cgroup.kill` is written all the same.
    pub fn signal_workload(&self, found: &mut dyn FnMut(u32)) -> Result<Killed> {
        let spared = self.spared();
        let spared = spared.as_ref();
        match &self.method {
            Method::Kernel(file) => {
                let killed = self.signal_first(file, spared, found)?;
                self.finished(spared, killed)
            }
            Method::Freeze(_) | Method::Chase => self.kill_but(spared, found),
        }
    }

    /// Where processes are listed.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Kills what was forked since [`KillHandle::signal_workload`]. Waits for `cgroup_mutex`. Does nothing without
    /// `cgroup.kill`, where that method has found all.
    pub fn kill_forked(&self) -> Result<()> {
        match &self.method {
            Method::Kernel(file) => self.write_kill(file, self.spared().as_ref()).map(|_| ()),
            Method::Freeze(_) | Method::Chase => Ok(()),
        }
    }

    /// Calls `found` with every process that [`KillHandle::kill_workload`] would kill. Those that are
    /// dying are still among them until their memory is free up to Linux 6.18, and no more as soon as
    /// they begin to die after it (`css_task_iter_advance`, `kernel/cgroup/cgroup.c`): an empty
    /// list does not mean that their memory is free. Allocates nothing.
    pub fn processes(&self, found: &mut dyn FnMut(u32)) -> Result<()> {
        let spared = self.spared();
        for directory in self.listed() {
            walk::processes(directory.as_fd(), spared.as_ref(), found)
                .map_err(|e| self.error("list the processes of", e))?;
        }
        Ok(())
    }

    /// Whether the kernel counts a process in it besides the sandbox, the dying included until their
    /// memory is free. `None` on v1, which has no such count. Allocates nothing.
    pub fn is_populated(&self) -> Result<Option<bool>> {
        self.holds_a_process(self.spared().as_ref())
    }

    fn holds_a_process(&self, spared: Option<&Spared>) -> Result<Option<bool>> {
        if !self.is_v2 {
            return Ok(None);
        }
        walk::is_populated(self.directory.as_fd(), spared)
            .map(Some)
            .map_err(|e| self.error("read the events of", e))
    }

    /// Has the kernel give back the page cache that is charged to the cgroup, as far as it can at once;
    /// limits stay as they are. May wait for disks, so it is not for a thread that must not. [`Error::NotFound`] where
    /// the kernel has no file for it (v2 before 5.19).
    pub fn reclaim_cache(&self) -> Result<()> {
        // v1 gives back all that it can, v2 what it is asked for, and says EAGAIN when that was less.
        let (file, amount) = if self.is_v2 {
            ("memory.reclaim", "1T")
        } else {
            ("memory.force_empty", "0")
        };
        let written = walk::open(self.directory.as_fd(), file, OFlags::WRONLY)
            .and_then(|fd| io::write_fd(&fd, amount.as_bytes()));
        match written {
            Ok(()) | Err(Errno::AGAIN) => Ok(()),
            Err(errno) => Err(Error::os("reclaim from", Arc::clone(&self.path), errno)),
        }
    }

    fn spared(&self) -> Option<Spared> {
        let usage = memory::usage_file(self.is_v2);
        sandbox::find(self.directory.as_fd(), usage, &self.kinds)
    }

    fn kill_but(&self, spared: Option<&Spared>, found: &mut dyn FnMut(u32)) -> Result<Killed> {
        let killed = match &self.method {
            Method::Kernel(file) => self.kill_by_kernel(file, spared, found)?,
            Method::Freeze(freezer) => {
                let mut chase = Chase::new(found);
                let mut freeze = freezer.thawed_at_the_end();
                if !self.chase(&mut chase, spared, PASSES_UNFROZEN)? {
                    freeze.begin().map_err(|e| self.error("freeze", e))?;
                    self.chase(&mut chase, spared, MAX_PASSES)?;
                }
                chase.killed
            }
            Method::Chase => {
                let mut chase = Chase::new(found);
                self.chase(&mut chase, spared, MAX_PASSES)?;
                chase.killed
            }
        };
        self.finished(spared, killed)
    }

    fn finished(&self, spared: Option<&Spared>, killed: Killed) -> Result<Killed> {
        let dying = killed.processes == 0 && self.holds_a_process(spared)? == Some(true);
        Ok(Killed {
            spared: spared.is_some_and(|spared| spared.sandbox.is_some()),
            dying,
            ..killed
        })
    }

    /// Signals until a pass finds no process that was not signalled before; those that were stay
    /// listed while they die. False when there were new ones up to pass `passes`.
    fn chase(&self, chase: &mut Chase<'_>, spared: Option<&Spared>, passes: u32) -> Result<bool> {
        while chase.killed.passes < passes {
            chase.fresh = 0;
            let mut whole = true;
            for directory in self.listed() {
                let mut visit = |cgroup: BorrowedFd<'_>| signal_listed(cgroup, chase);
                whole &= walk::each(directory.as_fd(), spared, &mut visit)
                    .map_err(|e| self.error("list the processes of", e))?;
            }
            chase.killed.passes += 1;
            chase.killed.processes += chase.fresh;
            if chase.fresh == 0 {
                chase.killed.complete = whole && !chase.refused;
                return Ok(true);
            }
        }
        Ok(false)
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

/// Who was signalled so far.
struct Chase<'a> {
    seen: PidSet,
    killed: Killed,
    /// Signalled in this pass.
    fresh: u32,
    refused: bool,
    found: &'a mut dyn FnMut(u32),
}

impl<'a> Chase<'a> {
    fn new(found: &'a mut dyn FnMut(u32)) -> Self {
        Self {
            seen: PidSet::new(),
            killed: Killed::default(),
            fresh: 0,
            refused: false,
            found,
        }
    }
}

impl Recipients for Chase<'_> {
    /// The plain id is all that is left: there is no `cgroup.kill` to follow.
    const BY_ID: bool = true;

    fn wants(&self, pid: u32) -> bool {
        !self.seen.contains(pid)
    }

    fn signalled(&mut self, pid: u32, signalled: Signalled) {
        self.seen.insert(pid);
        match signalled {
            Signalled::Sent => {
                self.fresh += 1;
                (self.found)(pid);
            }
            Signalled::Exited => {}
            Signalled::Refused => self.refused = true,
        }
    }
}

#[cfg(test)]
mod tests;
