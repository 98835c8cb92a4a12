//! What is kept from pods, and what a tier keeps from the tier below it.

use crate::{
    model::{Node, QosClass},
    units::{Bytes, MilliCpu},
};

/// What the node offers to pods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct Allocatable {
    /// Capacity minus both reserves: the shares of `kubepods`.
    pub cpu: MilliCpu,
    /// Capacity minus both reserves: the limit of `kubepods`. The eviction threshold is not taken
    /// off, so that eviction acts before the limit does.
    pub kubepods_memory: Bytes,
    /// [`Allocatable::kubepods_memory`] minus the hard eviction threshold: what the scheduler
    /// sees, and what the tiers' reserve is computed from.
    pub memory: Bytes,
}

/// Computes the allocatable amounts, never below zero
/// (`getNodeAllocatableInternalAbsolute` and `GetNodeAllocatableReservation` of kubelet
/// `pkg/kubelet/cm/node_container_manager_linux.go`).
pub fn allocatable(node: &Node) -> Allocatable {
    let kubepods_memory = node
        .memory_capacity
        .saturating_sub(node.kube_reserved.memory)
        .saturating_sub(node.system_reserved.memory);
    Allocatable {
        cpu: node
            .cpu_capacity
            .saturating_sub(node.kube_reserved.cpu)
            .saturating_sub(node.system_reserved.cpu),
        kubepods_memory,
        memory: kubepods_memory.saturating_sub(node.eviction_hard_memory),
    }
}

/// More is set aside than there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// Of CPU.
    #[error("kubeReserved and systemReserved take {reserved} CPU of {capacity}")]
    Cpu {
        /// What is set aside.
        reserved: MilliCpu,
        /// What there is.
        capacity: MilliCpu,
    },
    /// Of memory.
    #[error(
        "kubeReserved, systemReserved and evictionHard take {reserved} memory of {capacity}, which leaves none"
    )]
    Memory {
        /// What is set aside.
        reserved: Bytes,
        /// What there is.
        capacity: Bytes,
    },
}

/// Checks that the reserves leave something to pods (`validateNodeAllocatable` of kubelet
/// `pkg/kubelet/cm/node_container_manager_linux.go`).
///
/// # Errors
/// The first resource of which too much is set aside.
pub fn validate(node: &Node) -> Result<(), ReserveError> {
    let cpu = node
        .kube_reserved
        .cpu
        .saturating_add(node.system_reserved.cpu);
    if cpu > node.cpu_capacity {
        return Err(ReserveError::Cpu {
            reserved: cpu,
            capacity: node.cpu_capacity,
        });
    }
    let memory = node
        .kube_reserved
        .memory
        .saturating_add(node.system_reserved.memory)
        .saturating_add(node.eviction_hard_memory);
    if memory >= node.memory_capacity {
        return Err(ReserveError::Memory {
            reserved: memory,
            capacity: node.memory_capacity,
        });
    }
    Ok(())
}

/// The memory limits of both tiers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
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
/// `guaranteed` and `burstable` are the classes' summed memory requests; `percent` is 0 to 100.
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
