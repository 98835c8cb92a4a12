//! Notifications by the kernel about one cgroup.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::{
    event::{EventfdFlags, eventfd},
    fs::{CWD, Mode, OFlags, openat},
};

use crate::{Controller, Error, Result, Tree, io, memory};

/// Asks cgroup v1 for a notice when a cgroup's memory usage crosses `bytes`, upward or downward.
///
/// The answer is an eventfd (non-blocking, close-on-exec), readable after each crossing and once
/// when the cgroup is removed: re-read usage to know which. The kernel compares at page charges,
/// every 128 of them per CPU (`memcg_check_events`, `mm/memcontrol-v1.c`). Closing the eventfd ends
/// it.
///
/// # Errors
/// [`Error::Unsupported`] when the memory controller is on v2, which has no such thing;
/// [`Error::NotFound`], [`Error::NoController`], [`Error::InvalidName`].
pub fn memory_threshold(tree: &Tree, rel: &str, bytes: u64) -> Result<OwnedFd> {
    let directory = tree.path(Controller::Memory, rel)?;
    if tree.hierarchies().is_on_v2(Controller::Memory) {
        return Err(Error::Unsupported {
            what: "a memory usage threshold",
            reason: "the memory controller is on cgroup v2",
        });
    }
    let usage = io::open_read(&directory.join(memory::V1_USAGE))?;
    let control = directory.join("cgroup.event_control");
    let notice = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|e| Error::os("make an eventfd for", control.as_path(), e))?;
    let line = format!("{} {} {bytes}", notice.as_raw_fd(), usage.as_raw_fd());
    io::write_text(&control, &line)?;
    Ok(notice)
}

/// What tasks wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PsiResource {
    /// A CPU.
    Cpu,
    /// Memory: reclaim, refaults, swapping in.
    Memory,
    /// Block IO.
    Io,
}

/// A pressure stall trigger (`Documentation/accounting/psi.rst`): poll it for `POLLPRI`; `POLLERR`
/// says that the cgroup was removed. Dropping it ends the trigger.
#[derive(Debug)]
pub struct PsiTrigger(OwnedFd);

impl PsiTrigger {
    /// Notices when some task of the cgroup stalled for `stall_us` in all within `window_us`,
    /// at most once per window. The kernel takes windows of 500000 to 10000000 microseconds; from
    /// a caller without `CAP_SYS_RESOURCE` only multiples of 2000000 (`psi_trigger_create`,
    /// `kernel/sched/psi.c`).
    ///
    /// # Errors
    /// [`Error::Unsupported`] where v2 is not mounted; [`Error::NotFound`] also when the kernel
    /// runs without PSI; `EINVAL` for a window out of range; `EPERM`.
    pub fn new(
        tree: &Tree,
        rel: &str,
        resource: PsiResource,
        stall_us: u32,
        window_us: u32,
    ) -> Result<Self> {
        let file = match resource {
            PsiResource::Cpu => "cpu.pressure",
            PsiResource::Memory => "memory.pressure",
            PsiResource::Io => "io.pressure",
        };
        let path = tree.v2_path(rel)?.join(file);
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = openat(CWD, &path, flags, Mode::empty())
            .map_err(|e| Error::os("open", path.as_path(), e))?;
        let line = format!("some {stall_us} {window_us}\0");
        io::write_fd(&fd, line.as_bytes())
            .map_err(|e| Error::os("set a trigger on", path.as_path(), e))?;
        Ok(Self(fd))
    }
}

impl AsFd for PsiTrigger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
