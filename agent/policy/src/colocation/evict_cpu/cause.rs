//! Why best-effort pods go, and why one was chosen.

use core::{cmp::Reverse, fmt};

use super::{Candidate, order};
use crate::units::MilliCpu;

/// Why best-effort pods go. Small, for it is part of the reactor's reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// They may use too little of what they request.
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
    Usage {
        /// What the node uses.
        used: MilliCpu,
        /// What it has.
        capacity: MilliCpu,
        /// `cpuEvictThresholdPercent`.
        threshold_percent: u8,
    },
    /// They request more than the node offers.
    Allocatable {
        /// What they request.
        requested: MilliCpu,
        /// What is offered.
        offered: MilliCpu,
        /// `cpuAllocatableEvictThresholdPercent`.
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
        }
    }

    /// True where only pods go that carry [`EVICTION_ENABLED_LABEL`](super::EVICTION_ENABLED_LABEL).
    pub const fn needs_label(self) -> bool {
        match self {
            Self::Satisfaction { .. } => false,
            Self::Usage { .. } | Self::Allocatable { .. } => true,
        }
    }

    /// Sorts by the order in which pods go: by satisfaction as in [`order`], else the lower priority first, then the
    /// larger gain, then by uid (`getPodEvictInfoAndSortByPriority`).
    pub fn sort(self, candidates: &mut [Candidate]) {
        match self {
            Self::Satisfaction { .. } => order(candidates),
            Self::Usage { .. } | Self::Allocatable { .. } => candidates.sort_by(|a, b| {
                let key = |one: &Candidate| (one.priority, Reverse(self.gain(one)));
                key(a).cmp(&key(b)).then_with(|| a.uid.cmp(&b.uid))
            }),
        }
    }

    /// What a pod's end counts for.
    pub const fn gain(self, candidate: &Candidate) -> MilliCpu {
        match self {
            Self::Usage { .. } => candidate.used,
            Self::Satisfaction { .. } | Self::Allocatable { .. } => candidate.request,
        }
    }

    /// From which level on pods go, what was found, and to which level.
    pub fn levels(self) -> (MilliCpu, MilliCpu, MilliCpu) {
        let part = |all: MilliCpu, percent: u8| {
            let part = u128::from(all.0) * u128::from(percent) / 100;
            MilliCpu(u64::try_from(part).unwrap_or(u64::MAX))
        };
        let (all, found, level, target) = match self {
            Self::Satisfaction {
                limit,
                request,
                lower_percent,
                upper_percent,
            } => (request, limit, lower_percent, upper_percent),
            Self::Usage {
                used,
                capacity,
                threshold_percent,
            } => (capacity, used, threshold_percent, threshold_percent),
            Self::Allocatable {
                requested,
                offered,
                threshold_percent,
            } => (offered, requested, threshold_percent, threshold_percent),
        };
        (part(all, level), found, part(all, target))
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Satisfaction {
                limit,
                request,
                lower_percent,
                ..
            } => write!(
                f,
                "best effort may use {limit} of {request} that it requests, at most {lower_percent} %"
            ),
            Self::Usage {
                used,
                capacity,
                threshold_percent,
            } => write!(
                f,
                "the node uses {used} of {capacity} CPU, {threshold_percent} % or more"
            ),
            Self::Allocatable {
                requested,
                offered,
                threshold_percent,
            } => write!(
                f,
                "best effort requests {requested} of {offered} CPU that the node offers, more than \
                 {threshold_percent} %"
            ),
        }
    }
}

/// Why a pod was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuRank {
    cause: Cause,
    priority: i32,
    used: MilliCpu,
    request: MilliCpu,
}

impl CpuRank {
    /// The rank of a candidate.
    pub const fn new(cause: Cause, candidate: &Candidate) -> Self {
        Self {
            cause,
            priority: candidate.priority,
            used: candidate.used,
            request: candidate.request,
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
        } = self;
        write!(
            f,
            "{cause}; the pod uses {used} of {request} requested, priority {priority}"
        )
    }
}
