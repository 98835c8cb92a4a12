//! The reactor's reports to the reconciler: small values through a wait-free queue, so that reporting
//! neither allocates nor blocks.

use podwarden_policy::{evict::Place, model::QosClass, worth::Growth};

pub use podwarden_policy::signal::Detector;

use super::plan::ScopeName;

/// Usage was found at a level. Times are `CLOCK_MONOTONIC`, nanoseconds; sizes bytes, of the scope `pids`
/// processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crossing {
    /// Whose level.
    pub scope: ScopeName,
    /// The level that was in force.
    pub level: u64,
    /// How far that was below the configured one, because of how fast the scope fills.
    pub headroom: u64,
    /// How fast, bytes per second.
    pub fill_rate: u64,
    /// Usage when verified.
    pub usage: u64,
    /// What of it counts against the level ([`super::plan::Scope::used`]): the figure that decided.
    pub working_set: u64,
    /// What it has to come below: the level, or less once a pod was evicted for it (`evictionMinimumReclaim`).
    pub target: u64,
    /// What noticed first.
    pub detector: Detector,
    /// When usage passed the level, as exactly as `detector` allows.
    pub crossed: u64,
    /// When the reactor's wait ended for it.
    pub wake: u64,
}

/// A victim was chosen and, unless in observe mode, killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chosen {
    /// Counts evictions.
    pub number: u64,
    /// The pod, by [`super::plan::Victim::token`].
    pub token: u64,
    pub class: QosClass,
    /// Why.
    pub place: Place,
    /// Its usage, bytes.
    pub usage: u64,
    /// What of that is its working set.
    pub working_set: u64,
    /// What of its usage is shared memory, bytes: right after the kill, before any of it can be free.
    pub shared: u64,
    /// What led to it.
    pub crossing: Crossing,
    /// When the choice stood.
    pub verified: u64,
    /// What was done; `None` in observe mode.
    pub outcome: Option<Outcome>,
}

/// A kill that reached a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// When the last SIGKILL had been sent; where the pod has time to end, when that began.
    pub killed: u64,
    /// Processes that were sent SIGKILL, or that are to end.
    pub processes: u32,
    /// True when the pod's sandbox was left alive, for the runtime to take its network down.
    pub spared: bool,
    /// False when something of it may still run.
    pub complete: bool,
    /// The time that it has to end; 0 where it was killed, as always by the reactor.
    pub grace_seconds: u16,
}

/// One message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// Usage was found at a level.
    Crossed(Crossing),
    Chosen(Chosen),
    /// A victim was chosen and could not be killed; the next one is tried.
    NotKilled {
        /// The pod, by [`super::plan::Victim::token`].
        token: u64,
        /// What led to it.
        crossing: Crossing,
    },
    /// What was started in an evicted pod filled memory, and was killed in place of another pod.
    KilledAgain {
        /// The pod, by [`super::plan::Victim::token`].
        token: u64,
        /// What led to it.
        crossing: Crossing,
        /// What it used, bytes.
        usage: u64,
    },
    /// The memory of eviction `number` is free: at most a tenth of it is left, or no process in it and no page
    /// cache that the kernel would give back. Or it was not after the wait's end.
    Freed {
        /// [`Chosen::number`].
        number: u64,
        /// When it was seen; `None` when the wait ended first.
        at: Option<u64>,
        /// What its cgroup still holds, bytes: memory of volumes and `/dev/shm` until they are unmounted.
        left: u64,
    },
    /// Usage is at a level, and as many pods were evicted in the last minute as are allowed
    /// (`reactor.maxEvictionsPerMinute`); said once until usage falls.
    RateLimited(Crossing),
    /// Usage is at a level, and what grew is no candidate: evictions keep the kubelet's pace
    /// ([`podwarden_policy::worth`]); said once until usage falls.
    OthersGrow(Crossing, Growth),
    /// Usage is at a level, and pods of which no source has told yet use so much of it, bytes or processes, that no other
    /// goes for it; said once until usage falls, and each second where tasks wait for memory.
    StrangersGrow(Crossing, u64),
    /// Usage is at a level, memory of evicted pods is on its way, and all that are left use no more than they
    /// requested; said once until usage falls.
    Awaited(Crossing),
    /// Usage is at a level and nothing may be evicted; said once until usage falls.
    NoCandidate(Crossing),
}
