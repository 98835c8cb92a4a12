//! Which best-effort pods go where the CPU is short
//! (Koordinator `pkg/koordlet/qosmanager/plugins/cpuevict/cpu_evict.go`).

use alloc::{collections::BTreeMap, string::String, vec::Vec};
use core::cmp::{Ordering, Reverse};

pub use self::cause::{Cause, CpuRank};
use super::class::Band;
use crate::{
    model::PodUid,
    units::{Bytes, MilliCpu},
};

mod cause;

/// `cpuEvictBEUsageThresholdPercent` unless configured otherwise.
pub const DEFAULT_USAGE_PERCENT: u64 = 90;
/// How far below `cpuEvictThresholdPercent` the node is brought unless configured otherwise.
pub const RELEASE_BUFFER_PERCENT: u64 = 2;
/// The highest `cpuEvictBESatisfactionLowerPercent`.
pub const MAX_LOWER_PERCENT: u64 = 60;
/// Best effort with a limit below one CPU always counts as using all of it.
const ONE_CPU: u64 = 1000;

/// A percentage in a byte.
pub fn small(percent: u64) -> u8 {
    u8::try_from(percent).unwrap_or(u8::MAX)
}

/// The figures of best effort over an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BestEffort {
    /// What it could use: the quota or the CPUs that suppression left it.
    pub limit: MilliCpu,
    /// What it used.
    pub used: MilliCpu,
    /// What its pods request.
    pub request: MilliCpu,
}

/// `cpuEvictBESatisfactionLowerPercent`, `cpuEvictBESatisfactionUpperPercent` and
/// `cpuEvictBEUsageThresholdPercent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Satisfaction {
    lower_percent: u64,
    upper_percent: u64,
    usage_percent: u64,
}

/// A threshold that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ThresholdError {
    /// The lower one.
    #[error("cpuEvictBESatisfactionLowerPercent: {0} is out of range: use 1 to 60")]
    Lower(u64),
    /// The upper one.
    #[error("cpuEvictBESatisfactionUpperPercent: {0} is out of range: use 1 to 99")]
    Upper(u64),
    /// Both.
    #[error(
        "cpuEvictBESatisfactionUpperPercent: {upper} is below cpuEvictBESatisfactionLowerPercent, {lower}: \
         raise it, or lower that"
    )]
    Order {
        /// The lower one.
        lower: u64,
        /// The upper one.
        upper: u64,
    },
}

impl Satisfaction {
    /// At most this percentage of the requests is too little.
    pub fn lower_percent(&self) -> u8 {
        small(self.lower_percent)
    }

    /// This percentage is enough.
    pub fn upper_percent(&self) -> u8 {
        small(self.upper_percent)
    }

    /// Checks that the percentages are in their ranges, and the lower one not above the upper one
    /// (`isSatisfactionConfigValid`).
    pub fn new(lower: u64, upper: u64, usage: Option<u64>) -> Result<Self, ThresholdError> {
        if !(1..=MAX_LOWER_PERCENT).contains(&lower) {
            return Err(ThresholdError::Lower(lower));
        }
        if !(1..100).contains(&upper) {
            return Err(ThresholdError::Upper(upper));
        }
        if upper < lower {
            return Err(ThresholdError::Order { lower, upper });
        }
        Ok(Self {
            lower_percent: lower,
            upper_percent: upper,
            usage_percent: usage.unwrap_or(DEFAULT_USAGE_PERCENT),
        })
    }
}

/// The request of best-effort pods to release, milli-CPUs; zero where none need go
/// (`calculateMilliReleaseByBESatisfaction`).
///
/// Best effort is unsatisfied where its limit is at most the lower percentage of its request, and uses the
/// limit, on average over the window and now. The smaller of both releases brings its satisfaction to the upper
/// percentage. `average` is `None` where less than a third of the window has figures.
pub fn release_for_satisfaction(
    average: Option<BestEffort>,
    now: BestEffort,
    thresholds: &Satisfaction,
) -> MilliCpu {
    let Some(average) = average else {
        return MilliCpu::ZERO;
    };
    release(&average, thresholds).min(release(&now, thresholds))
}

/// Whether there are figures of at least a third of the window.
pub const fn covers_window(figures: u64, interval_seconds: u64, window_seconds: u64) -> bool {
    figures.saturating_mul(interval_seconds) >= window_seconds / 3
}

fn release(best_effort: &BestEffort, thresholds: &Satisfaction) -> MilliCpu {
    let [limit, used, request] =
        [best_effort.limit, best_effort.used, best_effort.request].map(|cpu| u128::from(cpu.0));
    let uses_it =
        limit < u128::from(ONE_CPU) || used * 100 >= limit * u128::from(thresholds.usage_percent);
    let unsatisfied = limit * 100 <= request * u128::from(thresholds.lower_percent);
    if limit == 0 || request == 0 || !uses_it || !unsatisfied {
        return MilliCpu::ZERO;
    }
    let wanted = request * u128::from(thresholds.upper_percent);
    MilliCpu(u64::try_from(wanted.saturating_sub(limit * 100) / 100).unwrap_or(u64::MAX))
}

/// The CPU to release where the node uses at least `threshold_percent`, down to `lower_percent` of it: whole
/// percents of the node (`calculateMilliReleaseByUsedThresholdPercent`).
pub fn release_for_usage(
    capacity: MilliCpu,
    used: MilliCpu,
    threshold_percent: u64,
    lower_percent: Option<u64>,
) -> MilliCpu {
    let usage = u128::from(used.0) * 100;
    let Some(usage) = usage.checked_div(u128::from(capacity.0)) else {
        return MilliCpu::ZERO;
    };
    if usage < u128::from(threshold_percent) {
        return MilliCpu::ZERO;
    }
    let lower = lower_percent.unwrap_or(threshold_percent.saturating_sub(RELEASE_BUFFER_PERCENT));
    let release = u128::from(capacity.0) * usage.saturating_sub(u128::from(lower)) / 100;
    MilliCpu(u64::try_from(release).unwrap_or(u64::MAX))
}

/// Requests of pods against what the node allocates, by band: only batch and mid are reclaimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllocatableThreshold {
    /// Above this percentage of the allocatable amount pods go.
    pub percent: u64,
    /// Down to this one.
    pub lower_percent: u64,
    /// Pods of a higher priority stay.
    pub priority: i32,
}

/// What one pod requests of its band's CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BandRequest {
    /// Its band.
    pub band: Band,
    /// Its priority.
    pub priority: i32,
    /// The request.
    pub request: MilliCpu,
}

/// What to release of each band's CPU where the pods' requests exceed what the node allocates of it, as after
/// the reclaimed amount fell (`calculateMilliReleaseByAllocatableThresholdPercent`).
pub fn release_for_allocatable(
    allocatable: &BTreeMap<Band, MilliCpu>,
    pods: &[BandRequest],
    threshold: &AllocatableThreshold,
) -> BTreeMap<Band, MilliCpu> {
    let mut requested: BTreeMap<Band, MilliCpu> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| pod.priority <= threshold.priority) {
        let sum = requested.entry(pod.band).or_default();
        *sum = sum.saturating_add(pod.request);
    }
    let release = |(band, requested): (Band, MilliCpu)| {
        let all = allocatable.get(&band).copied().unwrap_or_default();
        let percent = |percent| u128::from(all.0) * u128::from(percent);
        let request = u128::from(requested.0) * 100;
        let release = if all.is_zero() {
            request
        } else if request > percent(threshold.percent) {
            request.saturating_sub(percent(threshold.lower_percent))
        } else {
            0
        };
        let release = MilliCpu(u64::try_from(release / 100).unwrap_or(u64::MAX));
        (!release.is_zero()).then_some((band, release))
    };
    requested.into_iter().filter_map(release).collect()
}

/// A best-effort pod that may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Which pod.
    pub uid: PodUid,
    /// `spec.priority`.
    pub priority: i32,
    /// What it requests of batch CPU.
    pub request: MilliCpu,
    /// What it uses.
    pub used: MilliCpu,
    /// What it requests of batch memory.
    pub memory_request: Bytes,
}

/// The order in which best-effort pods go: the lower priority first, then the larger part of its request that
/// a pod uses, then by uid (`getBEPodEvictInfoAndSort`).
pub fn order(candidates: &mut [Candidate]) {
    candidates.sort_by(|a, b| {
        a.priority
            .cmp(&b.priority)
            .then_with(|| by_usage(a, b))
            .then_with(|| a.uid.cmp(&b.uid))
    });
}

/// Usage in parts of the request, the larger first; none where nothing is requested.
fn by_usage(a: &Candidate, b: &Candidate) -> Ordering {
    let part = |of: &Candidate, other: &Candidate| {
        let other = u128::from(other.request.0.max(1));
        let used = if of.request.is_zero() { 0 } else { of.used.0 };
        u128::from(used) * other
    };
    Reverse(part(a, b)).cmp(&Reverse(part(b, a)))
}

/// The annotation that lists which evictions a pod accepts.
pub const EVICTION_POLICY_ANNOTATION: &str = "koordinator.sh/eviction-policy";

/// The label by which a pod may be evicted by `CPUEvict` and `CPUAllocatableEvict`, with the value `true`
/// (`PodEvictEnabled`).
pub const EVICTION_ENABLED_LABEL: &str = "koordinator.sh/eviction-enabled";

/// Which evictions a pod accepts (`IsEvictionPolicyAllowed`).
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum AcceptedEvictions {
    /// No annotation: all.
    #[default]
    All,
    /// The listed ones; none where the annotation cannot be read.
    Only(Vec<String>),
}

impl AcceptedEvictions {
    /// True where the pod accepts the eviction of this name.
    pub fn allows(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.iter().any(|listed| listed == name),
        }
    }
}
