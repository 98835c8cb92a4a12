//! Pods and nodes, reduced to what a decision needs.

use alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

pub use crate::uid::PodUid;
use crate::{
    colocation::class::Labels,
    name::CgroupName,
    units::{Bytes, MilliCpu},
};

words! {
    /// Quality of service, in the order of eviction: what compares as less is evicted first.
    pub enum QosClass {
        /// Asks for nothing, is promised nothing.
        BestEffort = "BestEffort",
        /// Asks for something and may use more.
        Burstable = "Burstable",
        /// Asks for exactly what it may use, in every container.
        Guaranteed = "Guaranteed",
    }
}

impl QosClass {
    /// The name of the class's tier cgroup. Guaranteed pods have none: they are directly below
    /// `kubepods` (kubelet `pkg/kubelet/cm/qos_container_manager_linux.go`).
    pub const fn tier(self) -> Option<&'static str> {
        match self {
            Self::BestEffort => Some("besteffort"),
            Self::Burstable => Some("burstable"),
            Self::Guaranteed => None,
        }
    }
}

/// `resources` of a container or pod. `None` is "not written", which is not the same as zero:
/// a request that is not written may be defaulted from the limit, and one that is written as zero
/// may not.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Resources {
    /// `requests.cpu`.
    pub cpu_request: Option<MilliCpu>,
    /// `limits.cpu`.
    pub cpu_limit: Option<MilliCpu>,
    /// `requests.memory`.
    pub memory_request: Option<Bytes>,
    /// `limits.memory`.
    pub memory_limit: Option<Bytes>,
    /// `hugepages-<size>`: page size to amount, both in bytes. Request and limit are always equal
    /// (API validation), so there is one figure.
    pub hugepages: BTreeMap<Bytes, Bytes>,
    /// What it asks for of the reclaimed resources; `None` where none is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reclaimed: Option<Reclaimed>,
}

/// Which reclaimed resources.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "camelCase")]
pub enum ReclaimedTier {
    /// `kubernetes.io/batch-cpu` and `kubernetes.io/batch-memory`.
    #[default]
    Batch,
    /// `kubernetes.io/mid-cpu` and `kubernetes.io/mid-memory`.
    Mid,
}

impl ReclaimedTier {
    /// The names of CPU and memory in the API (koordinator `apis/extension/resource.go`).
    pub const fn resources(self) -> [&'static str; 2] {
        match self {
            Self::Batch => ["kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"],
            Self::Mid => ["kubernetes.io/mid-cpu", "kubernetes.io/mid-memory"],
        }
    }
}

/// Reclaimed resources of a container. The API counts their CPU in thousandths of a core.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Reclaimed {
    /// Which.
    pub tier: ReclaimedTier,
    /// `requests`, CPU.
    pub cpu_request: Option<MilliCpu>,
    /// `limits`, CPU.
    pub cpu_limit: Option<MilliCpu>,
    /// `requests`, memory.
    pub memory_request: Option<Bytes>,
    /// `limits`, memory.
    pub memory_limit: Option<Bytes>,
}

impl Resources {
    /// See [`Pod::apply_defaults`].
    pub(crate) fn apply_defaults(&mut self) {
        self.cpu_request = self.cpu_request.or(self.cpu_limit);
        self.memory_request = self.memory_request.or(self.memory_limit);
        if let Some(reclaimed) = &mut self.reclaimed {
            reclaimed.cpu_request = reclaimed.cpu_request.or(reclaimed.cpu_limit);
            reclaimed.memory_request = reclaimed.memory_request.or(reclaimed.memory_limit);
        }
    }

    /// True where anything is written.
    pub(crate) fn is_written(&self) -> bool {
        self.cpu_request.is_some() || self.memory_request.is_some() || self.has_limit()
    }

    pub(crate) fn has_limit(&self) -> bool {
        self.cpu_limit.is_some() || self.memory_limit.is_some() || !self.hugepages.is_empty()
    }
}

/// When a container runs.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum ContainerKind {
    /// `spec.containers`.
    #[default]
    App,
    /// `spec.initContainers`: runs to its end before the next starts.
    Init,
    /// `spec.initContainers` with `restartPolicy: Always`: keeps running beside what follows.
    Sidecar,
}

/// One container of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// Its name, unique within the pod.
    pub name: String,
    /// When it runs.
    #[serde(default)]
    pub kind: ContainerKind,
    /// Its requests.
    #[serde(default)]
    pub resources: Resources,
}

/// `spec.overhead`: what the sandbox itself needs (RuntimeClass).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Overhead {
    /// `overhead.cpu`.
    pub cpu: Option<MilliCpu>,
    /// `overhead.memory`.
    pub memory: Option<Bytes>,
}

/// A pod. Pods are ordered by uid first.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pod {
    /// `metadata.uid`; the kubelet's configuration hash for static pods.
    pub uid: PodUid,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `spec.priority`; 0 when not written.
    #[serde(default)]
    pub priority: i32,
    /// Never evicted: a mirror pod, or of system priority
    /// (`IsCriticalPod` of kubelet `pkg/kubelet/types/pod_update.go`; see [`Pod::is_critical`]).
    #[serde(default)]
    pub critical: bool,
    /// `spec.priorityClassName` is `system-node-critical`, whatever the class's value.
    #[serde(default)]
    pub node_critical: bool,
    /// From a file or URL of this node, not from the API server.
    #[serde(default)]
    pub static_pod: bool,
    /// Every container: the init containers and sidecars in the order of `spec.initContainers`,
    /// which their sums depend on, and those of `spec.containers` before or behind them.
    #[serde(default)]
    pub containers: Vec<Container>,
    /// `spec.resources`. `Some` of nothing is not the same as `None`: the class is then computed
    /// from nothing.
    pub pod_resources: Option<Resources>,
    /// `spec.overhead`.
    pub overhead: Option<Overhead>,
    /// `spec.terminationGracePeriodSeconds`, or `metadata.deletionGracePeriodSeconds` of one that is deleted; `None` when
    /// not written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u32>,
    /// Its labels about co-location.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub colocation: Labels,
}

/// `SystemCriticalPriority` of Kubernetes `pkg/apis/scheduling/types.go`.
pub const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;

impl Pod {
    /// True for a pod that no eviction may choose: marked critical, or of system priority.
    pub fn is_critical(&self) -> bool {
        self.critical || self.node_critical || self.priority >= SYSTEM_CRITICAL_PRIORITY
    }

    /// The containers of `spec.containers`.
    pub fn app_containers(&self) -> impl Iterator<Item = &Container> {
        self.containers
            .iter()
            .filter(|c| c.kind == ContainerKind::App)
    }

    /// Init containers and sidecars in their order of start.
    pub fn init_containers(&self) -> impl Iterator<Item = &Container> {
        self.containers
            .iter()
            .filter(|c| c.kind != ContainerKind::App)
    }
}

/// The node and what its operator set aside; memory in bytes, CPU in milli-CPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// CPUs that are online.
    pub cpu_capacity: MilliCpu,
    /// `MemTotal`.
    pub memory_capacity: Bytes,
    /// Process ids that the machine has: the lesser of `kernel.pid_max` and `kernel.threads-max`
    /// (`Stats` of kubelet `pkg/kubelet/stats/pidlimit/pidlimit_linux.go`). `None` where it is not
    /// known; `kubepods` then gets no limit of them.
    pub pids_capacity: Option<u64>,
    /// Size of the file system that pods' local storage is on, bytes. `None` where it is not known.
    pub ephemeral_storage_capacity: Option<Bytes>,
    /// Huge pages: page size to what the node has of it, both in bytes. Sizes that the kernel knows
    /// and the node has none of are listed with zero, so that pods get a limit for them.
    #[serde(default)]
    pub hugepages: BTreeMap<Bytes, Bytes>,
    /// `SwapTotal`; zero without swap.
    #[serde(default)]
    pub swap_capacity: Bytes,
    /// `kubeReserved`.
    #[serde(default)]
    pub kube_reserved: Reserved,
    /// `systemReserved`.
    #[serde(default)]
    pub system_reserved: Reserved,
    /// `enforceNodeAllocatable`, with the cgroups that it names.
    #[serde(default)]
    pub enforce: Enforcement,
    /// `evictionHard["memory.available"]` resolved against the capacity; zero without one.
    #[serde(default)]
    pub eviction_hard_memory: Bytes,
    /// `evictionHard["nodefs.available"]` resolved against the capacity; zero without one.
    #[serde(default)]
    pub eviction_hard_storage: Bytes,
    /// `qosReserved.memory` in percent, 0 to 100; `None` when not configured.
    pub qos_reserved_memory_percent: Option<u8>,
}

impl Node {
    /// Memory that is set aside as huge pages, which no other memory can be made from, bytes.
    pub fn hugepages_total(&self) -> Bytes {
        let sizes = self.hugepages.values();
        sizes.fold(Bytes::ZERO, |sum, size| sum.saturating_add(*size))
    }
}

/// What is kept from pods. Zero is nothing, and nothing is written for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Reserved {
    /// `cpu`.
    pub cpu: MilliCpu,
    /// `memory`, bytes.
    pub memory: Bytes,
    /// `pid`: process ids.
    pub pids: u64,
    /// `ephemeral-storage`, bytes. No cgroup limits it.
    pub ephemeral_storage: Bytes,
}

/// `enforceNodeAllocatable` of KubeletConfiguration: on which cgroups the reserves are written
/// (`enforceNodeAllocatableCgroups` of kubelet `pkg/kubelet/cm/node_container_manager_linux.go`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Enforcement {
    /// `pods`, the default: `kubepods` is limited to what is allocatable. Otherwise it is limited to
    /// the node's capacity.
    pub pods: bool,
    /// `kube-reserved` or `kube-reserved-compressible`, with `kubeReservedCgroup`.
    pub kube_reserved: Option<ReservedCgroup>,
    /// `system-reserved` or `system-reserved-compressible`, with `systemReservedCgroup`.
    pub system_reserved: Option<ReservedCgroup>,
}

impl Default for Enforcement {
    fn default() -> Self {
        Self {
            pods: true,
            kube_reserved: None,
            system_reserved: None,
        }
    }
}

impl Enforcement {
    /// The cgroups beside `kubepods` that are written, none twice.
    pub fn cgroups(&self) -> impl Iterator<Item = &CgroupName> {
        let kube = self.kube_reserved.as_ref().map(|r| &r.cgroup);
        let system = self.system_reserved.as_ref().map(|r| &r.cgroup);
        system
            .into_iter()
            .chain(kube.filter(|kube| system != Some(*kube)))
    }
}

/// A cgroup of daemons that a reserve is written to. It is not podwarden's: it has to exist, and is
/// neither made nor removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReservedCgroup {
    /// `kubeReservedCgroup` or `systemReservedCgroup`.
    pub cgroup: CgroupName,
    /// The `-compressible` form: CPU alone, no limit of memory or process ids.
    #[serde(default)]
    pub compressible_only: bool,
}
