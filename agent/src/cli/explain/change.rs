//! What would change a value.

use podwarden_policy::{container::ContainerValue, reason::Reason, settings::Setting};

/// Whose value it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// `kubepods`.
    Node,
    /// `burstable` or `besteffort`.
    Tier,
    /// A pod's.
    Pod,
}

/// One phrase, after "changes with".
pub(super) fn changes_with(scope: Scope, setting: &Setting, reason: &Reason) -> &'static str {
    use Scope::{Node, Pod, Tier};
    match (reason, scope) {
        (Reason::NodeCpu { .. }, _) => "the node's CPUs, kubeReserved.cpu and systemReserved.cpu",
        (Reason::Shares { .. }, Node | Tier) => {
            "Burstable pods that come or go, and their cpu requests"
        }
        (Reason::Shares { .. }, Pod) => "the cpu requests of its containers, and its overhead",
        (Reason::LeastShares, Pod) | (Reason::NoLimit, Pod)
            if !matches!(setting, Setting::PidsLimit(_)) && !is_protection(setting) =>
        {
            "a request or limit of cpu or memory, which ends its being BestEffort"
        }
        (Reason::LeastShares, _) => "nothing, it is fixed",
        (Reason::Quota { .. }, _) => "the cpu limits of its containers, and cpuCFSQuotaPeriod",
        (Reason::QuotaNotEnforced, _) => "cpuCFSQuota",
        (Reason::NotAllLimited, _) => match setting {
            Setting::CpuMax(_) => "a cpu limit on every container, or on the pod",
            _ => "a memory limit on every container, or on the pod",
        },
        (Reason::MemoryLimit { .. }, _) => "the memory limits of its containers, and its overhead",
        (Reason::NodeMemory { .. }, _) => {
            "the node's memory, kubeReserved.memory and systemReserved.memory"
        }
        (Reason::NodePids { .. }, _) => {
            "kernel.pid_max, kernel.threads-max, kubeReserved.pid and systemReserved.pid"
        }
        (Reason::NodeCapacityCpu { .. }, _) => "the node's CPUs and enforceNodeAllocatable",
        (Reason::NodeCapacityMemory { .. }, _) => "the node's memory and enforceNodeAllocatable",
        (Reason::NodeCapacityPids { .. }, _) => {
            "kernel.pid_max, kernel.threads-max and enforceNodeAllocatable"
        }
        (Reason::TierReserve { burstable, .. }, _) => match burstable {
            None => {
                "the memory requests of Guaranteed pods, qosReserved.memory and what is allocatable"
            }
            Some(_) => {
                "the memory requests of Guaranteed and Burstable pods, qosReserved.memory and what \
                 is allocatable"
            }
        },
        (Reason::HeldAboveUsage { .. }, _) => "usage: it follows as usage falls",
        (Reason::MemoryReservation { .. }, Pod) => "the memory requests of its containers",
        (Reason::MemoryReservation { .. }, _) => "pods that come or go, and their memory requests",
        (Reason::PidsLimit, _) => "podPidsLimit",
        (Reason::Hugepages { .. }, _) => "its requests of that size",
        (Reason::HugepagesOfPods { .. }, _) => "nothing, it is fixed",
        (Reason::NoLimit, _) => match setting {
            Setting::PidsLimit(_) => "podPidsLimit",
            Setting::MemoryLimit(_) => "qosReserved.memory",
            _ if is_protection(setting) => "memoryReservationPolicy",
            _ => "nothing, it is fixed",
        },
        // Reasons of cgroups as such, not of values.
        _ => "the pods of this node",
    }
}

/// The same for a value of a container.
pub(super) const fn changes_container_with(
    value: &ContainerValue,
    reason: &Reason,
) -> &'static str {
    match (value, reason) {
        (ContainerValue::CpuShares(_), _) => {
            "its cpu request, or its limit where it has no request"
        }
        (ContainerValue::CpuMax(_), Reason::QuotaNotEnforced) => "cpuCFSQuota",
        (ContainerValue::CpuMax(_), _) => "its cpu limit, and cpuCFSQuotaPeriod",
        (ContainerValue::MemoryLimit(_), _) => "its memory limit",
        (ContainerValue::MemoryMin(_) | ContainerValue::MemoryLow(_), _) => {
            "its memory request, the pod's class and memoryReservationPolicy"
        }
        (ContainerValue::MemoryHigh(_), _) => {
            "its memory request and limit, memoryThrottlingFactor, and what is allocatable"
        }
        (ContainerValue::SwapMax(_), Reason::NoSwap { limited: false }) => {
            "memorySwap.swapBehavior"
        }
        (ContainerValue::SwapMax(_), _) => {
            "its memory request, the pod's class, and the node's memory and swap"
        }
        (ContainerValue::OomScoreAdj(_), _) => {
            "its memory request, the pod's class and priority class, and the node's memory"
        }
    }
}

const fn is_protection(setting: &Setting) -> bool {
    matches!(setting, Setting::MemoryMin(_) | Setting::MemoryLow(_))
}
