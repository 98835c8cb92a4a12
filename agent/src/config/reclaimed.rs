//! The keys of `colocation.reclaimed`, named as in Koordinator's ColocationStrategy.

use std::time::Duration;

use podwarden_policy::colocation::reclaimed::{Percents, Policy, Strategy};
use serde::Deserialize;

use super::values::{
    CeilingPercent, ColdStart, CpuReclaimPercent, MemoryReclaimPercent, SafetyMargin,
    UnallocatedPercent, UpdateDiff, UpdateTime, UsageWindow,
};

/// `colocation.reclaimed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReclaimedConfig {
    /// `enable`: compute and show what the node has to spare. Default: false.
    pub enable: bool,
    /// `publish`: keep it in the Node's status. Default: false.
    pub publish: bool,
    /// `enforce`: pods that ask for it get shares, quota and memory limit. Default: false.
    pub enforce: bool,
    /// What is offered.
    pub strategy: Strategy,
    /// `predictionColdStartSeconds`: nothing is predicted of a pod that was measured for less, 0 s to 30 days.
    /// Default: 24 h.
    pub cold_start: Duration,
    /// `predictionSafetyMarginPercent`: what is added to a predicted peak, percent, 0 to 100. Default: 10.
    pub safety_margin_percent: u32,
    /// `metricAggregateDurationSeconds`: usage counts as its mean over this time, 10 s to 1 h. Default: 300 s.
    pub window: Duration,
    /// `resourceDiffThresholdPercent`: what is published follows at once where it differs by more, percent, 1 to 100.
    /// Default: 10.
    pub diff_percent: u32,
    /// `updateTimeThresholdSeconds`: it is published anew after this time, 30 s to 1 h. Default: 300 s.
    pub update: Duration,
}

/// `colocation.reclaimed`, as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawReclaimed {
    enable: Option<bool>,
    publish: Option<bool>,
    enforce: Option<bool>,
    cpu_reclaim_threshold_percent: Option<CpuReclaimPercent>,
    memory_reclaim_threshold_percent: Option<MemoryReclaimPercent>,
    cpu_calculate_policy: Option<Policy>,
    memory_calculate_policy: Option<Policy>,
    #[serde(rename = "batchCPUThresholdPercent")]
    batch_cpu: Option<CeilingPercent>,
    batch_memory_threshold_percent: Option<CeilingPercent>,
    #[serde(rename = "midCPUThresholdPercent")]
    mid_cpu: Option<CeilingPercent>,
    mid_memory_threshold_percent: Option<CeilingPercent>,
    mid_unallocated_percent: Option<UnallocatedPercent>,
    prediction_cold_start_seconds: Option<ColdStart>,
    prediction_safety_margin_percent: Option<SafetyMargin>,
    metric_aggregate_duration_seconds: Option<UsageWindow>,
    resource_diff_threshold_percent: Option<UpdateDiff>,
    update_time_threshold_seconds: Option<UpdateTime>,
}

impl From<RawReclaimed> for ReclaimedConfig {
    fn from(raw: RawReclaimed) -> Self {
        let seconds = Duration::from_secs;
        let ceiling = |written: Option<CeilingPercent>| written.map(|percent| percent.0);
        let publish = raw.publish.unwrap_or_default();
        Self {
            // What is published has to be computed.
            enable: raw.enable.unwrap_or_default() || publish,
            publish,
            enforce: raw.enforce.unwrap_or_default(),
            strategy: Strategy {
                reclaim: Percents {
                    cpu: raw.cpu_reclaim_threshold_percent.unwrap_or_default().0,
                    memory: raw.memory_reclaim_threshold_percent.unwrap_or_default().0,
                },
                cpu_policy: raw.cpu_calculate_policy.unwrap_or_default(),
                memory_policy: raw.memory_calculate_policy.unwrap_or_default(),
                batch_cpu_ceiling: ceiling(raw.batch_cpu),
                batch_memory_ceiling: ceiling(raw.batch_memory_threshold_percent),
                mid_ceiling: Percents {
                    cpu: ceiling(raw.mid_cpu).unwrap_or(100),
                    memory: ceiling(raw.mid_memory_threshold_percent).unwrap_or(100),
                },
                mid_unallocated: raw.mid_unallocated_percent.unwrap_or_default().0,
                mid_static: None,
            },
            cold_start: seconds(raw.prediction_cold_start_seconds.unwrap_or_default().0),
            safety_margin_percent: raw.prediction_safety_margin_percent.unwrap_or_default().0,
            window: seconds(raw.metric_aggregate_duration_seconds.unwrap_or_default().0),
            diff_percent: raw.resource_diff_threshold_percent.unwrap_or_default().0,
            update: seconds(raw.update_time_threshold_seconds.unwrap_or_default().0),
        }
    }
}

impl Default for ReclaimedConfig {
    fn default() -> Self {
        RawReclaimed::default().into()
    }
}
