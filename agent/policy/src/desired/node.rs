//! The cgroups of the node as a whole: `kubepods`, and those of the daemons beside it.

use alloc::vec::Vec;

use super::{Desired, MadeBy, Sums};
use crate::{
    convert,
    limits::Limit,
    model::Reserved,
    reason::Reason,
    reserve::{self, Daemons},
    settings::Setting,
    snapshot::Snapshot,
    units::{Bytes, MilliCpu},
};

/// `enforceNodeAllocatableCgroups` and `getCgroupConfig` of kubelet
/// `pkg/kubelet/cm/node_container_manager_linux.go`. Process ids and memory of zero are not
/// written: nothing left is a node that is not known or not configured
/// (see [`crate::reserve::validate`]), not one on which every pod is to be stopped.
pub(super) fn kubepods(snapshot: &Snapshot, sums: &Sums) -> Desired {
    let mut settings = Vec::from([cpu(snapshot, sums)]);
    settings.extend(memory(snapshot, sums));
    settings.extend(pids(snapshot, sums));
    settings.extend(huge_pages(snapshot));
    let request = sums
        .guaranteed
        .memory_request
        .saturating_add(sums.burstable.memory_request);
    settings.push(reservation(snapshot, Setting::MemoryMin, request));
    Desired {
        name: snapshot.kubepods.clone(),
        made_by: MadeBy::Podwarden,
        reason: Reason::TierMissing,
        settings,
    }
}

/// Huge pages of `kubepods` and of a tier: pods alone have limits (`setHugePagesConfig` of kubelet
/// `pkg/kubelet/cm/qos_container_manager_linux.go`, which has `kubepods` as the tier of Guaranteed pods and takes
/// back what it gave it before).
pub(super) fn huge_pages(snapshot: &Snapshot) -> impl Iterator<Item = (Setting, Reason)> {
    snapshot.node.hugepages.keys().map(|&page_size| {
        let limit = Limit::Unlimited;
        (
            Setting::HugetlbLimit { page_size, limit },
            Reason::HugepagesOfPods { page_size },
        )
    })
}

fn cpu(snapshot: &Snapshot, sums: &Sums) -> (Setting, Reason) {
    let node = &snapshot.node;
    if !node.enforce.pods {
        let shares = convert::milli_to_shares(node.cpu_capacity);
        let capacity = node.cpu_capacity;
        let reason = Reason::NodeCapacityCpu { capacity, shares };
        return (Setting::CpuShares(shares), reason);
    }
    let shares = convert::milli_to_shares(sums.allocatable.cpu);
    let reason = Reason::NodeCpu {
        capacity: node.cpu_capacity,
        kube_reserved: node.kube_reserved.cpu,
        system_reserved: node.system_reserved.cpu,
        allocatable: sums.allocatable.cpu,
        shares,
    };
    (Setting::CpuShares(shares), reason)
}

fn memory(snapshot: &Snapshot, sums: &Sums) -> Option<(Setting, Reason)> {
    let node = &snapshot.node;
    let (limit, reason) = if node.enforce.pods {
        let limit = sums.allocatable.kubepods_memory;
        let reason = Reason::NodeMemory {
            capacity: node.memory_capacity,
            kube_reserved: node.kube_reserved.memory,
            system_reserved: node.system_reserved.memory,
            limit,
        };
        (limit, reason)
    } else {
        let limit = node.memory_capacity;
        (limit, Reason::NodeCapacityMemory { limit })
    };
    (!limit.is_zero()).then_some((Setting::MemoryLimit(Limit::At(limit)), reason))
}

fn pids(snapshot: &Snapshot, sums: &Sums) -> Option<(Setting, Reason)> {
    let node = &snapshot.node;
    let capacity = node.pids_capacity?;
    let (limit, reason) = if node.enforce.pods {
        let limit = sums.allocatable.pids?;
        let reason = Reason::NodePids {
            capacity,
            kube_reserved: node.kube_reserved.pids,
            system_reserved: node.system_reserved.pids,
            limit,
        };
        (limit, reason)
    } else {
        (capacity, Reason::NodeCapacityPids { limit: capacity })
    };
    (limit > 0).then_some((Setting::PidsLimit(Limit::At(limit)), reason))
}

/// Memory that is kept from reclaim where memory reservation is on; nothing where it is off.
pub(super) fn reservation(
    snapshot: &Snapshot,
    setting: impl Fn(Bytes) -> Setting,
    request: Bytes,
) -> (Setting, Reason) {
    if snapshot.limits.memory_reservation {
        (setting(request), Reason::MemoryReservation { request })
    } else {
        (setting(Bytes::ZERO), Reason::NoLimit)
    }
}

/// The cgroups of the daemons that the reserves are for, where the operator names them
/// (`enforceExistingCgroup` of kubelet `pkg/kubelet/cm/node_container_manager_linux.go`). What is
/// reserved is their limit; with memory reservation on it is protected as well. A cgroup that is
/// named for both reserves gets the one of Kubernetes' daemons, which the kubelet writes last.
pub(super) fn daemons(snapshot: &Snapshot) -> impl Iterator<Item = Desired> {
    let node = &snapshot.node;
    let kube = Daemons::Kube.cgroup(node).map(|r| &r.cgroup);
    Daemons::ALL.into_iter().filter_map(move |daemons| {
        let place = daemons.cgroup(node)?;
        let shadowed = daemons == Daemons::System && kube == Some(&place.cgroup);
        if shadowed || reserve::holds_pods(snapshot, &place.cgroup) {
            return None;
        }
        let reserved = daemons.reserved(node);
        let mut settings = Vec::new();
        settings.extend(reserved_cpu(daemons, reserved));
        if !place.compressible_only {
            settings.extend(reserved_amounts(snapshot, daemons, reserved));
        }
        Some(Desired {
            name: place.cgroup.clone(),
            made_by: MadeBy::Others,
            reason: Reason::Daemons { daemons },
            settings,
        })
    })
}

fn reserved_cpu(daemons: Daemons, reserved: &Reserved) -> Option<(Setting, Reason)> {
    let cpu = reserved.cpu;
    let shares = convert::milli_to_shares(cpu);
    let reason = Reason::ReservedCpu {
        daemons,
        cpu,
        shares,
    };
    (cpu > MilliCpu::ZERO).then_some((Setting::CpuShares(shares), reason))
}

fn reserved_amounts(
    snapshot: &Snapshot,
    daemons: Daemons,
    reserved: &Reserved,
) -> Vec<(Setting, Reason)> {
    let mut settings = Vec::new();
    let memory = reserved.memory;
    if !memory.is_zero() {
        let reason = Reason::ReservedMemory { daemons, memory };
        settings.push((Setting::MemoryLimit(Limit::At(memory)), reason.clone()));
        // Otherwise the cgroup's owner decides about it.
        if snapshot.limits.memory_reservation {
            settings.push((Setting::MemoryMin(memory), reason));
        }
    }
    if reserved.pids > 0 {
        let pids = reserved.pids;
        let reason = Reason::ReservedPids { daemons, pids };
        settings.push((Setting::PidsLimit(Limit::At(pids)), reason));
    }
    settings
}
