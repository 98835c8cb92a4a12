//! The whole tree as it ought to be.

use alloc::vec::Vec;

use crate::{
    limits::{self, CpuMax, Limit, TierConfig},
    model::{Pod, QosClass},
    name::CgroupName,
    plan::{Ownership, Snapshot},
    reason::Reason,
    reserve,
    settings::Setting,
    units::{Bytes, CpuShares},
};

/// One cgroup as it ought to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Desired {
    /// Which.
    pub name: CgroupName,
    /// Why it exists.
    pub reason: Reason,
    /// Its values, each with the reason for it.
    pub settings: Vec<(Setting, Reason)>,
}

/// What everything below depends on, computed once.
struct Sums {
    guaranteed: TierConfig,
    burstable: TierConfig,
    allocatable: reserve::Allocatable,
}

/// Every cgroup that podwarden writes, parents before children: `kubepods`, the tiers, the pods by
/// uid; each with the values that podwarden is to write there.
pub fn tree(snapshot: &Snapshot) -> Vec<Desired> {
    let pods = unique(&snapshot.pods);
    let sums = Sums {
        guaranteed: limits::tier_config(pods.iter().copied(), QosClass::Guaranteed),
        burstable: limits::tier_config(pods.iter().copied(), QosClass::Burstable),
        allocatable: reserve::allocatable(&snapshot.node),
    };
    let mut tree = Vec::with_capacity(pods.len() + 3);
    tree.push(kubepods(snapshot, &sums));
    tree.push(tier(snapshot, &sums, QosClass::Burstable));
    tree.push(tier(snapshot, &sums, QosClass::BestEffort));
    tree.extend(pods.iter().map(|pod| self::pod(snapshot, pod)));
    for cgroup in &mut tree {
        cgroup.settings.retain(|(setting, _)| {
            snapshot.controllers.has(setting) && given(snapshot, &cgroup.name, setting)
        });
    }
    tree
}

/// The pods by uid, one for each. The choice among pods with one uid is arbitrary, but always the
/// same.
pub(crate) fn unique(pods: &[Pod]) -> Vec<&Pod> {
    let mut pods: Vec<_> = pods.iter().collect();
    pods.sort();
    pods.dedup_by(|a, b| a.uid == b.uid);
    pods
}

/// Beside a kubelet, podwarden writes only what the operator gave it to own.
fn given(snapshot: &Snapshot, name: &CgroupName, setting: &Setting) -> bool {
    match (snapshot.ownership, setting) {
        (Ownership::Own, _) => true,
        (Ownership::Assist, Setting::MemoryMin(_) | Setting::MemoryLow(_)) => {
            snapshot.limits.memory_reservation
        }
        (Ownership::Assist, Setting::MemoryLimit(_)) => {
            let is_tier =
                |class| class != QosClass::Guaranteed && *name == snapshot.kubepods.tier(class);
            snapshot.node.qos_reserved_memory_percent.is_some()
                && QosClass::ALL.into_iter().any(is_tier)
        }
        (Ownership::Assist, _) => false,
    }
}

/// `getCgroupConfig` of kubelet `pkg/kubelet/cm/node_container_manager_linux.go`.
fn kubepods(snapshot: &Snapshot, sums: &Sums) -> Desired {
    let node = &snapshot.node;
    let shares = crate::convert::milli_to_shares(sums.allocatable.cpu);
    let limit = sums.allocatable.kubepods_memory;
    let mut settings = Vec::from([(
        Setting::CpuShares(shares),
        Reason::NodeCpu {
            capacity: node.cpu_capacity,
            kube_reserved: node.kube_reserved.cpu,
            system_reserved: node.system_reserved.cpu,
            allocatable: sums.allocatable.cpu,
            shares,
        },
    )]);
    // Nothing left is a node that is not known or not configured (see reserve::validate), not one
    // on which every pod is to be killed.
    if !limit.is_zero() {
        settings.push((
            Setting::MemoryLimit(Limit::At(limit)),
            Reason::NodeMemory {
                capacity: node.memory_capacity,
                kube_reserved: node.kube_reserved.memory,
                system_reserved: node.system_reserved.memory,
                limit,
            },
        ));
    }
    settings.extend(node.hugepages.iter().map(|(&page_size, &limit)| {
        (
            Setting::HugetlbLimit {
                page_size,
                limit: Limit::At(limit),
            },
            Reason::NodeHugepages { page_size, limit },
        )
    }));
    let request = sums
        .guaranteed
        .memory_request
        .saturating_add(sums.burstable.memory_request);
    settings.push(reservation(snapshot, Setting::MemoryMin, request));
    Desired {
        name: snapshot.kubepods.clone(),
        reason: Reason::TierMissing,
        settings,
    }
}

fn reservation(
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

/// `UpdateCgroups` of kubelet `pkg/kubelet/cm/qos_container_manager_linux.go`.
fn tier(snapshot: &Snapshot, sums: &Sums, class: QosClass) -> Desired {
    let burstable = class == QosClass::Burstable;
    let shares = if burstable {
        let TierConfig {
            cpu_request,
            shares,
            ..
        } = sums.burstable;
        (
            Setting::CpuShares(shares),
            Reason::Shares {
                cpu_request,
                shares,
            },
        )
    } else {
        (Setting::CpuShares(CpuShares::MIN), Reason::LeastShares)
    };
    let mut settings = Vec::from([shares, tier_memory(snapshot, sums, class)]);
    settings.extend(snapshot.node.hugepages.keys().map(|&page_size| {
        (
            Setting::HugetlbLimit {
                page_size,
                limit: Limit::Unlimited,
            },
            Reason::TierHugepages { page_size },
        )
    }));
    if burstable {
        let request = sums.burstable.memory_request;
        settings.push(reservation(snapshot, Setting::MemoryLow, request));
    }
    Desired {
        name: snapshot.kubepods.tier(class),
        reason: Reason::TierMissing,
        settings,
    }
}

fn tier_memory(snapshot: &Snapshot, sums: &Sums, class: QosClass) -> (Setting, Reason) {
    let allocatable = sums.allocatable.memory;
    let guaranteed = sums.guaranteed.memory_request;
    let burstable = sums.burstable.memory_request;
    // The kubelet does not reserve from an allocatable of zero: it is not known then.
    let percent = snapshot.node.qos_reserved_memory_percent;
    let reserve = percent
        .filter(|_| !allocatable.is_zero())
        .and_then(|percent| {
            let limits = reserve::tier_limits(allocatable, guaranteed, burstable, percent);
            Some((percent, limits.of(class)?))
        });
    match reserve {
        None => (Setting::MemoryLimit(Limit::Unlimited), Reason::NoLimit),
        Some((percent, limit)) => (
            Setting::MemoryLimit(Limit::At(limit)),
            Reason::TierReserve {
                allocatable,
                guaranteed,
                burstable: (class == QosClass::BestEffort).then_some(burstable),
                percent,
                limit,
            },
        ),
    }
}

fn pod(snapshot: &Snapshot, pod: &Pod) -> Desired {
    let config = limits::pod_config(pod, &snapshot.limits);
    let best_effort = config.qos == QosClass::BestEffort;
    let shares = if best_effort {
        Reason::LeastShares
    } else {
        Reason::Shares {
            cpu_request: limits::pod_requests(pod).cpu,
            shares: config.shares,
        }
    };
    let mut settings = Vec::from([
        (Setting::CpuShares(config.shares), shares),
        pod_quota(snapshot, pod, config.cpu_max, best_effort),
        match config.memory_limit {
            Some(limit) => (
                Setting::MemoryLimit(Limit::At(limit)),
                Reason::MemoryLimit { limit },
            ),
            None => (
                Setting::MemoryLimit(Limit::Unlimited),
                unlimited(best_effort),
            ),
        },
        match config.pids_limit {
            Some(limit) => (Setting::PidsLimit(Limit::At(limit)), Reason::PidsLimit),
            None => (Setting::PidsLimit(Limit::Unlimited), Reason::NoLimit),
        },
    ]);
    settings.extend(snapshot.node.hugepages.keys().map(|&page_size| {
        // A size that the pod did not ask for is limited to zero
        // (toResources of kubelet pkg/kubelet/cm/cgroup_manager_linux.go).
        let limit = config.hugetlb.get(&page_size).copied().unwrap_or_default();
        (
            Setting::HugetlbLimit {
                page_size,
                limit: Limit::At(limit),
            },
            Reason::Hugepages { page_size, limit },
        )
    }));
    for (setting, amount) in [
        (
            Setting::MemoryMin as fn(Bytes) -> Setting,
            config.memory_min,
        ),
        (Setting::MemoryLow, config.memory_low),
    ] {
        settings.push(match amount {
            Some(request) => (setting(request), Reason::MemoryReservation { request }),
            None => (setting(Bytes::ZERO), Reason::NoLimit),
        });
    }
    Desired {
        name: snapshot.kubepods.pod(config.qos, &pod.uid),
        reason: Reason::PodMissing { qos: config.qos },
        settings,
    }
}

const fn unlimited(best_effort: bool) -> Reason {
    if best_effort {
        Reason::NoLimit
    } else {
        Reason::NotAllLimited
    }
}

fn pod_quota(
    snapshot: &Snapshot,
    pod: &Pod,
    cpu_max: Option<CpuMax>,
    best_effort: bool,
) -> (Setting, Reason) {
    match cpu_max {
        None => (
            Setting::CpuMax(CpuMax {
                quota_us: Limit::Unlimited,
                period_us: snapshot.limits.cpu_period_us,
            }),
            unlimited(best_effort),
        ),
        Some(max) if !snapshot.limits.enforce_cpu_limits => {
            (Setting::CpuMax(max), Reason::QuotaNotEnforced)
        }
        Some(max) => (
            Setting::CpuMax(max),
            Reason::Quota {
                cpu_limit: limits::pod_limits(pod).cpu,
                period_us: max.period_us,
                quota_us: max.quota_us,
            },
        ),
    }
}
