//! The desired values of a pod's and a tier's cgroup.

use alloc::collections::BTreeMap;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::{
    convert,
    model::{ContainerKind, Pod, QosClass, Resources},
    qos,
    units::{Bytes, CpuShares, MilliCpu},
};

/// The configuration that pod values depend on; the defaults are KubeletConfiguration's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LimitOptions {
    /// `cpuCFSQuota`: whether CPU limits become quotas.
    pub enforce_cpu_limits: bool,
    /// `cpuCFSQuotaPeriod`, microseconds.
    pub cpu_period_us: u64,
    /// `podPidsLimit`; `None` for no limit (the kubelet's -1).
    pub pod_pids_limit: Option<u64>,
    /// Whether `memory.min` and `memory.low` carry the requests (cgroup v2 only): the feature
    /// MemoryQoS with `memoryReservationPolicy: TieredReservation`.
    pub memory_reservation: bool,
}

impl Default for LimitOptions {
    fn default() -> Self {
        Self {
            enforce_cpu_limits: true,
            cpu_period_us: convert::DEFAULT_PERIOD_US,
            pod_pids_limit: None,
            memory_reservation: false,
        }
    }
}

/// An upper bound, or none.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Display, Serialize, Deserialize,
)]
#[serde(rename_all = "camelCase")]
pub enum Limit<T> {
    /// This much.
    At(T),
    /// `max` on v2; -1 or the page counter's largest value on v1.
    #[display("max")]
    Unlimited,
}

impl<T> Limit<T> {
    /// The bound, if there is one.
    pub fn bound(self) -> Option<T> {
        match self {
            Self::At(bound) => Some(bound),
            Self::Unlimited => None,
        }
    }
}

impl<T> From<Option<T>> for Limit<T> {
    fn from(bound: Option<T>) -> Self {
        bound.map_or(Self::Unlimited, Self::At)
    }
}

/// A CFS bandwidth: so many microseconds of CPU time in each period.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Display, Serialize, Deserialize,
)]
#[serde(rename_all = "camelCase")]
#[display("{quota_us} of {period_us} us")]
pub struct CpuMax {
    /// Microseconds per period (`-1` on v1 and `max` on v2 when unlimited).
    pub quota_us: Limit<u64>,
    /// The period, microseconds.
    pub period_us: u64,
}

/// What a pod's cgroup is to hold. `None` is "the kubelet writes nothing", which leaves a fresh
/// cgroup unlimited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodConfig {
    /// The class that decided which values there are.
    pub qos: QosClass,
    /// From the CPU request.
    pub shares: CpuShares,
    /// From the CPU limit.
    pub cpu_max: Option<CpuMax>,
    /// From the memory limit.
    pub memory_limit: Option<Bytes>,
    /// Page size to limit, bytes.
    pub hugetlb: BTreeMap<Bytes, Bytes>,
    /// `podPidsLimit`.
    pub pids_limit: Option<u64>,
    /// `memory.min`, Guaranteed pods with memory reservation on.
    pub memory_min: Option<Bytes>,
    /// `memory.low`, Burstable pods with memory reservation on.
    pub memory_low: Option<Bytes>,
}

/// The values of a pod's cgroup (`ResourceConfigForPod` of kubelet `pkg/kubelet/cm/helpers_linux.go`).
pub fn pod_config(pod: &Pod, options: &LimitOptions) -> PodConfig {
    let class = qos::classify(pod);
    let requests = pod_requests(pod);
    let limits = pod_limits(pod);
    let declared = LimitsDeclared::of(pod);

    let quota = || CpuMax {
        quota_us: options
            .enforce_cpu_limits
            .then(|| convert::milli_to_quota(limits.cpu, options.cpu_period_us))
            .flatten()
            .into(),
        period_us: options.cpu_period_us,
    };
    let (shares, cpu_max, memory_limit) = match class {
        QosClass::Guaranteed => (
            convert::milli_to_shares(requests.cpu),
            Some(quota()),
            Some(limits.memory),
        ),
        QosClass::Burstable => (
            convert::milli_to_shares(requests.cpu),
            declared.cpu.then(quota),
            // Zero only for a pod without containers; the runtime libraries take it for "not set".
            Some(limits.memory).filter(|limit| declared.memory && !limit.is_zero()),
        ),
        QosClass::BestEffort => (CpuShares::MIN, None, None),
    };
    let reserved =
        (options.memory_reservation && !requests.memory.is_zero()).then_some(requests.memory);
    PodConfig {
        qos: class,
        shares,
        cpu_max,
        memory_limit,
        hugetlb: requests.hugepages,
        pids_limit: options.pod_pids_limit,
        memory_min: reserved.filter(|_| class == QosClass::Guaranteed),
        memory_low: reserved.filter(|_| class == QosClass::Burstable),
    }
}

/// What a tier's cgroup is to hold, apart from its memory limit (see [`crate::reserve`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TierConfig {
    /// Pods in the tier.
    pub pods: usize,
    /// Sum of their CPU requests.
    pub cpu_request: MilliCpu,
    /// Sum of their memory requests.
    pub memory_request: Bytes,
    /// Burstable: from the sum of the requests, at least 2. BestEffort: 2.
    pub shares: CpuShares,
}

/// The values of a tier's cgroup (`setCPUCgroupConfig` of kubelet
/// `pkg/kubelet/cm/qos_container_manager_linux.go`). For [`QosClass::Guaranteed`], which has no
/// cgroup of its own, the sums are still of use; its shares are those of the sum.
pub fn tier_config<'a>(pods: impl IntoIterator<Item = &'a Pod>, tier: QosClass) -> TierConfig {
    let mut config = TierConfig::default();
    for pod in pods {
        if qos::classify(pod) == tier {
            let requests = pod_requests(pod);
            config.pods += 1;
            config.cpu_request = config.cpu_request.saturating_add(requests.cpu);
            config.memory_request = config.memory_request.saturating_add(requests.memory);
        }
    }
    config.shares = match tier {
        QosClass::BestEffort => CpuShares::MIN,
        QosClass::Burstable | QosClass::Guaranteed => convert::milli_to_shares(config.cpu_request),
    };
    config
}

/// CPU, memory and huge pages of a whole pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    /// CPU.
    pub cpu: MilliCpu,
    /// Memory.
    pub memory: Bytes,
    /// Page size to amount, bytes.
    pub hugepages: BTreeMap<Bytes, Bytes>,
}

impl Totals {
    fn add(&mut self, other: &Self) {
        self.cpu = self.cpu.saturating_add(other.cpu);
        self.memory = self.memory.saturating_add(other.memory);
        for (size, amount) in &other.hugepages {
            let sum = self.hugepages.entry(*size).or_default();
            *sum = sum.saturating_add(*amount);
        }
    }

    fn max(&mut self, other: &Self) {
        self.cpu = self.cpu.max(other.cpu);
        self.memory = self.memory.max(other.memory);
        for (size, amount) in &other.hugepages {
            let most = self.hugepages.entry(*size).or_default();
            *most = (*most).max(*amount);
        }
    }

    fn requests(resources: &Resources) -> Self {
        Self {
            cpu: resources.cpu_request.unwrap_or_default(),
            memory: resources.memory_request.unwrap_or_default(),
            hugepages: resources.hugepages.clone(),
        }
    }

    fn limits(resources: &Resources) -> Self {
        Self {
            cpu: resources.cpu_limit.unwrap_or_default(),
            memory: resources.memory_limit.unwrap_or_default(),
            hugepages: resources.hugepages.clone(),
        }
    }
}

/// What a pod asks for (`PodRequests` of component-helpers `resource/helpers.go`): the containers
/// and sidecars together, or the most that any init container needs beside the sidecars before it;
/// what is written for the pod itself replaces that; the overhead comes on top.
pub fn pod_requests(pod: &Pod) -> Totals {
    let mut total = container_requests(pod);
    if let Some(own) = &pod.pod_resources {
        total.cpu = own.cpu_request.unwrap_or(total.cpu);
        total.memory = own.memory_request.unwrap_or(total.memory);
        total.hugepages.extend(&own.hugepages);
    }
    if let Some(overhead) = &pod.overhead {
        total.cpu = total.cpu.saturating_add(overhead.cpu.unwrap_or_default());
        total.memory = total
            .memory
            .saturating_add(overhead.memory.unwrap_or_default());
    }
    total
}

/// The memory request that a pod's usage is compared with in a ranking (`GetResourceRequestQuantity`
/// of Kubernetes `pkg/api/v1/resource/helpers.go`).
///
/// Not that of [`pod_requests`] in two cases: a pod with resources of its own asks for what it says
/// itself, also where it says nothing of memory; and a pod that asks for no memory has no overhead.
pub fn ranking_memory_request(pod: &Pod) -> Bytes {
    let own = pod.pod_resources.as_ref().filter(|own| own.is_written());
    let request = match own {
        Some(own) => own.memory_request.unwrap_or_default(),
        None => container_requests(pod).memory,
    };
    let overhead = pod.overhead.and_then(|overhead| overhead.memory);
    match overhead {
        Some(overhead) if !request.is_zero() => request.saturating_add(overhead),
        _ => request,
    }
}

/// The sum of a pod's container requests, see [`pod_requests`].
pub(crate) fn container_requests(pod: &Pod) -> Totals {
    aggregate(pod, Totals::requests)
}

/// What a pod may use (`PodLimits` of component-helpers `resource/helpers.go`): as
/// [`pod_requests`], except that the overhead is added to limits that are not zero only. A zero is
/// the sum of nothing; whether it is a limit depends on the class.
pub fn pod_limits(pod: &Pod) -> Totals {
    let mut total = aggregate(pod, Totals::limits);
    if let Some(own) = &pod.pod_resources {
        total.cpu = own.cpu_limit.unwrap_or(total.cpu);
        total.memory = own.memory_limit.unwrap_or(total.memory);
        total.hugepages.extend(&own.hugepages);
    }
    if let Some(overhead) = &pod.overhead {
        if !total.cpu.is_zero() {
            total.cpu = total.cpu.saturating_add(overhead.cpu.unwrap_or_default());
        }
        if !total.memory.is_zero() {
            total.memory = total
                .memory
                .saturating_add(overhead.memory.unwrap_or_default());
        }
    }
    total
}

pub(crate) fn aggregate(pod: &Pod, of: impl Fn(&Resources) -> Totals) -> Totals {
    let mut running = Totals::default();
    for container in pod.app_containers() {
        running.add(&of(&container.resources));
    }
    let mut starting = Totals::default();
    let sidecars = each_start(pod, of, |needed| starting.max(needed));
    running.add(&sidecars);
    running.max(&starting);
    running
}

/// Calls `each` with what is needed while each init container and each sidecar starts: its own and
/// that of the sidecars before it. Returns the sum of the sidecars.
fn each_start(
    pod: &Pod,
    of: impl Fn(&Resources) -> Totals,
    mut each: impl FnMut(&Totals),
) -> Totals {
    let mut sidecars = Totals::default();
    for container in pod.init_containers() {
        let own = of(&container.resources);
        if container.kind == ContainerKind::Sidecar {
            sidecars.add(&own);
            each(&sidecars);
        } else {
            let mut with_sidecars = sidecars.clone();
            with_sidecars.add(&own);
            each(&with_sidecars);
        }
    }
    sidecars
}

/// Whether the pod itself has a limit above zero, or every container has one.
///
/// An init container and a sidecar count with the sidecars before them (`ResourceConfigForPod` of
/// kubelet `pkg/kubelet/cm/helpers_linux.go`, which `AggregateContainerLimits` calls with those sums):
/// one without a limit behind a sidecar with a limit has one.
struct LimitsDeclared {
    cpu: bool,
    memory: bool,
}

impl LimitsDeclared {
    fn of(pod: &Pod) -> Self {
        let mut all = Self {
            cpu: true,
            memory: true,
        };
        for container in pod.app_containers() {
            all.needs(&Totals::limits(&container.resources));
        }
        each_start(pod, Totals::limits, |starting| all.needs(starting));
        if let Some(own) = &pod.pod_resources {
            let own = Totals::limits(own);
            all.cpu |= !own.cpu.is_zero();
            all.memory |= !own.memory.is_zero();
        }
        all
    }

    fn needs(&mut self, limits: &Totals) {
        self.cpu &= !limits.cpu.is_zero();
        self.memory &= !limits.memory.is_zero();
    }
}
