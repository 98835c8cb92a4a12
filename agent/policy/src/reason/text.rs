//! A reason as text: the numbers filled into the formula.

use core::fmt;

use super::Reason;
use crate::units::Bytes;

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
            Self::ReclaimedShares {
                tier,
                cpu_request,
                shares,
            } => write!(
                f,
                "{} requests {cpu_request} * 1024 / 1000, within 2..=262144 = {shares}",
                tier.resources()[0]
            ),
            Self::ReclaimedQuota {
                tier,
                cpu_limit,
                period_us,
                quota_us,
            } => write!(
                f,
                "{} limits {cpu_limit} * {period_us} us / 1000, at least 1000 us = {quota_us}",
                tier.resources()[0]
            ),
            Self::ReclaimedMemory { tier, limit } => {
                write!(f, "{} limits = {limit}", tier.resources()[1])
            }
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
            Self::HugepagesOfPods { page_size } => {
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
