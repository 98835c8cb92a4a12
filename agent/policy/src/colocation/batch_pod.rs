//! The cgroup values of a pod that asks for reclaimed resources (`kubernetes.io/batch-cpu` and the like).
//!
//! Kubernetes knows such a pod as BestEffort: it asks for neither `cpu` nor `memory`, and the kubelet gives it
//! shares 2 and no limit. The law is that of koordinator
//! `pkg/koordlet/runtimehooks/hooks/batchresource/batch_resource.go`, with two differences: init containers and
//! sidecars count as they do for the scheduler, and the pod's overhead is added.

use crate::{
    convert,
    limits::{self, CpuMax, Limit, Totals},
    model::{Pod, Reclaimed, ReclaimedTier, Resources},
    units::{Bytes, CpuShares, MilliCpu},
};

/// What the values depend on beside the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchOptions {
    /// Whether CPU limits become quotas.
    pub enforce_cpu_limits: bool,
    /// The CFS period, microseconds.
    pub cpu_period_us: u64,
    /// How much faster than the nominal CPU this node's are, in percent: quotas are divided by it. 100 and less
    /// change nothing (`cpu-normalization-ratio`).
    pub normalization_percent: u32,
}

impl Default for BatchOptions {
    fn default() -> Self {
        Self {
            enforce_cpu_limits: true,
            cpu_period_us: convert::DEFAULT_PERIOD_US,
            normalization_percent: 100,
        }
    }
}

/// What the cgroup of a pod or a container is to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchValues {
    /// What the CPU request comes to; the least shares without one.
    pub shares: CpuShares,
    /// The CPU request that the shares are from.
    pub cpu_request: MilliCpu,
    /// The CPU limit that the quota is from; `None` without one.
    pub cpu_limit: Option<MilliCpu>,
    /// Quota and period.
    pub cpu_max: CpuMax,
    /// The memory limit.
    pub memory_limit: Limit<Bytes>,
}

/// The quota of a CPU limit: a tenth of a millisecond for each milli-CPU in a period of 100 ms, at least
/// [`convert::MIN_QUOTA_US`], divided by the normalization and rounded up.
pub fn quota_us(limit: MilliCpu, options: &BatchOptions) -> Limit<u64> {
    if !options.enforce_cpu_limits {
        return Limit::Unlimited;
    }
    let Some(quota) = convert::milli_to_quota(limit, options.cpu_period_us) else {
        return Limit::Unlimited;
    };
    let percent = u128::from(options.normalization_percent.max(100));
    let scaled = (u128::from(quota) * 100).div_ceil(percent);
    Limit::At(u64::try_from(scaled).unwrap_or(u64::MAX))
}

/// The values of a container; `None` for one that asks for no reclaimed resources, which is left as it is.
pub fn container(resources: &Resources, options: &BatchOptions) -> Option<BatchValues> {
    let reclaimed = resources.reclaimed?;
    Some(values(
        reclaimed.cpu_request.unwrap_or_default(),
        reclaimed.cpu_limit,
        reclaimed.memory_limit,
        options,
    ))
}

/// The values of a pod's cgroup; `None` where no container asks for reclaimed resources. A pod is limited only
/// where each of its containers is.
pub fn pod(pod: &Pod, options: &BatchOptions) -> Option<BatchValues> {
    tier(pod)?;
    let request = requests(pod);
    let limit = limits::aggregate(pod, |resources| {
        let reclaimed = resources.reclaimed.unwrap_or_default();
        totals(reclaimed.cpu_limit, reclaimed.memory_limit)
    });
    let all = |limited: fn(&Reclaimed) -> bool| {
        let of = |resources: &Resources| resources.reclaimed.as_ref().is_some_and(limited);
        pod.containers.iter().all(|c| of(&c.resources))
    };
    let cpu = all(|r| r.cpu_limit.is_some_and(|limit| !limit.is_zero()));
    let memory = all(|r| r.memory_limit.is_some_and(|limit| !limit.is_zero()));
    let overhead = pod.overhead.unwrap_or_default();
    Some(values(
        request.cpu,
        cpu.then(|| limit.cpu.saturating_add(overhead.cpu.unwrap_or_default())),
        memory.then(|| {
            let overhead = overhead.memory.unwrap_or_default();
            limit.memory.saturating_add(overhead)
        }),
        options,
    ))
}

/// What a pod asks for of the reclaimed resources; a container without a request asks for nothing.
pub fn requests(pod: &Pod) -> Totals {
    limits::aggregate(pod, |resources| {
        let reclaimed = resources.reclaimed.unwrap_or_default();
        totals(reclaimed.cpu_request, reclaimed.memory_request)
    })
}

/// Which reclaimed resources a pod asks for: those of its first container that asks for any.
pub fn tier(pod: &Pod) -> Option<ReclaimedTier> {
    let mut all = pod.containers.iter();
    all.find_map(|c| Some(c.resources.reclaimed?.tier))
}

fn totals(cpu: Option<MilliCpu>, memory: Option<Bytes>) -> Totals {
    Totals {
        cpu: cpu.unwrap_or_default(),
        memory: memory.unwrap_or_default(),
        ..Totals::default()
    }
}

/// A limit of zero is none.
fn values(
    cpu_request: MilliCpu,
    cpu_limit: Option<MilliCpu>,
    memory_limit: Option<Bytes>,
    options: &BatchOptions,
) -> BatchValues {
    let cpu_limit = cpu_limit.filter(|limit| !limit.is_zero());
    BatchValues {
        shares: convert::milli_to_shares(cpu_request),
        cpu_request,
        cpu_limit,
        cpu_max: CpuMax {
            quota_us: quota_us(cpu_limit.unwrap_or_default(), options),
            period_us: options.cpu_period_us,
        },
        memory_limit: memory_limit.filter(|limit| !limit.is_zero()).into(),
    }
}
