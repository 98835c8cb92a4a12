//! Notifications by the kernel about one cgroup.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    event::{EventfdFlags, eventfd},
    fs::{CWD, Mode, OFlags, openat},
};

use crate::{
    CgroupPath, Controller, Error, Result, Tree,
    io::{self, Reread},
    memory,
};

/// Where cgroup v1 can be asked for notices of a cgroup's memory usage.
#[derive(Debug, Clone)]
pub struct MemoryThresholds {
    directory: PathBuf,
}

impl MemoryThresholds {
    /// Of a cgroup; nothing is opened yet. [`Error::Unsupported`] when the memory controller is on v2, which has no
    /// such thing.
    pub fn of(tree: &Tree, cgroup: &CgroupPath) -> Result<Self> {
        let directory = tree.path(Controller::Memory, cgroup)?;
        if tree.hierarchies().is_on_v2(Controller::Memory) {
            return Err(Error::Unsupported {
                what: "a memory usage threshold",
                reason: "the memory controller is on cgroup v2",
            });
        }
        Ok(Self { directory })
    }

    /// Asks for a notice when usage crosses `bytes`, upward or downward.
    ///
    /// The answer is an eventfd (non-blocking, close-on-exec), readable after each crossing and once
    /// when the cgroup is removed: re-read usage to know which. The kernel compares at page charges,
    /// every 128 of them per CPU (`memcg_check_events`, `mm/memcontrol-v1.c`). Closing the eventfd ends
    /// it.
    ///
    /// Waits for a grace period of the kernel's, tens of milliseconds
    /// (`__mem_cgroup_usage_register_event`, which calls `synchronize_rcu`).
    pub fn notice_at(&self, bytes: u64) -> Result<OwnedFd> {
        let usage = io::open_read(&self.directory.join(memory::V1_USAGE))?;
        let control = self.directory.join("cgroup.event_control");
        let notice = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::os("make an eventfd for", control.as_path(), e))?;
        let line = format!("{} {} {bytes}", notice.as_raw_fd(), usage.as_raw_fd());
        io::write_text(&control, &line)?;
        Ok(notice)
    }
}

podwarden_policy::names! {
    /// What tasks wait for.
    pub enum PsiResource {
        /// A CPU.
        Cpu = "cpu",
        /// Memory: reclaim, refaults, swapping in.
        Memory = "memory",
        /// Block IO.
        Io = "io",
    }
}

podwarden_policy::names! {
    /// Who has to wait for it to count.
    pub enum PsiKind {
        /// At least one task.
        Some = "some",
        /// All that are not idle, at the same time.
        Full = "full",
    }
}

/// When to notice: after `stall_us` microseconds of stalls within `window_us`. The kernel takes windows
/// of 500000 to 10000000; from a caller without `CAP_SYS_RESOURCE` only multiples of 2000000
/// (`psi_trigger_create`, `kernel/sched/psi.c`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PsiThreshold {
    /// The cgroup.
    pub kind: PsiKind,
    /// Above 0, at most the window.
    pub stall_us: u32,
    /// How far back is looked.
    pub window_us: u32,
}

/// A pressure stall trigger (`Documentation/accounting/psi.rst`): poll it for `POLLPRI`; `POLLERR`
/// says that the cgroup was removed. Notices at most once per window. Dropping it ends the trigger.
#[derive(Debug)]
pub struct PsiTrigger(OwnedFd);

impl PsiTrigger {
    /// For the tasks of a cgroup of the v2 hierarchy, with or without controllers there. [`Error::Unsupported`] where
    /// v2 is not mounted; [`Error::NotFound`] also when the kernel runs without PSI; `EINVAL` for a window out of
    /// range; `EPERM`.
    pub fn new(
        tree: &Tree,
        cgroup: &CgroupPath,
        resource: PsiResource,
        threshold: PsiThreshold,
    ) -> Result<Self> {
        let path = tree.v2_path(cgroup)?;
        Self::on(
            &path.join(format!("{}.pressure", resource.as_str())),
            threshold,
        )
    }

    /// For all tasks of the node. [`Error::NotFound`] when the kernel runs without PSI; `EINVAL` for a window out of
    /// range; `EPERM`.
    pub fn of_node(resource: PsiResource, threshold: PsiThreshold) -> Result<Self> {
        Self::on(
            &Path::new("/proc/pressure").join(resource.as_str()),
            threshold,
        )
    }

    fn on(path: &Path, threshold: PsiThreshold) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = openat(CWD, path, flags, Mode::empty()).map_err(|e| Error::os("open", path, e))?;
        let (kind, stall) = (threshold.kind.as_str(), threshold.stall_us);
        let line = format!("{kind} {stall} {}\0", threshold.window_us);
        io::write_fd(&fd, line.as_bytes()).map_err(|e| Error::os("set a trigger on", path, e))?;
        Ok(Self(fd))
    }
}

impl From<PsiTrigger> for OwnedFd {
    fn from(trigger: PsiTrigger) -> Self {
        trigger.0
    }
}

impl AsFd for PsiTrigger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// `memory.events` of a cgroup (v2): poll it for `POLLPRI`, which says that the cgroup or one below it
/// was throttled at `memory.high`, reached `memory.max`, or had an OOM kill, at most every 10 ms
/// (`cgroup_file_notify`, `kernel/cgroup/cgroup.c`).
#[derive(Debug)]
pub struct MemoryEvents(Reread);

impl MemoryEvents {
    /// Opens the file. [`Error::Unsupported`] when the memory controller is on v1.
    pub fn open(tree: &Tree, cgroup: &CgroupPath) -> Result<Self> {
        if !tree.hierarchies().is_on_v2(Controller::Memory) {
            return Err(Error::Unsupported {
                what: "memory.events",
                reason: "the memory controller is on cgroup v1",
            });
        }
        let path = tree.path(Controller::Memory, cgroup)?.join("memory.events");
        Ok(Self(Reread::open(&path)?))
    }

    /// Silences the notice: the kernel compares with what was read last. Allocates nothing.
    pub fn silence(&self) -> Result<()> {
        self.0.read_at(&mut [0; 256], 0).map(|_| ())
    }
}

impl AsFd for MemoryEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
