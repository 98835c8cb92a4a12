//! What best-effort pods may use of the CPU, and the quota or CPUs that hold them to it
//! (Koordinator `pkg/koordlet/qosmanager/plugins/cpusuppress/cpu_suppress.go`).

pub mod cpuset;

use serde::{Deserialize, Serialize};

use crate::{convert::DEFAULT_PERIOD_US, limits::Limit, units::MilliCpu};

/// `cpuSuppressThresholdPercent` unless configured otherwise.
pub const DEFAULT_THRESHOLD_PERCENT: u64 = 65;
/// The least quota of the besteffort tier, microseconds in a period of 100 ms.
pub const MIN_QUOTA_US: u64 = 2000;
/// The least change of quota that is written, in percent of the node.
const BYPASS_PERCENT: u64 = 1;
/// How much the quota grows in a round, in percent of the node.
const INCREASE_PERCENT: u64 = 10;

/// Who used how much CPU in the last interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    /// The whole machine.
    pub node: MilliCpu,
    /// Every pod, whether its source lists it or only its cgroup is there.
    pub pods: MilliCpu,
    /// Of these the pods of class BE.
    pub best_effort_pods: MilliCpu,
    /// Applications outside pods, of every class.
    pub host: MilliCpu,
    /// Of these those of class BE.
    pub best_effort_host: MilliCpu,
}

/// The node, as its API object describes it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Capacity {
    /// `status.capacity.cpu`.
    pub capacity: MilliCpu,
    /// What is kept from pods: the larger of capacity minus allocatable, and the annotation.
    pub reserved: MilliCpu,
}

/// `cpuSuppressThresholdPercent` and `cpuSuppressMinPercent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Threshold {
    /// What all pods and the system may use, percent of the node's CPUs, 1 to 100.
    pub percent: u64,
    /// What best effort keeps in any case, percent of the node's CPUs.
    pub min_percent: Option<u64>,
}

impl Default for Threshold {
    fn default() -> Self {
        Self {
            percent: DEFAULT_THRESHOLD_PERCENT,
            min_percent: None,
        }
    }
}

/// What best effort may use, in milli-CPUs: below zero where the others use more than the threshold.
///
/// `capacity * percent - pods and host applications that are not BE - max(system, reserved)`, where the
/// system is what the machine used beyond pods and host applications (`calculateBESuppressCPU`).
pub fn quantity(node: Capacity, usage: Usage, threshold: Threshold) -> i64 {
    let share = |percent: u64| signed(node.capacity) * i128::from(percent) / 100;
    let system = usage
        .node
        .saturating_sub(usage.pods)
        .saturating_sub(usage.host);
    let others = usage.pods.saturating_sub(usage.best_effort_pods);
    let host = usage.host.saturating_sub(usage.best_effort_host);
    let left = share(threshold.percent)
        - signed(others)
        - signed(host)
        - signed(system.max(node.reserved));
    let floor = threshold.min_percent.map(share);
    crate::units::saturate(floor.map_or(left, |floor| left.max(floor)))
}

/// What of the quantity can be given. The policy for CPUs sets nothing where it wants more of them than are free of
/// other pods: then all of these.
pub fn within_free(policy: Policy, quantity: i64, cpus: &cpuset::Node<'_>) -> i64 {
    match policy {
        Policy::Cpuset => quantity.min(cpus.free_milli()),
        Policy::CfsQuota => quantity,
    }
}

fn signed(cpu: MilliCpu) -> i128 {
    i128::from(cpu.0)
}

/// The quota of the besteffort tier after a round, microseconds in a period of 100 ms; `None` where what is
/// there stays (`adjustByCfsQuota`).
///
/// Lowered at once, raised by at most a tenth of the node; a change below a hundredth of the node is not
/// written, except to the floor. A tier without a quota gets its quota at once: the koordlet compares with -1
/// there and leaves a small quantity unwritten.
pub fn next_quota(quantity: i64, current: Limit<u64>, capacity: MilliCpu) -> Option<u64> {
    let quantity = u64::try_from(quantity).unwrap_or(0);
    let wanted = of_period(quantity).max(MIN_QUOTA_US);
    let Limit::At(current) = current else {
        return Some(wanted);
    };
    // The koordlet rounds the node up to whole CPUs.
    let node = capacity.0.div_ceil(1000).saturating_mul(DEFAULT_PERIOD_US);
    let least = (u128::from(node) * u128::from(BYPASS_PERCENT)).div_ceil(100);
    if u128::from(wanted.abs_diff(current)) < least && wanted != MIN_QUOTA_US {
        return None;
    }
    let most = current.saturating_add(percent_of(node, INCREASE_PERCENT));
    Some(wanted.min(most)).filter(|next| *next != current)
}

fn of_period(milli: u64) -> u64 {
    let quota = u128::from(milli) * u128::from(DEFAULT_PERIOD_US) / 1000;
    u64::try_from(quota).unwrap_or(u64::MAX)
}

fn percent_of(amount: u64, percent: u64) -> u64 {
    let part = u128::from(amount) * u128::from(percent) / 100;
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// `cpuSuppressPolicy`: what holds best effort.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// CPUs of its own.
    #[default]
    #[serde(rename = "cpuset")]
    Cpuset,
    /// A quota on the tier.
    #[serde(rename = "cfsQuota")]
    CfsQuota,
}

/// What a round does with one of the two mechanisms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<T> {
    /// Nothing is written.
    Keep,
    /// This is written.
    Set(T),
    /// What was found before is written.
    Restore,
}

/// What a round does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// With the tier's quota, microseconds in a period of 100 ms.
    pub quota: Step<u64>,
    /// With the tier's CPUs.
    pub cpus: Step<alloc::vec::Vec<u32>>,
}

/// One round of suppression: the policy's mechanism follows the quantity and the other is restored; without a
/// policy both are restored, without a quantity neither is touched (`suppressBECPU`).
pub fn round(
    policy: Option<Policy>,
    quantity: Option<i64>,
    capacity: MilliCpu,
    quota: Limit<u64>,
    cpus: &cpuset::Node<'_>,
) -> Round {
    let Some(policy) = policy else {
        return Round {
            quota: Step::Restore,
            cpus: Step::Restore,
        };
    };
    let Some(quantity) = quantity else {
        return Round {
            quota: Step::Keep,
            cpus: Step::Keep,
        };
    };
    match policy {
        Policy::CfsQuota => Round {
            quota: next_quota(quantity, quota, capacity).map_or(Step::Keep, Step::Set),
            cpus: Step::Restore,
        },
        Policy::Cpuset => Round {
            quota: Step::Restore,
            cpus: cpuset::next(quantity, cpus).map_or(Step::Keep, Step::Set),
        },
    }
}
