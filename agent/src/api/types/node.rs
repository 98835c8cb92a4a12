//! The node, its tiers and the agent's own state: `GET /v1/node`.

use podwarden_policy::{Bytes, colocation::reclaimed::Amounts};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{CpuStats, EventLogStats, MemoryStats, NodeUsageStats, PodRef};

/// Where pods come from, and how that is doing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceStats {
    /// `apiserver` or `file`.
    pub name: String,
    /// It has told everything that it has at least once.
    pub reported: bool,
    /// Pods that it tells of.
    pub pods: u64,
    /// Changes that it told, beginning with its first list.
    pub updates: u64,
    /// What keeps it from its work; what it told before stays in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// One QoS tier's cgroup: `kubepods` itself, `burstable` or `besteffort`.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TierStats {
    /// `kubepods`, `burstable` or `besteffort`.
    pub name: String,
    /// The cgroup below the controllers' mount points.
    pub cgroup: String,
    /// CPU of everything below.
    pub cpu: CpuStats,
    /// Memory of everything below.
    pub memory: Option<MemoryStats>,
    /// The level at which the reactor acts, bytes; absent when nothing is armed.
    pub armed_level_bytes: Option<u64>,
    /// How far its hard limit is from where `qosReserved` has it; absent without one, and in observe
    /// mode.
    pub convergence: Option<TierConvergence>,
}

/// How a tier's hard limit follows its target.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TierConvergence {
    /// What `qosReserved` leaves to the tier, bytes; absent while nothing limits it.
    pub target_bytes: Option<u64>,
    /// What the tier uses above that, bytes.
    pub gap_bytes: u64,
    /// The hard limit is the target.
    pub reached: bool,
    /// `memory.high` of the tier, bytes; absent without such a limit.
    pub high_bytes: Option<u64>,
    /// Pods that are slowed by a `memory.high` of their own: the tier is above its target and holds a critical pod.
    #[serde(default)]
    pub slowed_pods: u64,
    /// From when the pods became known that lowered the target last until a limit kept the tier, above
    /// it, from growing, nanoseconds; absent until that was needed.
    pub cap_nano_seconds: Option<u64>,
    /// Page cache that was dropped, bytes.
    pub reclaimed_bytes: u64,
    /// Steps taken since the agent started.
    pub steps: ConvergenceSteps,
}

/// How often each file of a tier was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConvergenceSteps {
    /// The hard limit.
    pub max: u64,
    /// `memory.high`.
    pub high: u64,
    /// `memory.reclaim`; on v1 the hard limit, to drop page cache.
    pub reclaim: u64,
}

/// What the kernel programs could not deliver, since the agent started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DropStats {
    /// Decision events lost because their ring was full.
    pub decisions: u64,
    /// Telemetry events lost because their ring was full (figures are counted in maps and stay right).
    pub telemetry: u64,
    /// Cgroups that found no free account.
    pub accounts: u64,
    /// Reclaim begins that found no free entry.
    pub stalls: u64,
    /// Context switches that the kernel did not trace; their CPU time is found by other means.
    pub untraced_switches: u64,
    /// Waits beyond their objective that found their ring full.
    pub waits: u64,
}

/// What the agent did to cgroups since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CgroupWrites {
    /// Cgroups made.
    pub created: u64,
    /// Values written and read back.
    pub updated: u64,
    pub removed: u64,
    /// Any of these refused, or read back as something else; also page cache that was to be dropped.
    pub failed: u64,
    /// Of the values written, those that undid a foreign write.
    pub corrected: u64,
}

/// One comparison of the whole tree with what it should be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReconcileStats {
    /// Actions of the plan.
    pub actions: u64,
    /// Values written.
    pub writes: u64,
    /// Operations that failed.
    pub failed: u64,
    /// How long carrying the plan out took.
    pub duration_nano_seconds: u64,
}

/// An amount of CPU and memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Amount {
    /// Thousandths of a CPU.
    pub cpu_milli: u64,
    pub memory_bytes: u64,
}

impl From<Amounts> for Amount {
    fn from(amounts: Amounts) -> Self {
        Self {
            cpu_milli: amounts.cpu.0,
            memory_bytes: amounts.memory.0,
        }
    }
}

impl From<Amount> for Amounts {
    fn from(amount: Amount) -> Self {
        Self::new(amount.cpu_milli.into(), Bytes(amount.memory_bytes))
    }
}

/// What is offered to pods of one band.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReclaimedOffer {
    /// Thousandths of a CPU.
    pub cpu_milli: u64,
    pub memory_bytes: u64,
    /// Of that what the node's pods ask for, thousandths of a CPU.
    pub held_cpu_milli: u64,
    /// Of that what the node's pods ask for, bytes.
    pub held_memory_bytes: u64,
    /// What the node has to spare, before what its pods ask for raises the offer; thousandths of a CPU.
    #[serde(default)]
    pub spare_cpu_milli: u64,
    /// The same, bytes.
    #[serde(default)]
    pub spare_memory_bytes: u64,
}

/// What is predicted from what was measured, margin included. What is not known yet is absent.
#[skip_serializing_none]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PredictionStats {
    /// What prod pods will leave of their requests.
    pub reclaimable: Option<Amount>,
    /// What all prod pods together will use at their peak.
    pub prod_peak: Option<Amount>,
    /// What runs outside pods will use at its peak.
    pub system_peak: Option<Amount>,
    /// Prod pods with a prediction.
    pub predicted_pods: u64,
    /// Prod pods that were not measured for long enough: they leave nothing.
    pub cold_pods: u64,
}

/// What the node has to spare: `batch = capacity - margin - system - pods`, or what is held if that is more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReclaimedStats {
    /// `kubernetes.io/batch-cpu` and `kubernetes.io/batch-memory`.
    pub batch: ReclaimedOffer,
    /// `kubernetes.io/mid-cpu` and `kubernetes.io/mid-memory`.
    pub mid: ReclaimedOffer,
    /// Kept back of the capacity.
    pub margin: Amount,
    /// What counts for the system: what it uses, or what is reserved if that is more.
    pub system: Amount,
    /// What counts for prod and mid pods.
    pub pods: Amount,
    /// Capacity less what is used: the most of `reclaimable` that mid pods are offered.
    #[serde(default)]
    pub unused: Amount,
    /// What no prod pod asked for; `midUnallocatedPercent` of it is offered to mid pods.
    #[serde(default)]
    pub unallocated: Amount,
    /// What mid pods are offered of prod pods' requests, and what it is from.
    #[serde(default)]
    pub prediction: PredictionStats,
    /// Usage is the mean of this time.
    pub window_seconds: u64,
}

/// What best-effort pods may use of the CPU, and why.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BestEffortCpuStats {
    /// What `cpuWaitStrategy` leaves them, thousandths of a CPU; absent while no protected pod waits.
    pub wait_limit_milli: Option<u64>,
    /// What `cpuSuppressThresholdPercent` leaves them, thousandths of a CPU; absent where that is off.
    pub suppress_limit_milli: Option<u64>,
    /// The protected pod whose wait was reported last; absent while none waits.
    pub waiting: Option<PodRef>,
    /// How long it had waited, nanoseconds.
    pub waited_nano_seconds: Option<u64>,
    /// Waits of protected pods beyond their objective, since the agent started.
    pub long_waits: u64,
    /// True in observe mode: the limits are not written.
    pub dry_run: bool,
}

impl BestEffortCpuStats {
    /// The smaller limit, thousandths of a CPU; `None` where nothing holds best effort back.
    pub fn limit_milli(&self) -> Option<u64> {
        self.wait_limit_milli
            .into_iter()
            .chain(self.suppress_limit_milli)
            .min()
    }
}

/// `GET /v1/node`.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStats {
    /// `--node-name`, or the host's name.
    pub node_name: String,
    /// `observe` or `enforce`.
    pub mode: String,
    /// The profile that runs: `full`, `standard` or `sampling`.
    pub profile: String,
    /// `v1`, `hybrid` or `v2`.
    pub cgroup_version: String,
    /// `cgroupfs` or `systemd`.
    pub cgroup_driver: String,
    /// What this node cannot do, one sentence each.
    pub degradations: Vec<String>,
    /// When the agent started.
    pub start_time: String,
    /// When the figures were read.
    pub time: String,
    /// CPUs that are online.
    pub cpus: u32,
    /// Memory that pods may use, bytes.
    pub allocatable_memory_bytes: u64,
    /// What the node has to spare; absent where that is not computed, and before two sampling passes.
    pub reclaimed: Option<ReclaimedStats>,
    /// What best-effort pods may use of the CPU; absent where no strategy holds them back.
    pub best_effort_cpu: Option<BestEffortCpuStats>,
    /// What the whole node uses; absent where the topmost cgroup cannot be seen.
    pub usage: Option<NodeUsageStats>,
    /// kubepods and the two tiers.
    pub tiers: Vec<TierStats>,
    /// What the kernel programs could not deliver.
    pub kernel_drops: DropStats,
    /// What was done to cgroups.
    #[serde(default)]
    pub cgroup_writes: CgroupWrites,
    /// How often the whole tree was compared with what it should be.
    #[serde(default)]
    pub reconciles: u64,
    /// The last time; absent before the first.
    pub last_reconcile: Option<ReconcileStats>,
    /// What others wrote to files of ours.
    #[serde(default)]
    pub foreign_writes: ForeignWriteStats,
    /// Pods' cgroups that no source explains, though every source has reported: they are victims of their
    /// tier that ask for nothing.
    #[serde(default)]
    pub unexplained_cgroups: u64,
    /// How memory and throttling of pods were read last.
    #[serde(default)]
    pub sampling: SamplingStats,
    /// The event log; absent where none is configured.
    pub event_log: Option<EventLogStats>,
    /// What the API server is told of evictions; absent where it is told nothing.
    pub eviction_status: Option<EvictionStatusStats>,
    /// Where pods come from; empty where they are known from their cgroups alone.
    #[serde(default)]
    pub pod_sources: Vec<SourceStats>,
    /// The container runtime; absent where none is configured.
    pub runtime: Option<RuntimeStats>,
}

/// How memory and throttling of pods were read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SamplingStats {
    /// `iterator`: the kernel gathered every cgroup in one pass; `files`: cgroup by cgroup.
    pub source: String,
    /// Records that the pass wrote; 0 with `files`.
    pub cgroups: u64,
    /// Cgroups that found no room for a record; their files were read.
    pub without_room: u64,
    /// How long the pass took; absent with `files`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_nano_seconds: Option<u64>,
}

/// The container runtime, and how the agent gets on with it.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeStats {
    /// Its socket.
    pub endpoint: String,
    /// `containerd`, `cri-o`; absent until it has answered once.
    pub name: Option<String>,
    /// Its version; absent likewise.
    pub version: Option<String>,
    /// What keeps it from answering; what it told before stays in force.
    pub problem: Option<String>,
}

/// What the API server is told of evictions, and of the node's pressure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictionStatusStats {
    /// It has not been told yet.
    pub waiting: u64,
    /// It was told, since the agent started.
    pub delivered: u64,
    /// It will not be: the pod is gone, another has its name, or it refuses to be told; since the agent
    /// started.
    pub given_up: u64,
}

/// What others wrote to files that podwarden keeps, since the agent started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ForeignWriteStats {
    /// Cgroups whose files are watched; foreign writes to others are found by the timer.
    pub watched_cgroups: u64,
    /// Files that other processes keep writing against podwarden, now.
    pub contested_files: u64,
    /// By property; those that no other process wrote are left out.
    pub properties: Vec<ForeignWriteCount>,
}

/// What others wrote to files of one property.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ForeignWriteCount {
    /// As in `explain`: `memory limit`, `cpu shares`.
    pub property: String,
    /// Foreign values that were replaced.
    pub corrected: u64,
    /// Foreign values that the kernel did not let podwarden replace.
    pub refused: u64,
    /// How often a file became contested.
    pub contests: u64,
}
