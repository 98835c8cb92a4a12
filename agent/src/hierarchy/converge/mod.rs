//! Converges the tiers' memory limits to their `qosReserved` targets, see [`podwarden_policy::converge`].
//!
//! ```text
//!  reconciler ── targets, levels, foreign values to answer ──> thread ── limits, memory.reclaim
//!             <── opened, fell, closed ────────────────────────┘  └──> ours: what drift is not
//! ```
//!
//! The thread is its own because writing to `memory.high` and `memory.reclaim` may wait for the kernel to
//! reclaim. It alone writes these files of the tiers, counts that where all writes are counted, and reads
//! them anew before each write. It sleeps
//! until it is told something; only while a tier is above its target does it look by itself, at most
//! `thread::LONGEST` apart.
//!
//! | module | purpose |
//! |---|---|
//! | `thread` | waits, looks, tells |
//! | `tier` | one tier: its files read, a step decided, what came of it |
//! | `progress` | figures of a tier, and reports of its gap |
//! | `pods` | a tier's pods, slowed one by one where it holds a critical one |
//! | `writes` | every write to these files |
//! | `found` | what the files held before podwarden wrote to them, kept past a kill |
//! | `guard` | puts that back when the agent is killed, and thaws what it had frozen |
//! | `ours` | podwarden's recent writes, so that they do not count as foreign |

mod found;
pub(crate) mod guard;
mod ours;
mod pods;
mod progress;
mod thread;
mod tier;
mod writes;

use std::{
    io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use podwarden_cgroup::{CgroupPath, Tree};
use podwarden_policy::{Bytes, limits::Limit, plan};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

pub use self::{
    found::file as found_file,
    ours::{Ours, Whose},
};
use crate::{
    api::types::TierConvergence,
    base::{cpus, worker::Worker},
    config::{ConvergenceConfig, OnExit},
    hierarchy::act::{Backend, Counters},
    reactor::plan::ScopeName,
};

/// What a tier is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aim {
    /// Which tier.
    pub scope: ScopeName,
    /// Its cgroup below the tree's root.
    pub path: CgroupPath,
    /// Its hard limit; `None` where another writer decides it.
    pub target: Option<Limit<Bytes>>,
    /// The level at which the reactor evicts from it.
    pub level: Option<Bytes>,
    /// When the pods became known that the target follows from, `CLOCK_MONOTONIC` nanoseconds.
    pub told: u64,
    /// This agent made the cgroup: no other writer has set a limit.
    pub made: bool,
    /// Its tasks may be slowed, see [`podwarden_policy::converge::may_be_slowed`].
    pub slows: bool,
    /// The pods to slow one by one where they may not.
    pub pods: Vec<PodAim>,
}

/// A pod that is slowed in its tier's stead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodAim {
    /// Its cgroup below the tree's root.
    pub path: CgroupPath,
    /// The memory that it requests.
    pub requests: Bytes,
}

/// What the reconciler is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// A tier uses more than its target leaves it.
    Opened(Gap),
    /// Its usage has fallen: the reactor's level may follow.
    Fell(ScopeName),
    /// Its hard limit is where it belongs.
    Closed {
        /// As when it opened.
        gap: Gap,
        /// What it uses now, bytes.
        usage: u64,
        /// When, `CLOCK_MONOTONIC` nanoseconds.
        at: u64,
        /// Page cache that was dropped meanwhile, bytes.
        reclaimed: u64,
        /// Limits that were written meanwhile.
        writes: u64,
    },
    /// The kernel refuses a step; reported once for as long as it does.
    Refused(String),
}

/// A tier above its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// Which tier.
    pub scope: ScopeName,
    /// Since when, `CLOCK_MONOTONIC` nanoseconds.
    pub since: u64,
    /// Its target, bytes.
    pub target: u64,
    /// What it used then, bytes.
    pub usage: u64,
}

#[derive(Debug)]
enum Message {
    Aim(Vec<Aim>),
    /// A foreign value in this tier's hard limit may be overwritten.
    Answer(CgroupPath),
    /// Usage may have fallen.
    Look,
    /// As the end of the channel, with the limits left to the agent that takes over.
    HandOver,
}

/// Figures of each tier that has a target.
type Figures = Arc<Mutex<Vec<(ScopeName, TierConvergence)>>>;

/// What the thread works on.
pub struct Parts {
    pub tree: Tree,
    /// Who sets values.
    pub backend: Arc<dyn Backend>,
    /// Where writes are counted.
    pub counters: Arc<Counters>,
    pub config: ConvergenceConfig,
    /// The file in which it is kept what was found, see [`found_file`].
    pub found: PathBuf,
    /// The guard's arguments; `None` for no guard.
    pub guard: Option<guard::Place>,
}

impl Parts {
    /// True where the agent freezes pods, so that there is a guard from the start.
    fn freezes(&self) -> bool {
        self.guard
            .as_ref()
            .is_some_and(|guard| guard.frozen.is_some())
    }
}

/// The reconciler's end of the thread.
#[derive(Debug)]
pub struct Converger {
    /// The limits are what [`OnExit`] says when it has ended.
    worker: Worker<Message>,
    reports: UnboundedReceiver<Report>,
    ours: Arc<Ours>,
    figures: Figures,
}

impl Converger {
    /// Starts the thread, with nothing to do.
    pub fn start(parts: Parts) -> io::Result<Self> {
        let (tell, reports) = unbounded_channel();
        let ours = Arc::new(Ours::default());
        let figures = Figures::default();
        let thread = thread::Thread::new(parts, Arc::clone(&ours), tell, Arc::clone(&figures));
        Ok(Self {
            reports,
            ours,
            figures,
            worker: Worker::start("converge", move |waiting| thread.run(waiting))?,
        })
    }

    /// The tiers' targets and levels from now on.
    pub fn aim(&self, aims: Vec<Aim>) {
        self.worker.tell(Message::Aim(aims));
    }

    /// Usage may have fallen.
    pub fn look(&self) {
        self.worker.tell(Message::Look);
    }

    /// The next report.
    pub async fn report(&mut self) -> Option<Report> {
        self.reports.recv().await
    }

    /// What was written here lately.
    pub fn ours(&self) -> &Ours {
        &self.ours
    }

    /// How far each tier has come.
    pub fn figures(&self) -> Vec<(ScopeName, TierConvergence)> {
        let figures = self.figures.lock();
        figures.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A foreign write put `found` into the hard limit of this cgroup; correct it.
    pub fn answer(&self, path: &CgroupPath, found: Limit<Bytes>) {
        self.ours.answer(path, found);
        self.worker.tell(Message::Answer(path.to_owned()));
    }

    /// Ends the thread and leaves the limits in force, for the agent that waits to take over; the guard acts where that
    /// does not come to it.
    pub fn hand_over(self) {
        self.worker.tell(Message::HandOver);
    }
}

/// What a hard limit stays above usage, by the CPUs that are online now: more of them may be before the next step.
fn margin() -> Bytes {
    plan::margin(cpus::online())
}

impl OnExit {
    pub(crate) const fn restores(self) -> bool {
        matches!(self, Self::Restore)
    }
}
