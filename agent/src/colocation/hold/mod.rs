//! What best effort may use of the CPU: less while a protected pod waits for one, and by the koordlet's formula. Of
//! two quotas the smaller one is written.
//!
//! ```text
//!  context switch: waited too long ── record ──> thread ── quota ──> besteffort tier
//! ```
//!
//! The kernel programs report a wait when it ends, at most one of an account in each window. The thread sleeps until
//! then; it writes to a file that is open, and allocates nothing before that is written. What the tier may use is the
//! law of [`podwarden_policy::colocation::hold`].
//!
//! A pod that its own limit stopped waited for no other pod: what its cgroups were throttled counts against the wait.

pub(super) mod cpus;
mod objective;
mod rounds;
mod standing;
mod suppress;
#[cfg(test)]
mod tests;
mod thread;
mod tier;
mod topology;
mod watched;

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use podwarden_cgroup::{CgroupPath, CpuList, Tree};
use podwarden_policy::{MilliCpu, colocation::hold::Bounds};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

pub use self::{
    objective::objective,
    standing::Standing,
    suppress::{Pinned, Strategy},
};
use crate::{
    api::types::PodRef,
    base::{bell::bell, worker::Worker},
    kernel::waits::Waits,
};

/// A pod that is not to wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Protected {
    pub pod: PodRef,
    /// The wait that is too long.
    pub objective: Duration,
    /// The accounts that its tasks count to.
    pub slots: Vec<u32>,
    /// Its cgroup and its containers', of which any may have a limit.
    pub cgroups: Vec<CgroupPath>,
}

/// What the reconciler is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// When, `CLOCK_MONOTONIC` nanoseconds.
    pub at: u64,
    pub what: What,
    /// True in observe mode: nothing was written.
    pub dry_run: bool,
}

/// A change of what best effort may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// It may use less.
    Held {
        /// The pod that waited.
        pod: PodRef,
        /// For how long, nanoseconds.
        waited_nanos: u64,
        /// From the end of the wait to the write, nanoseconds.
        delay_nanos: u64,
        /// What best effort used, or could use, before.
        from: MilliCpu,
        /// What it may use now.
        to: MilliCpu,
    },
    /// It may use all again.
    Freed {
        /// For how long it was held back.
        held: Duration,
        /// Waits that were too long meanwhile.
        waits: u64,
    },
    /// It may use more or less by the formula.
    Suppressed(Suppressed),
    /// The kernel refused a quota, or a list of CPUs.
    Refused(String),
}

/// A step of what best effort may use by the formula.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suppressed {
    /// What was reported before, `None` for the first time.
    pub from: Option<MilliCpu>,
    /// What it may use now.
    pub to: MilliCpu,
    /// Its CPUs, where `cpuSuppressPolicy` is `cpuset`.
    pub cpus: Option<CpuList>,
    /// What other pods and the system used.
    pub others: MilliCpu,
}

/// The pods as they are now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Aim {
    /// The protected ones.
    pub protected: Vec<Protected>,
    /// Those with CPUs of their own.
    pub pinned: Pinned,
}

/// What the thread works on.
pub struct Parts {
    pub tree: Tree,
    /// The besteffort tier's cgroup.
    pub tier: CgroupPath,
    /// What it may use while a protected pod waits.
    pub bounds: Bounds,
    /// What it may use by the formula; `None` where that is off.
    pub suppress: Option<Strategy>,
    /// False in observe mode: nothing is written.
    pub enforce: bool,
    /// The file in which it is kept what was found, see [`super::hold_file`].
    pub found: PathBuf,
    /// The same for its CPUs, see [`super::cpus_file`].
    pub found_cpus: PathBuf,
    /// Parent of kubepods, relative to each controller's mount point.
    pub cgroup_root: String,
    /// Whether the thread may be SCHED_FIFO: an ordinary one can wait for hundreds of milliseconds.
    pub real_time: bool,
}

/// The reconciler's end of the thread.
#[derive(Debug)]
pub struct Holder {
    /// The tier is as it was found when it has ended.
    worker: Worker<Aim>,
    reports: UnboundedReceiver<Report>,
    standing: Arc<Standing>,
}

impl Holder {
    /// Starts the thread, with no pod to look after; without `waits` no wait is relieved.
    pub fn start(parts: Parts, waits: Option<Waits>) -> io::Result<Self> {
        let bell = Arc::new(bell()?);
        let (tell, reports) = unbounded_channel();
        let standing = Arc::new(Standing::default());
        let thread =
            thread::Thread::new(parts, waits, Arc::clone(&bell), tell, Arc::clone(&standing));
        let worker = Worker::start_with_bell("cpu-hold", bell, move |waiting| thread.run(waiting))?;
        Ok(Self {
            reports,
            standing,
            worker,
        })
    }

    /// The pods from now on.
    pub fn aim(&self, aim: Aim) {
        self.worker.tell(aim);
    }

    /// What best effort may use now.
    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    /// The next report. Cancel-safe.
    pub async fn report(&mut self) -> Option<Report> {
        self.reports.recv().await
    }
}
