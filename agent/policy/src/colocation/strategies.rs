//! What the CPU strategies go by: a snapshot of it shows again what best effort may use of the CPU, how far a protected
//! pod may exceed its limit, and why, by the functions that the agent decides with.

use alloc::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{
    burst::{BurstConfig, NodeState},
    hold::Bounds,
    suppress::{self, Capacity, Policy, Round, Threshold, Usage, cpuset::Sets},
};
use crate::{limits::Limit, uid::PodUid, units::MilliCpu};

/// Each `None` where the strategy is off.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Strategies {
    /// `cpuSuppressThresholdPercent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suppress: Option<Suppress>,
    /// `cpuWaitStrategy`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
    /// `cpuBurstStrategy`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<Burst>,
}

impl Strategies {
    /// True where every strategy is off.
    pub const fn is_empty(&self) -> bool {
        self.suppress.is_none() && self.wait.is_none() && self.burst.is_none()
    }

    /// The same on a node of so many CPUs; what is reserved stays.
    #[must_use]
    pub fn on(mut self, cpus: MilliCpu) -> Self {
        if let Some(suppress) = &mut self.suppress {
            suppress.node.capacity = cpus;
        }
        if let Some(Wait { bounds, .. }) = &mut self.wait {
            let floor = u128::from(bounds.floor.0) * u128::from(cpus.0);
            let floor = floor.checked_div(bounds.cpus.0.into()).unwrap_or_default();
            bounds.floor = MilliCpu(u64::try_from(floor).unwrap_or(u64::MAX));
            bounds.cpus = cpus;
        }
        self
    }

    /// These settings with what was measured under others.
    #[must_use]
    pub fn measured_as(mut self, other: &Self) -> Self {
        if let (Some(suppress), Some(other)) = (&mut self.suppress, &other.suppress) {
            suppress.measured = other.measured.clone();
        }
        if let (Some(wait), Some(other)) = (&mut self.wait, &other.wait) {
            wait.measured = other.measured.clone();
        }
        if let (Some(burst), Some(other)) = (&mut self.burst, &other.burst) {
            burst.state = other.state;
        }
        self
    }
}

/// Best effort is held to the koordlet's formula.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Suppress {
    /// The node.
    pub node: Capacity,
    /// How much of it may be used.
    pub threshold: Threshold,
    /// What holds best effort.
    pub policy: Policy,
    /// `None` before there are figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
}

/// What a round of suppression was computed from, and where it stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Measured {
    /// Who used how much.
    pub usage: Usage,
    /// The node's CPUs, for the policy about CPUs.
    #[serde(default)]
    pub sets: Sets,
    /// The tier's quota by the formula, microseconds in a period of 100 ms.
    pub quota_us: Option<u64>,
    /// The tier's CPUs by the formula.
    pub cpus: Option<BTreeSet<u32>>,
}

impl Suppress {
    /// What best effort may use by the formula, thousandths of a CPU; below zero where the others use more than the
    /// threshold. `None` without figures.
    pub fn quantity(&self) -> Option<i64> {
        let measured = self.measured.as_ref()?;
        Some(suppress::quantity(
            self.node,
            measured.usage,
            self.threshold,
        ))
    }

    /// The next round with the same figures; `None` without any.
    pub fn round(&self) -> Option<Round> {
        let measured = self.measured.as_ref()?;
        let cpus = measured.sets.node(measured.cpus.as_ref());
        let quantity = suppress::within_free(self.policy, self.quantity()?, &cpus);
        Some(suppress::round(
            Some(self.policy),
            Some(quantity),
            self.node.capacity,
            Limit::from(measured.quota_us),
            &cpus,
        ))
    }
}

/// Best effort gets less while a protected pod waits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// What best effort may use.
    pub bounds: Bounds,
    /// The wait that is too long for pods without an annotation, nanoseconds.
    pub objective_nanos: u64,
    /// What was measured.
    #[serde(default)]
    pub measured: Waited,
}

/// Where the law of waits stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Waited {
    /// What best effort may use now; `None` where nothing is held back.
    pub limit: Option<MilliCpu>,
    /// What it uses; `None` where that is not known.
    pub used: Option<MilliCpu>,
    /// The pod that waited last while best effort is held back.
    pub pod: Option<PodUid>,
    /// For how long, nanoseconds.
    pub nanos: Option<u64>,
}

/// Protected pods may exceed their limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Burst {
    /// The strategy.
    pub config: BurstConfig,
    /// Whether the node has CPU to give.
    pub state: NodeState,
}
