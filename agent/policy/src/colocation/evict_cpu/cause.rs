//! Why best-effort pods go, and why one was chosen.

use core::{cmp::Reverse, fmt};

use derive_more::Display;

use super::{Candidate, order};
use crate::{
    signal::ScopeName,
    units::{Bytes, MilliCpu},
};

/// Why best-effort pods go. Small, for it is part of the reactor's reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
pub enum Cause {
    /// They may use too little of what they request.
    #[display(
        "best effort may use {limit} of {request} that it requests, at most {lower_percent} %"
    )]
    Satisfaction {
        /// What they may use.
        limit: MilliCpu,
        /// What they request.
        request: MilliCpu,
        /// `cpuEvictBESatisfactionLowerPercent`.
        lower_percent: u8,
        /// `cpuEvictBESatisfactionUpperPercent`.
        upper_percent: u8,
    },
    /// The node's CPUs are in use.
    #[display("the node uses {used} of {capacity} CPU, {threshold_percent} % or more")]
    Usage {
        /// What the node uses.
        used: MilliCpu,
        /// What it has.
        capacity: MilliCpu,
        /// `cpuEvictThresholdPercent`.
        threshold_percent: u8,
    },
    /// They request more than the node has to spare.
    #[display(
        "best effort requests {requested} of {offered} CPU that the node has to spare, more than {threshold_percent} %"
    )]
    Allocatable {
        /// What they request.
        requested: MilliCpu,
        /// What the node has to spare.
        offered: MilliCpu,
        /// `cpuAllocatableEvictThresholdPercent`.
        threshold_percent: u8,
    },
    /// They request more memory than the node has to spare.
    #[display(
        "best effort requests {requested} of {offered} of memory that the node has to spare, more than \
         {threshold_percent} %"
    )]
    MemoryAllocatable {
        /// What they request.
        requested: Bytes,
        /// What the node has to spare.
        offered: Bytes,
        /// `memoryAllocatableEvictThresholdPercent`.
        threshold_percent: u8,
    },
}

impl Cause {
    /// The koordlet's name of the strategy, by which a pod accepts it ([`super::AcceptedEvictions::allows`]).
    pub const fn strategy(self) -> &'static str {
        match self {
            Self::Satisfaction { .. } => "BECPUEvict",
            Self::Usage { .. } => "CPUEvict",
            Self::Allocatable { .. } => "CPUAllocatableEvict",
            Self::MemoryAllocatable { .. } => "MemoryAllocatableEvict",
        }
    }

    /// True where only pods go that carry [`EVICTION_ENABLED_LABEL`](super::EVICTION_ENABLED_LABEL).
    pub const fn needs_label(self) -> bool {
        match self {
            Self::Satisfaction { .. } => false,
            Self::Usage { .. } | Self::Allocatable { .. } | Self::MemoryAllocatable { .. } => true,
        }
    }

    /// Sorts by the order in which pods go: by satisfaction as in [`order`], else the lower priority first, then the
    /// larger gain, then by uid (`getPodEvictInfoAndSortByPriority`).
    pub fn sort(self, candidates: &mut [Candidate]) {
        match self {
            Self::Satisfaction { .. } => order(candidates),
            Self::Usage { .. } | Self::Allocatable { .. } | Self::MemoryAllocatable { .. } => {
                candidates.sort_by(|a, b| {
                    let key = |one: &Candidate| (one.priority, Reverse(self.gain(one)));
                    key(a).cmp(&key(b)).then_with(|| a.uid.cmp(&b.uid))
                });
            }
        }
    }

    /// Where such an eviction is reported, with the unit of its figures.
    pub const fn scope(self) -> ScopeName {
        match self {
            Self::MemoryAllocatable { .. } => ScopeName::BatchMemory,
            Self::Satisfaction { .. } | Self::Usage { .. } | Self::Allocatable { .. } => {
                ScopeName::Cpu
            }
        }
    }

    /// What a pod's end counts for, thousandths of a CPU or bytes by [`Self::scope`].
    pub const fn gain(self, candidate: &Candidate) -> u64 {
        match self {
            Self::Usage { .. } => candidate.used.0,
            Self::Satisfaction { .. } | Self::Allocatable { .. } => candidate.request.0,
            Self::MemoryAllocatable { .. } => candidate.memory_request.0,
        }
    }

    /// From which level on pods go, what was found, and to which level; thousandths of a CPU or bytes by
    /// [`Self::scope`].
    pub fn levels(self) -> (u64, u64, u64) {
        let part = |all: u64, percent: u8| Bytes(all).percent(percent.into()).0;
        let (all, found, level, target) = match self {
            Self::Satisfaction {
                limit,
                request,
                lower_percent,
                upper_percent,
            } => (request.0, limit.0, lower_percent, upper_percent),
            Self::Usage {
                used,
                capacity,
                threshold_percent,
            } => (capacity.0, used.0, threshold_percent, threshold_percent),
            Self::Allocatable {
                requested,
                offered,
                threshold_percent,
            } => (offered.0, requested.0, threshold_percent, threshold_percent),
            Self::MemoryAllocatable {
                requested,
                offered,
                threshold_percent,
            } => (offered.0, requested.0, threshold_percent, threshold_percent),
        };
        (part(all, level), found, part(all, target))
    }
}

/// Why a pod was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuRank {
    cause: Cause,
    priority: i32,
    used: MilliCpu,
    request: MilliCpu,
    memory_request: Bytes,
}

impl CpuRank {
    /// The rank of a candidate.
    pub const fn new(cause: Cause, candidate: &Candidate) -> Self {
        Self {
            cause,
            priority: candidate.priority,
            used: candidate.used,
            request: candidate.request,
            memory_request: candidate.memory_request,
        }
    }
}

impl fmt::Display for CpuRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            cause,
            priority,
            used,
            request,
            memory_request,
        } = self;
        if let Cause::MemoryAllocatable { .. } = cause {
            return write!(
                f,
                "{cause}; the pod requests {memory_request}, priority {priority}"
            );
        }
        write!(
            f,
            "{cause}; the pod uses {used} of {request} requested, priority {priority}"
        )
    }
}
