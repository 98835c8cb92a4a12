//! How far a pod may exceed its CPU limit while the node has free CPU
//! (Koordinator `pkg/koordlet/qosmanager/plugins/cpuburst/cpu_burst.go`).
//!
//! | mechanism | law |
//! |---|---|
//! | burst | limit x `cpuBurstPercent`: unused quota that a period may carry over; the kernel keeps it at or below the quota |
//! | quota | x 1.2 while throttled, x 0.8 on an overloaded node, within the limit and limit x `cfsQuotaBurstPercent` |
//! | tokens | what a container may use beyond its limit, in percent of the limit times time |

mod order;
mod tokens;

use serde::{Deserialize, Serialize};

pub use self::{
    order::{Bandwidth, Cgroup, Write, writes},
    tokens::{Rates, TokenBucket},
};
use crate::{convert::DEFAULT_PERIOD_US, units::MilliCpu};

/// `cpuBurstConfig.policy`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Policy {
    /// No burst: quotas are at their limits.
    #[default]
    None,
    /// Burst first, then quota.
    Auto,
    /// Burst alone.
    CpuBurstOnly,
    /// Quota alone.
    CfsQuotaBurstOnly,
}

impl Policy {
    /// True where unused quota is carried over.
    pub const fn bursts(self) -> bool {
        matches!(self, Self::Auto | Self::CpuBurstOnly)
    }

    /// True where the quota is raised.
    pub const fn raises_quota(self) -> bool {
        matches!(self, Self::Auto | Self::CfsQuotaBurstOnly)
    }
}

/// `cpuBurstConfig`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BurstConfig {
    /// `policy`.
    pub policy: Policy,
    /// `cpuBurstPercent`: of the limit.
    pub burst_percent: u64,
    /// `cfsQuotaBurstPercent`: of the limit; at or below 100 the quota stays at the limit.
    pub quota_percent: u64,
    /// `cfsQuotaBurstPeriodSeconds`: how long a container with a full bucket may use the highest quota;
    /// `None`, -1 in the configuration, for as long as it likes.
    pub period_seconds: Option<u64>,
    /// `sharePoolThresholdPercent`: at this usage of the share pool the node is overloaded.
    pub share_pool_percent: u64,
}

impl Default for BurstConfig {
    fn default() -> Self {
        Self {
            policy: Policy::None,
            burst_percent: 1000,
            quota_percent: 300,
            period_seconds: None,
            share_pool_percent: 50,
        }
    }
}

/// Whether the node has CPU to give.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NodeState {
    /// The share pool's usage is below nine tenths of the threshold.
    Idle,
    /// Between that and the threshold: nothing is raised.
    Cooling,
    /// At or above the threshold: everything is lowered.
    Overload,
    /// There are no figures: nothing is raised.
    Unknown,
}

/// The CPUs that latency-sensitive pods share: the node's without what LSE and LSR pods request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharePool {
    /// All CPUs minus the requests of LSE and LSR pods; zero or less where these take all.
    pub milli: i64,
    /// What the machine uses minus what LSE, LSR and BE pods use.
    pub used: MilliCpu,
}

impl SharePool {
    /// Of the node's CPUs and usage, and of `requests` and usage of the pods that are not in the pool.
    pub fn new(cpus: MilliCpu, used: MilliCpu, requests: MilliCpu, used_outside: MilliCpu) -> Self {
        Self {
            milli: crate::units::saturate(i128::from(cpus.0) - i128::from(requests.0)),
            used: used.saturating_sub(used_outside),
        }
    }
}

/// The node's state for burst (`getNodeStateForBurst`).
pub fn node_state(pool: Option<SharePool>, threshold_percent: u64) -> NodeState {
    let Some(pool) = pool else {
        return NodeState::Unknown;
    };
    // Without CPUs in the pool its usage counts as all of them.
    let (used, milli) = match u128::try_from(pool.milli) {
        Ok(milli) if milli > 0 => (u128::from(pool.used.0), milli),
        _ => (1, 1),
    };
    let threshold = u128::from(threshold_percent) * milli;
    if used * 100 >= threshold {
        NodeState::Overload
    } else if used * 1000 >= threshold * 9 {
        NodeState::Cooling
    } else {
        NodeState::Idle
    }
}

/// `cpu.cfs_burst_us` or `cpu.max.burst` of a container, microseconds in a period of 100 ms; zero where it has
/// no limit (`calcStaticCPUBurstVal`).
pub fn burst_us(limit: MilliCpu, config: &BurstConfig) -> u64 {
    if !config.policy.bursts() {
        return 0;
    }
    let burst =
        u128::from(limit.0) * u128::from(config.burst_percent) * u128::from(DEFAULT_PERIOD_US)
            / 100_000;
    u64::try_from(burst).unwrap_or(u64::MAX)
}

/// The same, as the kernel takes it: at most the quota (`tg_set_cfs_bandwidth` of `kernel/sched/core.c`).
pub fn kernel_burst_us(limit: MilliCpu, config: &BurstConfig, quota_us: Option<u64>) -> u64 {
    let burst = burst_us(limit, config);
    quota_us.map_or(0, |quota| burst.min(quota))
}

/// What is done with a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Operation {
    /// Raised by a fifth.
    Up,
    /// Lowered by a fifth.
    Down,
    /// Left as it is.
    Remain,
    /// Set to the limit.
    Reset,
}

/// What one container shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Container {
    /// Its limit.
    pub limit: MilliCpu,
    /// Its quota now, microseconds in a period of 100 ms.
    pub quota_us: u64,
    /// Whether it was throttled since the last look; `None` where that is not known.
    pub throttled: Option<bool>,
    /// Whether its token bucket lets it exceed its limit.
    pub allowed: bool,
}

/// The operation of a container on a node in this state (`genOperationByContainer`,
/// `changeOperationByNode`).
pub fn operation(container: &Container, config: &BurstConfig, state: NodeState) -> Operation {
    if !config.policy.raises_quota() {
        return Operation::Reset;
    }
    let own = match container.throttled {
        _ if !container.allowed => Operation::Down,
        Some(true) => Operation::Up,
        Some(false) | None => Operation::Remain,
    };
    match (state, own) {
        (NodeState::Overload, Operation::Up | Operation::Remain) => Operation::Down,
        (NodeState::Cooling | NodeState::Unknown, Operation::Up) => Operation::Remain,
        _ => own,
    }
}

/// The quota after a step, microseconds in a period of 100 ms; `None` for a container without a limit
/// (`applyCFSQuotaBurst`). Never below the limit, nor above its `cfsQuotaBurstPercent`.
pub fn next_quota(container: &Container, config: &BurstConfig, state: NodeState) -> Option<u64> {
    let base = base_quota(container.limit)?;
    let now = container.quota_us;
    let wanted = match operation(container, config, state) {
        Operation::Up => mul_div(now, 6, 5),
        Operation::Down => mul_div(now, 4, 5),
        Operation::Remain => now,
        Operation::Reset => base,
    };
    Some(wanted.clamp(base, ceiling(base, config)))
}

/// The quota of a limit; `None` for none.
pub fn base_quota(limit: MilliCpu) -> Option<u64> {
    Some(mul_div(limit.0, DEFAULT_PERIOD_US, 1000)).filter(|base| *base > 0)
}

/// The highest quota of a container.
pub fn ceiling(base: u64, config: &BurstConfig) -> u64 {
    mul_div(base, config.quota_percent.max(100), 100)
}

fn mul_div(amount: u64, numerator: u64, denominator: u64) -> u64 {
    let product = u128::from(amount) * u128::from(numerator) / u128::from(denominator);
    u64::try_from(product).unwrap_or(u64::MAX)
}
