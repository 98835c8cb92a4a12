//! The reason for a value, as data; Display fills in the numbers.

use core::fmt;

use crate::{
    evict::Rank,
    limits::Limit,
    model::QosClass,
    pressure::Crossing,
    reserve::Daemons,
    units::{Bytes, CpuShares, MilliCpu},
};

/// Why podwarden does something.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "serde",
    serde(
        tag = "kind",
        rename_all = "camelCase",
        rename_all_fields = "camelCase"
    )
)]
#[non_exhaustive]
pub enum Reason {
    /// The cgroup of `kubepods` or of a tier does not exist yet.
    TierMissing,
    /// A pod has no cgroup yet.
    PodMissing {
        /// Its class.
        qos: QosClass,
    },
    /// A pod's cgroup is left over.
    PodGone,
    /// CPU shares from a pod's or tier's request.
    Shares {
        /// The request, or the sum of the tier's.
        cpu_request: MilliCpu,
        /// What it comes to.
        shares: CpuShares,
    },
    /// CPU shares of `kubepods`: what the node offers to pods.
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
    LeastShares,
    /// A quota from a pod's CPU limit.
    Quota {
        /// The limit.
        cpu_limit: MilliCpu,
        /// The period, microseconds.
        period_us: u64,
        /// The quota, microseconds.
        quota_us: Limit<u64>,
    },
    /// CPU limits are not enforced on this node (`cpuCFSQuota: false`).
    QuotaNotEnforced,
    /// Not every container has a limit, so the pod has none.
    NotAllLimited,
    /// Nothing limits this, and a limit was found.
    NoLimit,
    /// The sum of a pod's memory limits.
    MemoryLimit {
        /// The sum.
        limit: Bytes,
    },
    /// What the node offers to pods.
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
    NodeCapacityCpu {
        /// Of the machine.
        capacity: MilliCpu,
        /// What it comes to.
        shares: CpuShares,
    },
    /// Memory of `kubepods` where `enforceNodeAllocatable` does not name `pods`.
    NodeCapacityMemory {
        /// Of the machine.
        limit: Bytes,
    },
    /// Process ids of `kubepods` where `enforceNodeAllocatable` does not name `pods`.
    NodeCapacityPids {
        /// Of the machine.
        limit: u64,
    },
    /// A cgroup beside `kubepods` that a reserve is written to.
    Daemons {
        /// Whose.
        daemons: Daemons,
    },
    /// CPU shares of daemons: what is reserved for them.
    ReservedCpu {
        /// Whose.
        daemons: Daemons,
        /// What is reserved.
        cpu: MilliCpu,
        /// What it comes to.
        shares: CpuShares,
    },
    /// Memory of daemons: what is reserved for them.
    ReservedMemory {
        /// Whose.
        daemons: Daemons,
        /// What is reserved.
        memory: Bytes,
    },
    /// Process ids of daemons: what is reserved for them.
    ReservedPids {
        /// Whose.
        daemons: Daemons,
        /// What is reserved.
        pids: u64,
    },
    /// A tier's limit under `qosReserved`.
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
    HeldAboveUsage {
        /// What it ought to be.
        wanted: Bytes,
        /// What is in use.
        usage: Bytes,
        /// What is kept above usage.
        margin: Bytes,
    },
    /// Memory that is protected from reclaim because it was requested.
    MemoryReservation {
        /// The request, or the sum of those below.
        request: Bytes,
    },
    /// A container is slowed down before it reaches its limit.
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
    NotThrottled,
    /// A container may use swap in proportion to what it asked for.
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
    NoSwap {
        /// `memorySwap.swapBehavior` is `LimitedSwap`, and does not give this container any.
        limited: bool,
    },
    /// `oom_score_adj` from a Burstable pod's memory request.
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
    OomScoreOfClass {
        /// The pod is `system-node-critical`, whatever its class.
        node_critical: bool,
        /// Its class.
        qos: QosClass,
    },
    /// `podPidsLimit`.
    PidsLimit,
    /// Huge pages that the pod asked for; a size that it did not ask for gets none.
    Hugepages {
        /// Page size.
        page_size: Bytes,
        /// Amount.
        limit: Bytes,
    },
    /// Huge pages of `kubepods`: all that the node has.
    NodeHugepages {
        /// Page size.
        page_size: Bytes,
        /// Amount.
        limit: Bytes,
    },
    /// Huge pages of a tier are not limited.
    TierHugepages {
        /// Page size.
        page_size: Bytes,
    },
    /// A pod is evicted.
    Evict {
        /// What was crossed.
        crossing: Crossing,
        /// Why this pod.
        rank: Rank,
        /// How many pods could have been chosen.
        candidates: usize,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TierMissing => f.write_str("every node has it"),
            Self::PodMissing { qos } => write!(f, "a {qos} pod is to run"),
            Self::PodGone => f.write_str("its pod is gone"),
            Self::Shares {
                cpu_request,
                shares,
            } => write!(
                f,
                "cpu requests {cpu_request} * 1024 / 1000, within 2..=262144 = {shares}"
            ),
            Self::NodeCpu {
                capacity,
                kube_reserved,
                system_reserved,
                allocatable,
                shares,
            } => write!(
                f,
                "capacity {capacity} - kubeReserved {kube_reserved} \
                 - systemReserved {system_reserved} = {allocatable}; \
                 {allocatable} * 1024 / 1000, within 2..=262144 = {shares}"
            ),
            Self::LeastShares => f.write_str("BestEffort gets the least, 2"),
            Self::Quota {
                cpu_limit,
                period_us,
                quota_us,
            } => write!(
                f,
                "cpu limits {cpu_limit} * {period_us} us / 1000, at least 1000 us = {quota_us}"
            ),
            Self::QuotaNotEnforced => f.write_str("cpuCFSQuota is off"),
            Self::NotAllLimited => f.write_str("not every container has a limit"),
            Self::NoLimit => f.write_str("nothing limits it"),
            Self::MemoryLimit { limit } => write!(f, "memory limits = {limit}"),
            Self::NodeMemory {
                capacity,
                kube_reserved,
                system_reserved,
                limit,
            } => write!(
                f,
                "capacity {capacity} - kubeReserved {kube_reserved} \
                 - systemReserved {system_reserved} = {limit}"
            ),
            Self::NodePids {
                capacity,
                kube_reserved,
                system_reserved,
                limit,
            } => write!(
                f,
                "process ids {capacity} - kubeReserved {kube_reserved} \
                 - systemReserved {system_reserved} = {limit}"
            ),
            Self::NodeCapacityCpu { capacity, shares } => write!(
                f,
                "capacity {capacity}, for enforceNodeAllocatable has no pods; \
                 {capacity} * 1024 / 1000, within 2..=262144 = {shares}"
            ),
            Self::NodeCapacityMemory { limit } => write!(
                f,
                "capacity {limit}, for enforceNodeAllocatable has no pods"
            ),
            Self::NodeCapacityPids { limit } => write!(
                f,
                "process ids {limit}, for enforceNodeAllocatable has no pods"
            ),
            Self::Daemons { daemons } => write!(f, "{} is enforced here", daemons.field()),
            Self::ReservedCpu {
                daemons,
                cpu,
                shares,
            } => write!(
                f,
                "{} {cpu} * 1024 / 1000, within 2..=262144 = {shares}",
                daemons.field()
            ),
            Self::ReservedMemory { daemons, memory } => {
                write!(f, "{} = {memory}", daemons.field())
            }
            Self::ReservedPids { daemons, pids } => write!(f, "{} = {pids}", daemons.field()),
            Self::TierReserve {
                allocatable,
                guaranteed,
                burstable,
                percent,
                limit,
            } => {
                write!(f, "allocatable {allocatable}")?;
                write!(f, " - {percent}% of Guaranteed requests {guaranteed}")?;
                if let Some(burstable) = burstable {
                    write!(f, " - {percent}% of Burstable requests {burstable}")?;
                }
                write!(f, " = {limit}")
            }
            Self::HeldAboveUsage {
                wanted,
                usage,
                margin,
            } => write!(
                f,
                "wanted {wanted}, held at usage {usage} + margin {margin} until usage falls"
            ),
            Self::MemoryReservation { request } => {
                write!(f, "memory requests = {request}, kept from reclaim")
            }
            Self::MemoryHigh {
                request,
                ceiling,
                limited,
                factor,
                page,
                high,
            } => {
                let ceiling_is = if *limited { "limit" } else { "allocatable" };
                let factor = Millionths(*factor);
                write!(
                    f,
                    "request {request} + {factor} * ({ceiling_is} {ceiling} - request), \
                     in whole pages of {page} = {high}"
                )
            }
            Self::NotThrottled => f.write_str("nothing between its request and its limit"),
            Self::LimitedSwap {
                request,
                memory,
                swap,
                amount,
            } => write!(
                f,
                "memory request {request} / memory {memory} * swap {swap} = {amount}"
            ),
            Self::NoSwap { limited: false } => f.write_str("swapBehavior is NoSwap"),
            Self::NoSwap { limited: true } => f.write_str(
                "LimitedSwap gives swap to Burstable pods that are not critical, in proportion to a \
                 memory request that is not the limit",
            ),
            Self::OomScore {
                request,
                of_smallest,
                extra,
                capacity,
                score,
            } => {
                write!(f, "1000 - 1000 * (memory request {request}")?;
                if *of_smallest {
                    f.write_str(" of the smallest container it serves")?;
                }
                let sign = if *extra < 0 { '-' } else { '+' };
                let part = Bytes(extra.unsigned_abs());
                if *extra != 0 {
                    write!(f, " {sign} {part}, its part of the pod's own")?;
                }
                write!(f, ") / capacity {capacity}, within 3..=999 = {score}")
            }
            Self::OomScoreOfClass {
                node_critical: true,
                ..
            } => f.write_str("the pod is system-node-critical"),
            Self::OomScoreOfClass { qos, .. } => write!(f, "the same for every {qos} pod"),
            Self::PidsLimit => f.write_str("podPidsLimit"),
            Self::Hugepages { page_size, limit } => {
                write!(f, "hugepages-{page_size} requested = {limit}")
            }
            Self::NodeHugepages { page_size, limit } => {
                write!(f, "hugepages-{page_size} of the node = {limit}")
            }
            Self::TierHugepages { page_size } => {
                write!(f, "hugepages-{page_size} are limited per pod")
            }
            Self::Evict {
                crossing,
                rank,
                candidates,
            } => write!(f, "{crossing}; first of {candidates}: {rank}"),
        }
    }
}

/// A part of one, as a decimal without zeros at its end: 0.9 of 900,000.
struct Millionths(u32);

impl fmt::Display for Millionths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ONE: u32 = crate::container::THROTTLING_FACTOR_ONE;
        write!(f, "{}", self.0 / ONE)?;
        let mut fraction = self.0 % ONE;
        let mut digit = ONE / 10;
        if fraction > 0 {
            f.write_str(".")?;
        }
        while fraction > 0 {
            write!(f, "{}", fraction / digit)?;
            fraction %= digit;
            digit /= 10;
        }
        Ok(())
    }
}
