//! What a node has to spare for batch and mid-priority pods.
//!
//! Problem: guaranteed pods ask for more than they use. What they leave is sold a second time, as resources of
//! other names, so that the scheduler counts them apart from `cpu` and `memory`.
//!
//! Approach (koordinator `pkg/slo-controller/noderesource/plugins/util/util.go`), for CPU and memory apart:
//!
//! ```text
//! batch = capacity - margin - max(system, reserved) - sum over prod and mid pods    floor 0
//!         usage, request or the larger of both, by the policy; capacity x ceiling % at most
//! mid   = min(min(reclaimable, capacity - used) + unallocated x share %, capacity x ceiling %)
//! ```
//!
//! Pods and usage come from one snapshot. A pod that has no figures yet counts with its request under every
//! policy. A cgroup whose pod no source lists counts with what it uses.
//!
//! Properties, each with a test (`tests/reclaimed.rs`):
//! - what is offered is never above capacity less margin less what is reserved, unless running pods hold more;
//! - more usage never raises it;
//! - equal snapshots give equal values, in any order of pods;
//! - it is never below what running pods hold.

use serde::{Deserialize, Serialize};

use super::class::Band;
use crate::units::{Bytes, MilliCpu};

/// CPU and memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Amounts {
    /// CPU.
    pub cpu: MilliCpu,
    /// Memory.
    pub memory: Bytes,
}

impl Amounts {
    /// Both.
    pub const fn new(cpu: MilliCpu, memory: Bytes) -> Self {
        Self { cpu, memory }
    }

    /// Each of the two by its own rule.
    #[must_use]
    fn with(self, other: Self, each: fn(u64, u64) -> u64) -> Self {
        Self {
            cpu: MilliCpu(each(self.cpu.0, other.cpu.0)),
            memory: Bytes(each(self.memory.0, other.memory.0)),
        }
    }

    /// The sum, saturating.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    /// The difference, at least zero.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.with(other, u64::saturating_sub)
    }

    /// The larger of each.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        self.with(other, u64::max)
    }

    /// The smaller of each.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        self.with(other, u64::min)
    }

    /// Hundredths of each, rounded down.
    #[must_use]
    pub fn percent(self, percent: Percents) -> Self {
        Self {
            cpu: MilliCpu(Bytes(self.cpu.0).percent(percent.cpu.into()).0),
            memory: self.memory.percent(percent.memory.into()),
        }
    }
}

/// A percentage for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Percents {
    /// Of CPU.
    pub cpu: u32,
    /// Of memory.
    pub memory: u32,
}

/// What a prod or mid pod counts with (`cpuCalculatePolicy`, `memoryCalculatePolicy`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Policy {
    /// What it uses.
    #[default]
    Usage,
    /// What it asks for; of the system only what is reserved counts.
    Request,
    /// The larger of both.
    MaxUsageRequest,
}

/// What the operator decides. The defaults are the koordlet's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Strategy {
    /// `cpuReclaimThresholdPercent` and `memoryReclaimThresholdPercent`: how much of the capacity pods of all
    /// kinds may fill. The rest of 100 is the margin; above 100 more is offered than there is.
    pub reclaim: Percents,
    /// `cpuCalculatePolicy`.
    pub cpu_policy: Policy,
    /// `memoryCalculatePolicy`.
    pub memory_policy: Policy,
    /// `batchCPUThresholdPercent`: the most of the capacity that is offered; `None` for no such ceiling.
    pub batch_cpu_ceiling: Option<u32>,
    /// `batchMemoryThresholdPercent`.
    pub batch_memory_ceiling: Option<u32>,
    /// `midCPUThresholdPercent` and `midMemoryThresholdPercent`.
    pub mid_ceiling: Percents,
    /// `midUnallocatedPercent`: how much of what no prod pod asked for is offered to mid pods.
    pub mid_unallocated: u32,
    /// `midReclaimMode: static`: this much of the capacity, whatever is used.
    pub mid_static: Option<Percents>,
}

impl Default for Strategy {
    fn default() -> Self {
        Self {
            reclaim: Percents {
                cpu: 60,
                memory: 65,
            },
            cpu_policy: Policy::Usage,
            memory_policy: Policy::Usage,
            batch_cpu_ceiling: None,
            batch_memory_ceiling: None,
            mid_ceiling: Percents {
                cpu: 100,
                memory: 100,
            },
            mid_unallocated: 0,
            mid_static: None,
        }
    }
}

/// A pod, or a workload of the host beside the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Workload {
    /// Its priority band: prod and mid count against batch, prod against mid.
    pub band: Band,
    /// Its CPUs are its own (LSE): what it leaves of its CPU request is not offered.
    pub exclusive: bool,
    /// What it asks for of `cpu` and `memory`; zero where only its cgroup is known.
    pub request: Amounts,
    /// What it uses; `None` where no figures are there yet.
    pub used: Option<Amounts>,
    /// What it asks for of `batch-cpu` and `batch-memory`.
    pub holds_batch: Amounts,
    /// What it asks for of `mid-cpu` and `mid-memory`.
    pub holds_mid: Amounts,
}

impl Workload {
    /// What the policy takes its usage for.
    fn counted_usage(&self) -> Amounts {
        let used = self.used.unwrap_or(self.request);
        if self.exclusive {
            Amounts::new(self.request.cpu, used.memory)
        } else {
            used
        }
    }
}

/// One snapshot of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// The machine.
    pub capacity: Amounts,
    /// What is kept from pods: the larger of capacity less allocatable and the node's annotation.
    pub reserved: Amounts,
    /// What runs outside pods.
    pub system: Amounts,
    /// What is used in all.
    pub used: Amounts,
    /// What is predicted to be left of what prod pods asked for; `None` without a prediction.
    pub reclaimable: Option<Amounts>,
    /// The pods that are to run, and cgroups of pods that no source lists.
    pub workloads: alloc::vec::Vec<Workload>,
}

/// Everything that an offer depends on, as an agent records it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Inputs {
    /// What the node has and uses.
    pub facts: Facts,
    /// What the operator decides.
    pub strategy: Strategy,
}

/// The parts of a sum, and the sum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Batch {
    /// What is offered.
    pub offered: Amounts,
    /// What the law gives, without what running pods hold.
    pub law: Amounts,
    /// Kept from every pod: capacity x (100 - threshold) %.
    pub margin: Amounts,
    /// What counts for the system: what it uses or what is reserved.
    pub system: Amounts,
    /// What counts for prod and mid pods.
    pub pods: Amounts,
    /// What running pods ask for of it.
    pub held: Amounts,
}

/// What is offered as `batch-cpu` and `batch-memory`.
pub fn batch(facts: &Facts, strategy: &Strategy) -> Batch {
    let capacity = facts.capacity;
    let (margin, beyond) = margin(capacity, strategy.reclaim);
    let sum = |of: fn(&Workload) -> Amounts| {
        let above = facts.workloads.iter().filter(|w| w.band >= Band::Mid);
        above.fold(Amounts::default(), |sum, w| sum.plus(of(w)))
    };
    let used = sum(Workload::counted_usage);
    let requested = sum(|w| w.request);
    let larger = sum(|w| w.request.max(w.used.unwrap_or_default()));
    let system = facts.system.max(facts.reserved);
    // CPU knows no policy `request`: the koordlet takes it for `usage`.
    let cpu = match strategy.cpu_policy {
        Policy::Usage | Policy::Request => (used.cpu, system.cpu),
        Policy::MaxUsageRequest => (larger.cpu, system.cpu),
    };
    let memory = match strategy.memory_policy {
        Policy::Usage => (used.memory, system.memory),
        Policy::Request => (requested.memory, facts.reserved.memory),
        Policy::MaxUsageRequest => (larger.memory, system.memory),
    };
    let pods = Amounts::new(cpu.0, memory.0);
    let system = Amounts::new(cpu.1, memory.1);
    let open = capacity.plus(beyond).minus(margin);
    let ceiling = capacity.percent(Percents {
        cpu: strategy.batch_cpu_ceiling.unwrap_or(u32::MAX),
        memory: strategy.batch_memory_ceiling.unwrap_or(u32::MAX),
    });
    let law = open.minus(system).minus(pods).min(ceiling);
    let held = held(facts, |w| w.holds_batch);
    Batch {
        offered: law.max(held),
        law,
        margin,
        system,
        pods,
        held,
    }
}

/// What is kept back of the capacity, and what is added to it by a threshold above 100 %.
fn margin(capacity: Amounts, reclaim: Percents) -> (Amounts, Amounts) {
    let kept = capacity.percent(Percents {
        cpu: 100_u32.saturating_sub(reclaim.cpu),
        memory: 100_u32.saturating_sub(reclaim.memory),
    });
    let added = capacity.percent(Percents {
        cpu: reclaim.cpu.saturating_sub(100),
        memory: reclaim.memory.saturating_sub(100),
    });
    (kept, added)
}

fn held(facts: &Facts, of: fn(&Workload) -> Amounts) -> Amounts {
    let all = facts.workloads.iter();
    all.fold(Amounts::default(), |sum, w| sum.plus(of(w)))
}

/// The parts of what mid pods are offered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mid {
    /// What is offered.
    pub offered: Amounts,
    /// What the law gives, without what running pods hold.
    pub law: Amounts,
    /// What is predicted to be left of what prod pods asked for.
    pub reclaimable: Amounts,
    /// Capacity less what is used.
    pub unused: Amounts,
    /// What no prod pod asked for, before its share is taken.
    pub unallocated: Amounts,
    /// What running pods ask for of it.
    pub held: Amounts,
}

/// What is offered as `mid-cpu` and `mid-memory`
/// (koordinator `pkg/slo-controller/noderesource/plugins/midresource/plugin.go`).
pub fn mid(facts: &Facts, strategy: &Strategy) -> Mid {
    let capacity = facts.capacity;
    let held = held(facts, |w| w.holds_mid);
    let ceiling = capacity.percent(strategy.mid_ceiling);
    let mut mid = Mid {
        held,
        ..Mid::default()
    };
    mid.law = match strategy.mid_static {
        Some(share) => capacity.percent(share),
        None => {
            let prod = facts.workloads.iter();
            let prod = prod.filter(|w| w.band == Band::Prod);
            let asked = prod.fold(Amounts::default(), |sum, w| sum.plus(w.request));
            let system = facts.system.max(facts.reserved);
            mid.reclaimable = facts.reclaimable.unwrap_or_default();
            mid.unused = capacity.minus(facts.used);
            mid.unallocated = capacity.minus(system).minus(asked);
            let share = mid.unallocated.percent(Percents {
                cpu: strategy.mid_unallocated,
                memory: strategy.mid_unallocated,
            });
            mid.reclaimable.min(mid.unused).plus(share)
        }
    }
    .min(ceiling);
    mid.offered = mid.law.max(held);
    mid
}

/// What runs outside pods: what is used in all, less what pods and known workloads of the host use, and at least
/// what is reserved (`CalculateFilterPodsUsed` of koordinator `pkg/koordlet/qosmanager/helpers/calculator.go`).
pub fn system_used(used: Amounts, reserved: Amounts, pods: Amounts) -> Amounts {
    used.minus(pods).max(reserved)
}
