//! The keys of `colocation`, named as in Koordinator's NodeSLO.

use std::{str::FromStr, time::Duration};

use podwarden_policy::colocation::{
    burst::{BurstConfig, Policy},
    evict_cpu::{AllocatableThreshold, Satisfaction},
    memory_evict::Levels,
    suppress::{self, Threshold},
};
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::{
    reclaimed::{RawReclaimed, ReclaimedConfig},
    values::{
        BandwidthPercent, BeUsagePercent, BurstPercent, BurstSeconds, CacheEnd, CacheStart,
        ColdSeconds, CpuEvictLower, CpuEvictPercent, EvictPriority, EvictWindow, FloorPercent,
        MemoryEvictLower, MemoryEvictPercent, QuotaBurstPercent, ReclaimInterval,
        ReclaimStepPercent, SatisfactionLower, SatisfactionUpper, SharePoolPercent,
        SuppressPercent, WaitObjective,
    },
};

/// `colocation`. Every strategy is off until it is switched on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ColocationConfig {
    /// `cpuBurstStrategy`. Default: policy `none`.
    pub burst: BurstConfig,
    /// `cpuWaitStrategy`. Default: off.
    pub wait: WaitConfig,
    /// `memoryEvictThresholdPercent` and `memoryEvictLowerPercent`. Default: off.
    pub memory_evict: Option<Levels>,
    /// `cpuSuppressThresholdPercent` and its companions; `None` where it is off. Default: off.
    pub suppress: Option<SuppressConfig>,
    /// `memoryReclaimStrategy`. Default: off.
    pub proactive: ProactiveConfig,
    /// `resctrlStrategy`. Default: off.
    pub resctrl: ResctrlConfig,
    /// `cpuEvictBESatisfactionLowerPercent` and its companions. Default: off.
    pub cpu_evict: CpuEvictConfig,
    /// `reclaimed`. Default: off.
    pub reclaimed: ReclaimedConfig,
}

/// `colocation.cpuWaitStrategy`: best effort gets less CPU while a protected pod waits for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitConfig {
    /// `enable`. Default: false.
    pub enable: bool,
    /// `objective`: the wait of a protected pod that is too long, 100 us to 1 s. Default: 5 ms.
    pub objective: Duration,
    /// `minPercent`: what best effort keeps in any case, percent of the node's CPUs, 1 to 100. Default: 5.
    pub min_percent: u64,
}

/// `colocation.cpuSuppressThresholdPercent`: best effort is held to the koordlet's formula.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SuppressConfig {
    /// `cpuSuppressThresholdPercent`, 1 to 100, and `cpuSuppressMinPercent`, 1 to 100. Default of the latter: none.
    pub threshold: Threshold,
    /// `cpuSuppressPolicy`. Default: `cpuset`.
    pub policy: suppress::Policy,
}

/// `colocation.memoryReclaimStrategy`: best-effort and cold pods give back page cache that they do not use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProactiveConfig {
    /// `enable`. Default: false.
    pub enable: bool,
    /// `intervalSeconds`: between two steps of a pod, 1 s to 300 s. Default: 6 s.
    pub interval: Duration,
    /// `stepPercent`: what a pod without pressure gives in a step, percent of its usage, 1 to 10. Default: 1.
    pub step_percent: u64,
    /// `coldSeconds`: an LS pod gives once it has used less than 1 % of a CPU for so long, 10 s to 24 h. Default: 600 s.
    pub cold: Duration,
}

/// `colocation.resctrlStrategy`: last-level cache and memory bandwidth by class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResctrlConfig {
    /// `enable`. Default: false.
    pub enable: bool,
    /// `lsr`: of LSE and LSR pods. Default: all.
    pub lsr: ResctrlClass,
    /// `ls`: of LS pods. Default: all.
    pub ls: ResctrlClass,
    /// `be`: of BE pods. Default: 30 % of the cache, all of the bandwidth.
    pub be: ResctrlClass,
}

/// What a class may use; percentages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResctrlClass {
    /// `catRangeStartPercent`: where its part of the cache begins, 0 to 99. Default: 0.
    pub start: i32,
    /// `catRangeEndPercent`: where it ends, 1 to 100.
    pub end: i32,
    /// `mbaPercent`: of the memory bandwidth, 1 to 100. Default: 100.
    pub bandwidth: Option<i32>,
}

impl Default for ResctrlConfig {
    fn default() -> Self {
        RawResctrl::default().into()
    }
}

impl Default for ProactiveConfig {
    fn default() -> Self {
        RawProactive::default().into()
    }
}

/// Best-effort pods go where the CPU is short, or where they request more than the node has to spare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuEvictConfig {
    /// `cpuEvictBESatisfactionLowerPercent`, `cpuEvictBESatisfactionUpperPercent` and
    /// `cpuEvictBEUsageThresholdPercent`.
    pub satisfaction: Option<Satisfaction>,
    /// `cpuEvictTimeWindowSeconds`: what the satisfaction is averaged over, 1 s to 1 h. Default: 2 s.
    pub window: Duration,
    /// `cpuEvictThresholdPercent`.
    pub usage: Option<CpuUsageLevels>,
    /// `cpuAllocatableEvictThresholdPercent`.
    pub allocatable: Option<AllocatableThreshold>,
    /// `memoryAllocatableEvictThresholdPercent`: the same for memory.
    pub memory_allocatable: Option<AllocatableThreshold>,
}

impl CpuEvictConfig {
    /// True where a strategy is on.
    pub const fn is_on(&self) -> bool {
        self.satisfaction.is_some()
            || self.usage.is_some()
            || self.allocatable.is_some()
            || self.memory_allocatable.is_some()
    }
}

impl Default for CpuEvictConfig {
    fn default() -> Self {
        Self {
            satisfaction: None,
            window: Duration::from_secs(EvictWindow::default().0),
            usage: None,
            allocatable: None,
            memory_allocatable: None,
        }
    }
}

/// Percent of the node's CPUs in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuUsageLevels {
    /// `cpuEvictThresholdPercent`, 1 to 100: at this and above, pods go.
    pub threshold: u64,
    /// `cpuEvictLowerPercent`, below the threshold: down to this. Default: 2 below the threshold.
    pub lower: Option<u64>,
}

impl Default for WaitConfig {
    fn default() -> Self {
        RawWait::default().into()
    }
}

/// `colocation`, as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawColocation {
    cpu_burst_strategy: RawBurst,
    pub(super) memory_evict_threshold_percent: Option<MemoryEvictPercent>,
    pub(super) memory_evict_lower_percent: Option<Spanned<MemoryEvictLower>>,
    pub(super) cpu_suppress_threshold_percent: Option<SuppressPercent>,
    pub(super) cpu_suppress_min_percent: Option<FloorPercent>,
    pub(super) cpu_suppress_policy: Option<suppress::Policy>,
    #[serde(rename = "cpuEvictBESatisfactionLowerPercent")]
    pub(super) satisfaction_lower: Option<SatisfactionLower>,
    #[serde(rename = "cpuEvictBESatisfactionUpperPercent")]
    pub(super) satisfaction_upper: Option<Spanned<SatisfactionUpper>>,
    #[serde(rename = "cpuEvictBEUsageThresholdPercent")]
    pub(super) satisfaction_usage: Option<BeUsagePercent>,
    pub(super) cpu_evict_time_window_seconds: Option<EvictWindow>,
    pub(super) cpu_evict_threshold_percent: Option<CpuEvictPercent>,
    pub(super) cpu_evict_lower_percent: Option<Spanned<CpuEvictLower>>,
    pub(super) cpu_allocatable_evict_threshold_percent: Option<CpuEvictPercent>,
    pub(super) cpu_allocatable_evict_lower_percent: Option<Spanned<CpuEvictLower>>,
    pub(super) memory_allocatable_evict_threshold_percent: Option<CpuEvictPercent>,
    pub(super) memory_allocatable_evict_lower_percent: Option<Spanned<CpuEvictLower>>,
    pub(super) allocatable_evict_priority_threshold: Option<EvictPriority>,
    cpu_wait_strategy: RawWait,
    memory_reclaim_strategy: RawProactive,
    resctrl_strategy: RawResctrl,
    reclaimed: RawReclaimed,
}

/// `colocation.cpuBurstStrategy`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawBurst {
    policy: Option<Policy>,
    cpu_burst_percent: Option<BurstPercent>,
    #[serde(rename = "cfsQuotaBurstPercent")]
    quota_percent: Option<QuotaBurstPercent>,
    #[serde(rename = "cfsQuotaBurstPeriodSeconds")]
    period: Option<BurstSeconds>,
    share_pool_threshold_percent: Option<SharePoolPercent>,
}

/// `colocation.cpuWaitStrategy`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawWait {
    enable: Option<bool>,
    objective: Option<WaitObjective>,
    min_percent: Option<FloorPercent>,
}

/// `colocation.memoryReclaimStrategy`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawProactive {
    enable: Option<bool>,
    interval_seconds: Option<ReclaimInterval>,
    step_percent: Option<ReclaimStepPercent>,
    cold_seconds: Option<ColdSeconds>,
}

/// `colocation.resctrlStrategy`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct RawResctrl {
    enable: Option<bool>,
    lsr: RawResctrlClass,
    ls: RawResctrlClass,
    be: RawResctrlClass,
}

/// A class of it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawResctrlClass {
    cat_range_start_percent: Option<CacheStart>,
    cat_range_end_percent: Option<CacheEnd>,
    mba_percent: Option<BandwidthPercent>,
}

impl RawResctrlClass {
    /// `end` where none is written.
    fn with(self, end: i32) -> ResctrlClass {
        ResctrlClass {
            start: self.cat_range_start_percent.unwrap_or_default().0,
            end: self.cat_range_end_percent.map_or(end, |end| end.0),
            bandwidth: Some(self.mba_percent.unwrap_or_default().0),
        }
    }
}

impl From<RawResctrl> for ResctrlConfig {
    /// The defaults of Koordinator's NodeSLO (`pkg/util/sloconfig/nodeslo_config.go`).
    fn from(raw: RawResctrl) -> Self {
        Self {
            enable: raw.enable.unwrap_or_default(),
            lsr: raw.lsr.with(100),
            ls: raw.ls.with(100),
            be: raw.be.with(30),
        }
    }
}

impl ResctrlConfig {
    /// The classes by their keys.
    pub(super) fn classes(&self) -> [(&'static str, ResctrlClass); 3] {
        [("lsr", self.lsr), ("ls", self.ls), ("be", self.be)]
    }
}

impl From<RawProactive> for ProactiveConfig {
    fn from(raw: RawProactive) -> Self {
        Self {
            enable: raw.enable.unwrap_or_default(),
            interval: Duration::from_secs(raw.interval_seconds.unwrap_or_default().0),
            step_percent: raw.step_percent.unwrap_or_default().0,
            cold: Duration::from_secs(raw.cold_seconds.unwrap_or_default().0),
        }
    }
}

impl From<RawWait> for WaitConfig {
    fn from(raw: RawWait) -> Self {
        Self {
            enable: raw.enable.unwrap_or_default(),
            objective: raw.objective.unwrap_or_default().0,
            min_percent: raw.min_percent.unwrap_or_default().0,
        }
    }
}

impl RawColocation {
    fn suppress(&self) -> Option<SuppressConfig> {
        let threshold = self.cpu_suppress_threshold_percent.as_ref()?;
        let floor = self.cpu_suppress_min_percent.as_ref();
        Some(SuppressConfig {
            threshold: Threshold {
                percent: threshold.0,
                min_percent: floor.map(|floor| floor.0),
            },
            policy: self.cpu_suppress_policy.unwrap_or_default(),
        })
    }

    /// With what depends on more than one key.
    pub(super) fn with(
        self,
        memory_evict: Option<Levels>,
        cpu_evict: CpuEvictConfig,
    ) -> ColocationConfig {
        ColocationConfig {
            cpu_evict,
            suppress: self.suppress(),
            burst: self.cpu_burst_strategy.into(),
            wait: self.cpu_wait_strategy.into(),
            proactive: self.memory_reclaim_strategy.into(),
            resctrl: self.resctrl_strategy.into(),
            memory_evict,
            reclaimed: self.reclaimed.into(),
        }
    }
}

impl From<RawBurst> for BurstConfig {
    fn from(raw: RawBurst) -> Self {
        Self {
            policy: raw.policy.unwrap_or_default(),
            burst_percent: raw.cpu_burst_percent.unwrap_or_default().0,
            quota_percent: raw.quota_percent.unwrap_or_default().0,
            period_seconds: raw.period.unwrap_or_default().0,
            share_pool_percent: raw.share_pool_threshold_percent.unwrap_or_default().0,
        }
    }
}

/// A whole number within a range.
pub(super) fn whole<T: FromStr + PartialOrd>(
    text: &str,
    range: std::ops::RangeInclusive<T>,
) -> Result<T, &'static str> {
    match text.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        Ok(_) => Err("out of range"),
        Err(_) => Err("not a whole number"),
    }
}

/// `-1` for as long as it likes.
pub(super) fn seconds(text: &str) -> Result<Option<u64>, &'static str> {
    match text {
        "-1" => Ok(None),
        text => whole(text, 1..=86_400).map(Some),
    }
}
