//! Values of single containers that the runtime does not set by itself, or sets from these figures.

use crate::{
    limits,
    model::{Container, ContainerKind, Node, Pod, QosClass},
    qos,
    units::Bytes,
};

mod values;

pub use values::{ContainerOptions, ContainerValue, values};

/// `oom_score_adj` of what the kernel should kill last: Guaranteed and node-critical pods
/// (`guaranteedOOMScoreAdj` of kubelet `pkg/kubelet/qos/policy.go`).
pub const GUARANTEED_OOM_SCORE_ADJ: i32 = -997;
/// `oom_score_adj` of what the kernel should kill first (`besteffortOOMScoreAdj`, same file).
pub const BESTEFFORT_OOM_SCORE_ADJ: i32 = 1000;

/// `oom_score_adj` of a container's processes
/// (`GetContainerOOMScoreAdjust` of kubelet `pkg/kubelet/qos/policy.go`).
///
/// Burstable: `1000 - 1000 * request / capacity`, within 3..=999. What the pod asks for beyond its
/// containers counts in equal parts to each of them. A sidecar is no likelier to be killed than
/// the smallest container it serves.
///
/// `None` when the node's capacity is not known (zero) and the answer depends on it.
pub fn oom_score_adj(pod: &Pod, container: &Container, memory_capacity: Bytes) -> Option<i32> {
    if pod.node_critical {
        return Some(GUARANTEED_OOM_SCORE_ADJ);
    }
    match qos::classify(pod) {
        QosClass::Guaranteed => Some(GUARANTEED_OOM_SCORE_ADJ),
        QosClass::BestEffort => Some(BESTEFFORT_OOM_SCORE_ADJ),
        QosClass::Burstable => Some(burstable_score(pod, container, memory_capacity)?.score),
    }
}

/// The score of a Burstable pod's container, with what it was computed from.
struct BurstableScore {
    /// The memory request that counts, bytes: the container's own, or the smallest one it serves.
    request: Bytes,
    /// Whether it is the smallest one's.
    of_smallest: bool,
    /// The container's part of what the pod asks for beyond its containers, bytes.
    extra: i128,
    /// What they come to.
    score: i32,
}

/// `None` for a capacity of zero.
fn burstable_score(pod: &Pod, container: &Container, capacity: Bytes) -> Option<BurstableScore> {
    if capacity.is_zero() {
        return None;
    }
    let extra = unassigned_request(pod);
    let request = |c: &Container| c.resources.memory_request.unwrap_or_default();
    let own = request(container);
    let smallest = match container.kind {
        ContainerKind::Sidecar => pod.app_containers().map(request).min(),
        ContainerKind::App | ContainerKind::Init => None,
    };
    // The score falls as the request grows.
    let larger = smallest.filter(|smallest| *smallest > own);
    let request = larger.unwrap_or(own);
    let score = 1000 - (i128::from(request.0) + extra) * 1000 / i128::from(capacity.0);
    let least = i128::from(1000 + GUARANTEED_OOM_SCORE_ADJ);
    let most = i128::from(BESTEFFORT_OOM_SCORE_ADJ - 1);
    Some(BurstableScore {
        request,
        of_smallest: larger.is_some(),
        extra,
        score: i32::try_from(score.clamp(least, most)).ok()?,
    })
}

/// The same for a container of the pod that is not known by name: no less likely to be killed than
/// any that it may be. `None` also for a Burstable pod without containers.
pub fn unnamed_oom_score_adj(pod: &Pod, memory_capacity: Bytes) -> Option<i32> {
    let scores = pod
        .containers
        .iter()
        .map(|container| oom_score_adj(pod, container, memory_capacity));
    scores.max().flatten()
}

/// What the pod asks for beyond what its containers do, for each container; below zero where the
/// containers ask for more (`remainingPodMemReqPerContainer` of kubelet
/// `pkg/kubelet/qos/helpers.go`).
fn unassigned_request(pod: &Pod) -> i128 {
    let own = pod.pod_resources.as_ref().and_then(|r| r.memory_request);
    let Some(own) = own.filter(|request| !request.is_zero()) else {
        return 0;
    };
    let containers = limits::container_requests(pod).memory;
    let count = i128::try_from(pod.containers.len().max(1)).unwrap_or(1);
    (i128::from(own.0) - i128::from(containers.0)) / count
}

/// Parts of one that [`memory_high`]'s factor counts in: 0.9 is 900,000.
pub const THROTTLING_FACTOR_ONE: u32 = 1_000_000;

/// `memory.high` of a container:
/// `floor((request + factor * (limit - request)) / page) * page`, with the node's allocatable
/// memory for a limit that is not set (KEP-2570; `generateLinuxContainerResources` of kubelet
/// `pkg/kubelet/kuberuntime/kuberuntime_container_linux.go`).
///
/// `None`, for no throttling, when request and limit are equal and not zero, when neither a limit
/// nor the allocatable memory is known, and when the result would not be above the request.
pub fn memory_high(
    request: Option<Bytes>,
    limit: Option<Bytes>,
    allocatable: Bytes,
    factor: u32,
    page: Bytes,
) -> Option<Bytes> {
    let request = request.unwrap_or_default();
    let limit = limit.filter(|limit| !limit.is_zero());
    if limit == Some(request) {
        return None;
    }
    let ceiling = limit.unwrap_or(allocatable);
    let factor = u64::from(factor.min(THROTTLING_FACTOR_ONE));
    let span = ceiling.saturating_sub(request);
    let high = request
        .saturating_add(span.mul_div(factor, THROTTLING_FACTOR_ONE.into()))
        .round_down(page);
    (high > request).then_some(high)
}

/// How much swap a container may use under `LimitedSwap`: the node's swap in proportion to the
/// container's memory request, rounded down (`GetContainerSwapBehavior` and
/// `calcSwapForBurstablePods` of kubelet
/// `pkg/kubelet/kuberuntime/kuberuntime_container_linux.go`).
///
/// Zero for everything but Burstable, for critical and static pods (`IsCriticalPod` of kubelet
/// `pkg/kubelet/types/pod_update.go` is true of both), for containers that ask for no memory or
/// for exactly their limit, and for a request above the node's memory.
pub fn limited_swap(pod: &Pod, container: &Container, node: &Node) -> Bytes {
    let request = container.resources.memory_request.unwrap_or_default();
    let eligible = qos::classify(pod) == QosClass::Burstable
        && !pod.is_critical()
        && !pod.static_pod
        && !request.is_zero()
        && container.resources.memory_limit != Some(request)
        && request <= node.memory_capacity;
    if eligible {
        request.mul_div(node.swap_capacity.0, node.memory_capacity.0)
    } else {
        Bytes::ZERO
    }
}
