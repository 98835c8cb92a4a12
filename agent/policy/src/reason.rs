//! The reason for a value, as data; as text, the numbers filled into the formula.

mod text;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::{
    evict::Rank,
    limits::Limit,
    model::{QosClass, ReclaimedTier},
    pressure::Crossing,
    reserve::Daemons,
    units::{Bytes, CpuShares, MilliCpu},
};

/// Why podwarden does something.
#[derive(Debug, Clone, PartialEq, Eq, Display, Serialize, Deserialize)]
#[serde(
    tag = "kind",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
#[non_exhaustive]
pub enum Reason {
    /// The cgroup of `kubepods` or of a tier does not exist yet.
    #[display("every node has it")]
    TierMissing,
    /// A pod has no cgroup yet.
    #[display("a {qos} pod is to run")]
    PodMissing {
        /// Its class.
        qos: QosClass,
    },
    /// A pod's cgroup is left over.
    #[display("its pod is gone")]
    PodGone,
    /// CPU shares from a pod's or tier's request.
    #[display("cpu requests {cpu_request} * 1024 / 1000, within 2..=262144 = {shares}")]
    Shares {
        /// The request, or the sum of the tier's.
        cpu_request: MilliCpu,
        /// What it comes to.
        shares: CpuShares,
    },
    /// CPU shares of `kubepods`: what the node offers to pods.
    #[display(
        "capacity {capacity} - kubeReserved {kube_reserved} - systemReserved {system_reserved} = {allocatable}; \
         {allocatable} * 1024 / 1000, within 2..=262144 = {shares}"
    )]
    NodeCpu {
        /// Of the machine.
        capacity: MilliCpu,
        /// `kubeReserved`.
        kube_reserved: MilliCpu,
        /// `systemReserved`.
        system_reserved: MilliCpu,
        /// What remains.
        allocatable: MilliCpu,
        /// What it comes to.
        shares: CpuShares,
    },
    /// BestEffort gets the least shares there are.
    #[display("BestEffort gets the least, 2")]
    LeastShares,
    /// A quota from a pod's CPU limit.
    #[display("cpu limits {cpu_limit} * {period_us} us / 1000, at least 1000 us = {quota_us}")]
    Quota {
        /// The limit.
        cpu_limit: MilliCpu,
        /// The period, microseconds.
        period_us: u64,
        /// The quota, microseconds.
        quota_us: Limit<u64>,
    },
    /// CPU shares from a request of reclaimed CPU.
    #[display(
        "{} requests {cpu_request} * 1024 / 1000, within 2..=262144 = {shares}",
        tier.resources()[0]
    )]
    ReclaimedShares {
        /// Which.
        tier: ReclaimedTier,
        /// The request.
        cpu_request: MilliCpu,
        /// What it comes to.
        shares: CpuShares,
    },
    /// A quota from a limit of reclaimed CPU.
    #[display(
        "{} limits {cpu_limit} * {period_us} us / 1000, at least 1000 us = {quota_us}",
        tier.resources()[0]
    )]
    ReclaimedQuota {
        /// Which.
        tier: ReclaimedTier,
        /// The limit.
        cpu_limit: MilliCpu,
        /// The period, microseconds.
        period_us: u64,
        /// The quota, microseconds.
        quota_us: Limit<u64>,
    },
    /// The sum of limits of reclaimed memory.
    #[display("{} limits = {limit}", tier.resources()[1])]
    ReclaimedMemory {
        /// Which.
        tier: ReclaimedTier,
        /// The sum.
        limit: Bytes,
    },
    /// CPU limits are not enforced on this node (`cpuCFSQuota: false`).
    #[display("cpuCFSQuota is off")]
    QuotaNotEnforced,
    /// Not every container has a limit, so the pod has none.
    #[display("not every container has a limit")]
    NotAllLimited,
    /// Nothing limits this, and a limit was found.
    #[display("nothing limits it")]
    NoLimit,
    /// The sum of a pod's memory limits.
    #[display("memory limits = {limit}")]
    MemoryLimit {
        /// The sum.
        limit: Bytes,
    },
    /// What the node offers to pods.
    #[display(
        "capacity {capacity} - kubeReserved {kube_reserved} - systemReserved {system_reserved} = {limit}"
    )]
    NodeMemory {
        /// Of the machine.
        capacity: Bytes,
        /// `kubeReserved`.
        kube_reserved: Bytes,
        /// `systemReserved`.
        system_reserved: Bytes,
        /// What remains.
        limit: Bytes,
    },
    /// What the node offers to pods of process ids.
    #[display(
        "process ids {capacity} - kubeReserved {kube_reserved} - systemReserved {system_reserved} = {limit}"
    )]
    NodePids {
        /// Of the machine.
        capacity: u64,
        /// `kubeReserved`.
        kube_reserved: u64,
        /// `systemReserved`.
        system_reserved: u64,
        /// What remains.
        limit: u64,
    },
    /// CPU shares of `kubepods` where `enforceNodeAllocatable` does not name `pods`.
    #[display(
        "capacity {capacity}, for enforceNodeAllocatable has no pods; \
         {capacity} * 1024 / 1000, within 2..=262144 = {shares}"
    )]
    NodeCapacityCpu {
        /// Of the machine.
        capacity: MilliCpu,
        /// What it comes to.
        shares: CpuShares,
    },
    /// Memory of `kubepods` where `enforceNodeAllocatable` does not name `pods`.
    #[display("capacity {limit}, for enforceNodeAllocatable has no pods")]
    NodeCapacityMemory {
        /// Of the machine.
        limit: Bytes,
    },
    /// Process ids of `kubepods` where `enforceNodeAllocatable` does not name `pods`.
    #[display("process ids {limit}, for enforceNodeAllocatable has no pods")]
    NodeCapacityPids {
        /// Of the machine.
        limit: u64,
    },
    /// A cgroup beside `kubepods` that a reserve is written to.
    #[display("{} is enforced here", daemons.field())]
    Daemons {
        /// Whose.
        daemons: Daemons,
    },
    /// CPU shares of daemons: what is reserved for them.
    #[display("{} {cpu} * 1024 / 1000, within 2..=262144 = {shares}", daemons.field())]
    ReservedCpu {
        /// Whose.
        daemons: Daemons,
        /// What is reserved.
        cpu: MilliCpu,
        /// What it comes to.
        shares: CpuShares,
    },
    /// Memory of daemons: what is reserved for them.
    #[display("{} = {memory}", daemons.field())]
    ReservedMemory {
        /// Whose.
        daemons: Daemons,
        /// What is reserved.
        memory: Bytes,
    },
    /// Process ids of daemons: what is reserved for them.
    #[display("{} = {pids}", daemons.field())]
    ReservedPids {
        /// Whose.
        daemons: Daemons,
        /// What is reserved.
        pids: u64,
    },
    /// A tier's limit under `qosReserved`.
    #[display(
        "allocatable {allocatable} - {percent}% of Guaranteed requests {guaranteed}{} = {limit}",
        text::of_burstable(*percent, *burstable)
    )]
    TierReserve {
        /// The limit of `kubepods` where `enforceNodeAllocatable` names `pods`.
        allocatable: Bytes,
        /// Requests of the Guaranteed pods.
        guaranteed: Bytes,
        /// Requests of the Burstable pods; `None` for the Burstable tier's own limit.
        burstable: Option<Bytes>,
        /// `qosReserved.memory`.
        percent: u8,
        /// What remains.
        limit: Bytes,
    },
    /// The limit ought to be lower, but the cgroup uses too much for that now.
    #[display("wanted {wanted}, held at usage {usage} + margin {margin} until usage falls")]
    HeldAboveUsage {
        /// What it ought to be.
        wanted: Bytes,
        /// What is in use.
        usage: Bytes,
        /// What is kept above usage.
        margin: Bytes,
    },
    /// Memory that is protected from reclaim because it was requested.
    #[display("memory requests = {request}, kept from reclaim")]
    MemoryReservation {
        /// The request, or the sum of those below.
        request: Bytes,
    },
    /// A container is slowed down before it reaches its limit.
    #[display(
        "request {request} + {} * ({} {ceiling} - request), in whole pages of {page} = {high}",
        text::Millionths(*factor),
        if *limited { "limit" } else { "allocatable" }
    )]
    MemoryHigh {
        /// Its memory request.
        request: Bytes,
        /// Its memory limit, or what the node offers to pods.
        ceiling: Bytes,
        /// Whether the ceiling is its own limit.
        limited: bool,
        /// `memoryThrottlingFactor` in parts of [`crate::container::THROTTLING_FACTOR_ONE`].
        factor: u32,
        /// The kernel's page size.
        page: Bytes,
        /// What it comes to.
        high: Bytes,
    },
    /// A container is not slowed down: nothing lies between its request and its limit.
    #[display("nothing between its request and its limit")]
    NotThrottled,
    /// A container may use swap in proportion to what it asked for.
    #[display("memory request {request} / memory {memory} * swap {swap} = {amount}")]
    LimitedSwap {
        /// Its memory request.
        request: Bytes,
        /// Memory of the machine.
        memory: Bytes,
        /// Swap of the machine.
        swap: Bytes,
        /// What it comes to.
        amount: Bytes,
    },
    /// A container may use no swap.
    #[display(
        "{}",
        if *limited {
            "LimitedSwap gives swap to Burstable pods that are not critical, in proportion to a memory \
             request that is not the limit"
        } else {
            "swapBehavior is NoSwap"
        }
    )]
    NoSwap {
        /// `memorySwap.swapBehavior` is `LimitedSwap`, and does not give this container any.
        limited: bool,
    },
    /// `oom_score_adj` from a Burstable pod's memory request.
    #[display(
        "1000 - 1000 * (memory request {request}{}{}) / capacity {capacity}, within 3..=999 = {score}",
        if *of_smallest { " of the smallest container it serves" } else { "" },
        text::extra(*extra)
    )]
    OomScore {
        /// Of the container, or of the smallest that a sidecar serves.
        request: Bytes,
        /// Whether it is the smallest one's.
        of_smallest: bool,
        /// The container's part of what the pod asks for beyond its containers, bytes, saturating;
        /// below zero where they ask for more than the pod.
        extra: i64,
        /// Memory of the machine.
        capacity: Bytes,
        /// What it comes to.
        score: i32,
    },
    /// `oom_score_adj` that is the same for all of a kind.
    #[display("{}", text::of_class(*node_critical, *qos))]
    OomScoreOfClass {
        /// The pod is `system-node-critical`, whatever its class.
        node_critical: bool,
        /// Its class.
        qos: QosClass,
    },
    /// `podPidsLimit`.
    #[display("podPidsLimit")]
    PidsLimit,
    /// Huge pages that the pod asked for; a size that it did not ask for gets none.
    #[display("hugepages-{page_size} requested = {limit}")]
    Hugepages {
        /// Page size.
        page_size: Bytes,
        /// Amount.
        limit: Bytes,
    },
    /// Huge pages of `kubepods` and of a tier are not limited.
    #[display("hugepages-{page_size} are limited per pod")]
    HugepagesOfPods {
        /// Page size.
        page_size: Bytes,
    },
    /// A pod is evicted.
    #[display("{crossing}; first of {candidates}: {rank}")]
    Evict {
        /// What was crossed.
        crossing: Crossing,
        /// Why this pod.
        rank: Rank,
        /// How many pods could have been chosen.
        candidates: usize,
    },
}
