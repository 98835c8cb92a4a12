//! Every value for a container's runtime, each with its reason
//! (`generateLinuxContainerResources` of kubelet
//! `pkg/kubelet/kuberuntime/kuberuntime_container_linux.go`).
//!
//! podwarden does not write these: a container's cgroup belongs to its runtime. They are shown, so that
//! the runtime's values can be compared with those that follow from the pod.

use alloc::vec::Vec;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use super::{burstable_score, limited_swap, memory_high, oom_score_adj};
use crate::{
    convert,
    limits::{CpuMax, Limit},
    model::{Container, Pod, QosClass, Resources},
    plan::Snapshot,
    qos,
    reason::Reason,
    reserve,
    units::{Bytes, CpuShares, MilliCpu, saturate},
};

/// What only containers have; the defaults are those of KubeletConfiguration 1.37, with which
/// nothing is throttled that the operator did not ask to be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerOptions {
    /// `memoryThrottlingFactor` in parts of [`super::THROTTLING_FACTOR_ONE`], above 0; `None` for no
    /// `memory.high`.
    pub throttling_factor: Option<u32>,
    /// `memorySwap.swapBehavior` is `LimitedSwap`, not `NoSwap`.
    pub limited_swap: bool,
}

/// A value of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, Serialize, Deserialize)]
#[serde(tag = "property", content = "value", rename_all = "camelCase")]
pub enum ContainerValue {
    /// `cpu.shares`; `cpu.weight` by [`convert::shares_to_weight_log`].
    #[display("cpu shares {_0}")]
    CpuShares(CpuShares),
    /// `cpu.cfs_quota_us` and `cpu.cfs_period_us`; `cpu.max`.
    #[display("cpu quota {_0}")]
    CpuMax(CpuMax),
    /// `memory.limit_in_bytes`; `memory.max`.
    #[display("memory limit {_0}")]
    MemoryLimit(Limit<Bytes>),
    /// `memory.min`, v2.
    #[display("memory min {_0}")]
    MemoryMin(Bytes),
    /// `memory.low`, v2.
    #[display("memory low {_0}")]
    MemoryLow(Bytes),
    /// `memory.high`, v2.
    #[display("memory high {_0}")]
    MemoryHigh(Limit<Bytes>),
    /// `memory.swap.max`, v2.
    #[display("swap limit {_0}")]
    SwapMax(Bytes),
    /// `oom_score_adj` of its processes, -1000 to 1000.
    #[display("oom_score_adj {_0}")]
    OomScoreAdj(i32),
}

/// The values of a container, those of cgroup v2 alone only where `memory_protection` is among the
/// snapshot's controllers.
pub fn values(
    snapshot: &Snapshot,
    pod: &Pod,
    container: &Container,
) -> Vec<(ContainerValue, Reason)> {
    let mut values = Vec::from([
        cpu_shares(pod, container),
        cpu_max(snapshot, pod, container),
        memory_limit(pod, container),
    ]);
    if snapshot.controllers.memory_protection {
        values.extend(protection(snapshot, pod, container));
        values.extend(throttling(snapshot, container));
        values.push(swap(snapshot, pod, container));
    }
    values.extend(oom_score(snapshot, pod, container));
    values
}

/// The CPU limit that counts for a container: the pod's own where the container has none
/// (`getCPULimit`). Zero for none.
fn cpu_limit(pod: &Pod, container: &Container) -> MilliCpu {
    let limit = |r: &Resources| r.cpu_limit.filter(|limit| !limit.is_zero());
    let own = limit(&container.resources);
    own.or_else(|| limit(pod.pod_resources.as_ref()?))
        .unwrap_or_default()
}

/// A request that is not written is the limit that counts; one that is written as zero is zero
/// (`calculateLinuxResources`).
fn cpu_shares(pod: &Pod, container: &Container) -> (ContainerValue, Reason) {
    let request = container.resources.cpu_request;
    let cpu_request = request.unwrap_or_else(|| cpu_limit(pod, container));
    let shares = convert::milli_to_shares(cpu_request);
    let reason = Reason::Shares {
        cpu_request,
        shares,
    };
    (ContainerValue::CpuShares(shares), reason)
}

fn cpu_max(snapshot: &Snapshot, pod: &Pod, container: &Container) -> (ContainerValue, Reason) {
    let period_us = snapshot.limits.cpu_period_us;
    let limit = cpu_limit(pod, container);
    let quota = convert::milli_to_quota(limit, period_us);
    let (quota_us, reason) = match quota {
        None => (Limit::Unlimited, Reason::NoLimit),
        Some(_) if !snapshot.limits.enforce_cpu_limits => {
            (Limit::Unlimited, Reason::QuotaNotEnforced)
        }
        Some(quota) => {
            let quota_us = Limit::At(quota);
            let reason = Reason::Quota {
                cpu_limit: limit,
                period_us,
                quota_us,
            };
            (quota_us, reason)
        }
    };
    let max = CpuMax {
        quota_us,
        period_us,
    };
    (ContainerValue::CpuMax(max), reason)
}

/// The pod's own limit where the container has none (`getMemoryLimit`).
fn memory_limit(pod: &Pod, container: &Container) -> (ContainerValue, Reason) {
    let limit = |r: &Resources| r.memory_limit.filter(|limit| !limit.is_zero());
    let own = limit(&container.resources);
    let limit = own.or_else(|| limit(pod.pod_resources.as_ref()?));
    let reason = limit.map_or(Reason::NoLimit, |limit| Reason::MemoryLimit { limit });
    (ContainerValue::MemoryLimit(limit.into()), reason)
}

/// `memory.min` of a Guaranteed and `memory.low` of a Burstable pod's container are its request.
fn protection(
    snapshot: &Snapshot,
    pod: &Pod,
    container: &Container,
) -> [(ContainerValue, Reason); 2] {
    let request = container.resources.memory_request.unwrap_or_default();
    let class = qos::classify(pod);
    let of = |protected: QosClass| {
        if snapshot.limits.memory_reservation && class == protected && !request.is_zero() {
            (request, Reason::MemoryReservation { request })
        } else {
            (Bytes::ZERO, Reason::NoLimit)
        }
    };
    let (min, min_reason) = of(QosClass::Guaranteed);
    let (low, low_reason) = of(QosClass::Burstable);
    [
        (ContainerValue::MemoryMin(min), min_reason),
        (ContainerValue::MemoryLow(low), low_reason),
    ]
}

/// `None` where throttling is not configured. Nothing is between a request and an equal limit, and a
/// container that has neither counts so in kubelet 1.36: both are zero.
fn throttling(snapshot: &Snapshot, container: &Container) -> Option<(ContainerValue, Reason)> {
    let factor = snapshot.containers.throttling_factor?;
    let resources = &container.resources;
    let allocatable = reserve::allocatable(&snapshot.node).kubepods_memory;
    let (request, limit) = (resources.memory_request, resources.memory_limit);
    let differ = request.unwrap_or_default() != limit.unwrap_or_default();
    let high = differ
        .then(|| memory_high(request, limit, allocatable, factor, snapshot.page_size))
        .flatten();
    let limit = limit.filter(|limit| !limit.is_zero());
    let reason = match high {
        Some(high) => Reason::MemoryHigh {
            request: request.unwrap_or_default(),
            ceiling: limit.unwrap_or(allocatable),
            limited: limit.is_some(),
            factor,
            page: snapshot.page_size,
            high,
        },
        None => Reason::NotThrottled,
    };
    Some((ContainerValue::MemoryHigh(high.into()), reason))
}

fn swap(snapshot: &Snapshot, pod: &Pod, container: &Container) -> (ContainerValue, Reason) {
    let node = &snapshot.node;
    let amount = limited_swap(pod, container, node);
    if !snapshot.containers.limited_swap || amount.is_zero() {
        let limited = snapshot.containers.limited_swap;
        return (
            ContainerValue::SwapMax(Bytes::ZERO),
            Reason::NoSwap { limited },
        );
    }
    let reason = Reason::LimitedSwap {
        request: container.resources.memory_request.unwrap_or_default(),
        memory: node.memory_capacity,
        swap: node.swap_capacity,
        amount,
    };
    (ContainerValue::SwapMax(amount), reason)
}

fn oom_score(
    snapshot: &Snapshot,
    pod: &Pod,
    container: &Container,
) -> Option<(ContainerValue, Reason)> {
    let capacity = snapshot.node.memory_capacity;
    let score = oom_score_adj(pod, container, capacity)?;
    let qos = qos::classify(pod);
    let reason = if pod.node_critical || qos != QosClass::Burstable {
        Reason::OomScoreOfClass {
            node_critical: pod.node_critical,
            qos,
        }
    } else {
        let parts = burstable_score(pod, container, capacity)?;
        Reason::OomScore {
            request: parts.request,
            of_smallest: parts.of_smallest,
            extra: saturate(parts.extra),
            capacity,
            score,
        }
    };
    Some((ContainerValue::OomScoreAdj(score), reason))
}
