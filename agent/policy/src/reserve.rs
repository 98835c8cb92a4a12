//! Reserves: of the node against pods, of a tier against the tiers below it.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::{
    model::{Node, QosClass, Reserved},
    name::CgroupName,
    plan::{Ownership, Snapshot},
    units::{Bytes, MilliCpu},
};

/// What the node offers to pods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Allocatable {
    /// Capacity minus both reserves: the shares of `kubepods`.
    pub cpu: MilliCpu,
    /// Capacity minus both reserves, bytes: the limit of `kubepods`, and what the tiers' reserve is
    /// computed from. The eviction threshold is not taken off, so that eviction acts before the
    /// limit does.
    pub kubepods_memory: Bytes,
    /// [`Allocatable::kubepods_memory`] minus the hard eviction threshold, bytes: the usage of
    /// `kubepods` at which pods are evicted.
    pub kubepods_level: Bytes,
    /// [`Allocatable::kubepods_level`] minus the node's huge pages, bytes: what the scheduler sees
    /// (`MachineInfo` of kubelet `pkg/kubelet/nodestatus/setters.go`). Huge pages are not charged to
    /// the memory of a cgroup, so no limit is lower for them.
    pub memory: Bytes,
    /// Process ids minus both reserves: the limit of `kubepods`. `None` where the capacity is not
    /// known.
    pub pids: Option<u64>,
    /// Local storage minus both reserves and the hard eviction threshold, bytes: what the scheduler
    /// sees; no cgroup limits it. `None` where the capacity is not known.
    pub ephemeral_storage: Option<Bytes>,
}

/// Computes the allocatable amounts, never below zero
/// (`GetNodeAllocatableAbsolute`, `getNodeAllocatableInternalAbsolute` and
/// `GetNodeAllocatableReservation` of kubelet `pkg/kubelet/cm/node_container_manager_linux.go`, and for huge pages
/// `MachineInfo` of kubelet `pkg/kubelet/nodestatus/setters.go`).
pub fn allocatable(node: &Node) -> Allocatable {
    let (kube, system) = (&node.kube_reserved, &node.system_reserved);
    let kubepods_memory = node
        .memory_capacity
        .saturating_sub(kube.memory)
        .saturating_sub(system.memory);
    let kubepods_level = kubepods_memory.saturating_sub(node.eviction_hard_memory);
    Allocatable {
        cpu: node
            .cpu_capacity
            .saturating_sub(kube.cpu)
            .saturating_sub(system.cpu),
        kubepods_memory,
        kubepods_level,
        memory: kubepods_level.saturating_sub(node.hugepages_total()),
        pids: node
            .pids_capacity
            .map(|pids| pids.saturating_sub(kube.pids).saturating_sub(system.pids)),
        ephemeral_storage: node.ephemeral_storage_capacity.map(|storage| {
            storage
                .saturating_sub(kube.ephemeral_storage)
                .saturating_sub(system.ephemeral_storage)
                .saturating_sub(node.eviction_hard_storage)
        }),
    }
}

/// Amounts of a Node object's status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amounts {
    /// `cpu`.
    pub cpu: MilliCpu,
    /// `memory`, bytes.
    pub memory: Bytes,
    /// `ephemeral-storage`, bytes.
    pub ephemeral_storage: Bytes,
}

/// What a kubelet says of its node in the Node object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Advertised {
    /// `status.capacity`.
    pub capacity: Amounts,
    /// `status.allocatable`: the capacity minus the reserves and the hard eviction thresholds, and of memory
    /// minus huge pages (`Allocatable` and `MachineInfo` of kubelet `pkg/kubelet/nodestatus/setters.go`).
    pub allocatable: Amounts,
}

/// The node with the reserves that its kubelet advertises, each where neither `kubeReserved` nor `systemReserved`
/// says anything of that resource.
pub fn advertised(node: &Node, by: &Advertised) -> Node {
    let Advertised {
        capacity,
        allocatable,
    } = by;
    let (kube, mut system) = (node.kube_reserved, node.system_reserved);
    if kube.cpu.0 == 0 && system.cpu.0 == 0 {
        system.cpu = capacity.cpu.saturating_sub(allocatable.cpu);
    }
    if kube.memory.is_zero() && system.memory.is_zero() {
        let kept = capacity.memory.saturating_sub(allocatable.memory);
        let kept = kept.saturating_sub(node.eviction_hard_memory);
        system.memory = kept.saturating_sub(node.hugepages_total());
    }
    if kube.ephemeral_storage.is_zero() && system.ephemeral_storage.is_zero() {
        let kept = capacity
            .ephemeral_storage
            .saturating_sub(allocatable.ephemeral_storage);
        system.ephemeral_storage = kept.saturating_sub(node.eviction_hard_storage);
    }
    Node {
        system_reserved: system,
        ..node.clone()
    }
}

/// The node with no more memory for pods than `limit`, which another program wrote to `kubepods`.
pub fn within(node: &Node, limit: Bytes) -> Node {
    let mut node = node.clone();
    let over = allocatable(&node).kubepods_memory.saturating_sub(limit);
    node.system_reserved.memory = node.system_reserved.memory.saturating_add(over);
    node
}

/// What cannot be kept from pods as it is configured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// More CPU than there is.
    #[error("kubeReserved and systemReserved take {reserved} CPU of {capacity}")]
    Cpu {
        /// What is set aside.
        reserved: MilliCpu,
        /// What there is.
        capacity: MilliCpu,
    },
    /// All memory, or more than there is.
    #[error(
        "kubeReserved, systemReserved and evictionHard take {reserved} memory of {capacity}, which leaves none"
    )]
    Memory {
        /// What is set aside.
        reserved: Bytes,
        /// What there is.
        capacity: Bytes,
    },
    /// All process ids, or more than there are.
    #[error("kubeReserved and systemReserved take {reserved} pid of {capacity}, which leaves none")]
    Pids {
        /// What is set aside.
        reserved: u64,
        /// What there is.
        capacity: u64,
    },
    /// More local storage than there is.
    #[error(
        "kubeReserved, systemReserved and evictionHard take {reserved} ephemeral-storage of {capacity}"
    )]
    EphemeralStorage {
        /// What is set aside.
        reserved: Bytes,
        /// What there is.
        capacity: Bytes,
    },
    /// A reserve is to be written to a cgroup that does not exist.
    #[error(
        "{field} is {cgroup}, and there is no such cgroup: podwarden does not make it; start what \
         runs in it first, or take `{enforcement}` out of enforceNodeAllocatable"
    )]
    MissingCgroup {
        /// `kubeReservedCgroup` or `systemReservedCgroup`.
        field: &'static str,
        /// Which cgroup.
        cgroup: CgroupName,
        /// `kube-reserved` or `system-reserved`, or its `-compressible` form.
        enforcement: &'static str,
    },
    /// A reserve is to be written to a cgroup that pods are in.
    #[error(
        "{field} is {cgroup}, which pods are in: name the cgroup of the daemons alone, such as \
         /system.slice"
    )]
    HoldsPods {
        /// `kubeReservedCgroup` or `systemReservedCgroup`.
        field: &'static str,
        /// Which cgroup.
        cgroup: CgroupName,
    },
}

/// Checks that the reserves leave something to pods (`validateNodeAllocatable` of kubelet
/// `pkg/kubelet/cm/node_container_manager_linux.go`). The error is the first resource of which too much is set aside.
pub fn validate(node: &Node) -> Result<(), ReserveError> {
    let (kube, system) = (&node.kube_reserved, &node.system_reserved);
    let cpu = kube.cpu.saturating_add(system.cpu);
    if cpu > node.cpu_capacity {
        return Err(ReserveError::Cpu {
            reserved: cpu,
            capacity: node.cpu_capacity,
        });
    }
    let memory = kube
        .memory
        .saturating_add(system.memory)
        .saturating_add(node.eviction_hard_memory);
    if memory >= node.memory_capacity {
        return Err(ReserveError::Memory {
            reserved: memory,
            capacity: node.memory_capacity,
        });
    }
    let pids = kube.pids.saturating_add(system.pids);
    if let Some(capacity) = node.pids_capacity.filter(|capacity| pids >= *capacity) {
        return Err(ReserveError::Pids {
            reserved: pids,
            capacity,
        });
    }
    let reserved = kube
        .ephemeral_storage
        .saturating_add(system.ephemeral_storage)
        .saturating_add(node.eviction_hard_storage);
    match node.ephemeral_storage_capacity {
        Some(capacity) if reserved > capacity => {
            Err(ReserveError::EphemeralStorage { reserved, capacity })
        }
        _ => Ok(()),
    }
}

/// The cgroups that a reserve is to be written to and cannot be: those that do not exist, with which
/// the kubelet does not start (`enforceExistingCgroup` of kubelet
/// `pkg/kubelet/cm/node_container_manager_linux.go`), and those that pods are in, which it does not
/// notice. podwarden writes everything else. Beside a kubelet this is the kubelet's to say.
pub fn cgroup_errors(snapshot: &Snapshot) -> Vec<ReserveError> {
    if snapshot.ownership != Ownership::Own {
        return Vec::new();
    }
    let errors = Daemons::ALL.into_iter().filter_map(|daemons| {
        let reserved = daemons.cgroup(&snapshot.node)?;
        let field = daemons.cgroup_field();
        let cgroup = reserved.cgroup.clone();
        if holds_pods(snapshot, &cgroup) {
            return Some(ReserveError::HoldsPods { field, cgroup });
        }
        (!snapshot.cgroups.contains_key(&cgroup)).then(|| ReserveError::MissingCgroup {
            field,
            cgroup,
            enforcement: daemons.enforcement(reserved.compressible_only),
        })
    });
    errors.collect()
}

/// Whether pods would share a cgroup's limit: it is `kubepods`, above it, or below it.
pub(crate) fn holds_pods(snapshot: &Snapshot, cgroup: &CgroupName) -> bool {
    cgroup.is_within(&snapshot.kubepods) || snapshot.kubepods.is_within(cgroup)
}

/// Whose reserve it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Daemons {
    /// The operating system's.
    System,
    /// Kubernetes' own.
    Kube,
}

impl Daemons {
    /// Both, in the order in which they are written.
    pub const ALL: [Self; 2] = [Self::System, Self::Kube];

    /// `kubeReserved` or `systemReserved`.
    pub const fn field(self) -> &'static str {
        match self {
            Self::System => "systemReserved",
            Self::Kube => "kubeReserved",
        }
    }

    const fn cgroup_field(self) -> &'static str {
        match self {
            Self::System => "systemReservedCgroup",
            Self::Kube => "kubeReservedCgroup",
        }
    }

    const fn enforcement(self, compressible_only: bool) -> &'static str {
        match (self, compressible_only) {
            (Self::System, false) => "system-reserved",
            (Self::System, true) => "system-reserved-compressible",
            (Self::Kube, false) => "kube-reserved",
            (Self::Kube, true) => "kube-reserved-compressible",
        }
    }

    pub(crate) const fn reserved(self, node: &Node) -> &Reserved {
        match self {
            Self::System => &node.system_reserved,
            Self::Kube => &node.kube_reserved,
        }
    }

    /// Where it is written, if anywhere.
    pub(crate) const fn cgroup(self, node: &Node) -> Option<&crate::model::ReservedCgroup> {
        match self {
            Self::System => node.enforce.system_reserved.as_ref(),
            Self::Kube => node.enforce.kube_reserved.as_ref(),
        }
    }
}

/// The memory limits of both tiers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TierLimits {
    /// `allocatable - guaranteed * percent / 100`.
    pub burstable: Bytes,
    /// `burstable - burstable requests * percent / 100`.
    pub besteffort: Bytes,
}

impl TierLimits {
    /// The limit of a class's tier; `None` for Guaranteed, which has no tier.
    pub const fn of(&self, class: QosClass) -> Option<Bytes> {
        match class {
            QosClass::BestEffort => Some(self.besteffort),
            QosClass::Burstable => Some(self.burstable),
            QosClass::Guaranteed => None,
        }
    }
}

/// `qosReserved: {memory: P%}`: what each tier may use when P percent of what higher classes
/// asked for is kept for them (`setMemoryReserve` of kubelet
/// `pkg/kubelet/cm/qos_container_manager_linux.go`), never below zero.
///
/// `allocatable` is [`Allocatable::kubepods_memory`], as there; `guaranteed` and `burstable` are the
/// classes' summed memory requests; `percent` is 0 to 100. All in bytes.
pub fn tier_limits(
    allocatable: Bytes,
    guaranteed: Bytes,
    burstable: Bytes,
    percent: u8,
) -> TierLimits {
    let percent = u64::from(percent.min(100));
    let burstable_limit = allocatable.saturating_sub(guaranteed.percent(percent));
    TierLimits {
        burstable: burstable_limit,
        besteffort: burstable_limit.saturating_sub(burstable.percent(percent)),
    }
}
