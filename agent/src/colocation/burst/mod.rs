//! CPU burst: a protected pod does not wait for its own limit while the node has free CPU.
//!
//! ```text
//!  reconciler ── pods, share pool ──> thread ── cpu.max.burst, quota ──> cgroups
//!             <── relieved, lowered ────┘  └──> ours: what is no foreign write
//! ```
//!
//! The thread looks at a container as often as it could reach its quota: it sleeps as long as the container's
//! headroom lasts on all CPUs that it could use. Reaching the quota is seen from usage, as the kernel counts a
//! throttled period at its end. Writing a quota refills it, so the container runs on at once.
//!
//! | module | purpose |
//! |---|---|
//! | `thread` | waits, looks, reports |
//! | `pod` | one pod: its cgroups, a step decided, written |
//! | `container` | one cgroup: as it was found and as it was left, and its next quota |
//! | `meter` | one container: usage over the last period, throttling, tokens |

mod container;
mod meter;
mod pod;
mod thread;

use std::{io, path::PathBuf, sync::Arc};

use podwarden_cgroup::{CgroupPath, Tree};
use podwarden_policy::{
    MilliCpu,
    colocation::burst::{BurstConfig, NodeState},
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{Ours, latest::Latest};
use crate::{api::types::PodRef, base::worker::Worker};

/// A pod that may exceed its limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Protected {
    pub pod: PodRef,
    /// Its cgroup below the tree's root.
    pub path: CgroupPath,
    /// Its containers: name, or id, and cgroup.
    pub containers: Vec<(String, CgroupPath)>,
}

/// What the thread goes by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Aim {
    /// The pods that may exceed their limits.
    pub protected: Vec<Protected>,
    /// What LSE and LSR pods request.
    pub reserved: MilliCpu,
    /// The cgroups whose usage is not the share pool's: LSE and LSR pods, and the besteffort tier.
    pub outside_pool: Vec<CgroupPath>,
}

/// What the reconciler is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub pod: PodRef,
    /// When, `CLOCK_MONOTONIC` nanoseconds.
    pub at: u64,
    pub what: What,
    /// True in observe mode: nothing was written.
    pub dry_run: bool,
}

/// What became of a pod's quotas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A container's quota changed.
    Step {
        /// Its name, or id.
        container: String,
        /// From what, to what, and why.
        step: Step,
    },
    /// The kernel refused a quota or a burst, and the pod is left alone for a while.
    Refused(String),
}

/// A step of a container's quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// How long the container had been stopped at its quota, nanoseconds.
    pub throttled_nanos: u64,
    /// Its quota before, microseconds in a period.
    pub from_us: u64,
    /// Its quota now.
    pub to_us: u64,
    pub period_us: u64,
    pub why: Why,
}

podwarden_policy::names! {
    /// Why a quota changed, as events and metrics have it.
    pub enum Why {
        /// The container was throttled and the node has free CPU.
        Throttled = "throttled",
        /// The node's share pool is at its threshold.
        NodeBusy = "nodeBusy",
        /// The container used up its tokens.
        NoTokens = "noTokens",
    }
}

/// What the thread works on.
pub struct Parts {
    pub tree: Tree,
    /// `cpuBurstStrategy`.
    pub config: BurstConfig,
    /// CPUs of the node, as it is configured.
    pub cpus: MilliCpu,
    /// CPUs that are online: a container uses no more at a time.
    pub online: u64,
    /// False in observe mode: nothing is written.
    pub enforce: bool,
    /// The file in which it is kept what was found, see [`super::found_file`].
    pub found: PathBuf,
    /// Parent of kubepods, relative to each controller's mount point.
    pub cgroup_root: String,
    /// Whether the thread may be SCHED_FIFO: an ordinary one can wait for hundreds of milliseconds.
    pub real_time: bool,
    /// Where the thread notes its quotas.
    pub ours: Arc<Ours>,
}

/// The reconciler's end of the thread.
#[derive(Debug)]
pub struct Burster {
    /// Everything is as it was found when it has ended.
    worker: Worker<Aim>,
    reports: UnboundedReceiver<Report>,
    state: Arc<Latest<Option<NodeState>>>,
}

impl Burster {
    /// Starts the thread, with nothing to do.
    pub fn start(parts: Parts) -> io::Result<Self> {
        let (tell, reports) = unbounded_channel();
        let state = Arc::new(Latest::default());
        let thread = thread::Thread::new(parts, tell, Arc::clone(&state));
        Ok(Self {
            reports,
            state,
            worker: Worker::start("colocation", move |waiting| thread.run(waiting))?,
        })
    }

    /// Whether the node has CPU to give.
    pub fn state(&self) -> NodeState {
        self.state.get().unwrap_or(NodeState::Unknown)
    }

    /// The pods and the share pool from now on.
    pub fn aim(&self, aim: Aim) {
        self.worker.tell(aim);
    }

    /// The next report. Cancel-safe.
    pub async fn report(&mut self) -> Option<Report> {
        self.reports.recv().await
    }
}
