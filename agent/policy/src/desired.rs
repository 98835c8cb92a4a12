//! The desired tree.

use alloc::{collections::BTreeSet, vec::Vec};

use crate::{
    limits::{self, CpuMax, Limit, TierConfig},
    model::{Node, Pod, QosClass},
    name::CgroupName,
    qos,
    reason::Reason,
    reserve,
    settings::Setting,
    snapshot::{Ownership, Snapshot},
    units::{Bytes, CpuShares},
};

mod incomplete;
mod node;
pub mod reclaimed;

/// One cgroup as it ought to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Desired {
    /// Which.
    pub name: CgroupName,
    /// Who makes it.
    pub made_by: MadeBy,
    /// Why it exists.
    pub reason: Reason,
    /// Its values, each with the reason for it.
    pub settings: Vec<(Setting, Reason)>,
}

/// Who makes a cgroup where it is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MadeBy {
    /// podwarden, where it owns the tree.
    Podwarden,
    /// Its values are written once it exists.
    Others,
}

/// What everything below depends on, computed once.
struct Sums {
    guaranteed: TierConfig,
    burstable: TierConfig,
    allocatable: reserve::Allocatable,
}

impl Sums {
    fn of<'a>(node: &Node, pods: impl Iterator<Item = &'a Pod> + Clone) -> Self {
        Self {
            guaranteed: limits::tier_config(pods.clone(), QosClass::Guaranteed),
            burstable: limits::tier_config(pods, QosClass::Burstable),
            allocatable: reserve::allocatable(node),
        }
    }
}

/// Every cgroup that podwarden writes, parents before children: the node's daemons', `kubepods`, the
/// tiers, the pods by uid; each with the values that podwarden is to write there.
pub fn tree(snapshot: &Snapshot) -> Vec<Desired> {
    let pods = unique(&snapshot.pods);
    let sums = Sums::of(&snapshot.node, pods.iter().copied());
    let mut tree = Vec::with_capacity(pods.len() + 5);
    tree.extend(node::daemons(snapshot));
    tree.push(node::kubepods(snapshot, &sums));
    tree.push(tier(snapshot, &sums, QosClass::Burstable));
    tree.push(tier(snapshot, &sums, QosClass::BestEffort));
    tree.extend(pods.iter().map(|pod| self::pod(snapshot, pod)));
    tree.extend(reclaimed::containers(snapshot, &pods));
    incomplete::hold(snapshot, &mut tree);
    let asking = pods
        .iter()
        .filter(|pod| reclaimed::asks(snapshot, pod).is_some());
    let asking: BTreeSet<_> = asking
        .map(|pod| snapshot.kubepods.pod(qos::classify(pod), &pod.uid))
        .collect();
    for cgroup in &mut tree {
        let own = asking.contains(&cgroup.name) || cgroup.made_by == MadeBy::Others;
        let reclaims = own && cgroup.name.is_within(&snapshot.kubepods);
        cgroup.settings.retain(|(setting, _)| {
            setting.is_enabled(&snapshot.controllers)
                && (given(snapshot, &cgroup.name, setting) || (reclaims && setting.is_reclaimed()))
        });
    }
    tree.retain(|cgroup| cgroup.made_by == MadeBy::Podwarden || !cgroup.settings.is_empty());
    tree
}

/// The hard memory limits that [`tree`] gives the burstable and the besteffort tier for these pods, all
/// there are: what has to be known at once, without looking at any cgroup.
pub fn tier_limits<'a>(
    node: &Node,
    pods: impl IntoIterator<Item = &'a Pod, IntoIter: Clone>,
) -> [Limit<Bytes>; 2] {
    let sums = Sums::of(node, pods.into_iter());
    [QosClass::Burstable, QosClass::BestEffort].map(|class| {
        let (setting, _) = tier_memory(node, &sums, class);
        match setting {
            Setting::MemoryLimit(limit) => limit,
            _ => Limit::Unlimited,
        }
    })
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
            snapshot.limits.memory_reservation && name.is_within(&snapshot.kubepods)
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
    let mut settings = Vec::from([shares, tier_memory(&snapshot.node, sums, class)]);
    settings.extend(node::huge_pages(snapshot));
    if burstable {
        let request = sums.burstable.memory_request;
        settings.push(node::reservation(snapshot, Setting::MemoryLow, request));
    }
    Desired {
        name: snapshot.kubepods.tier(class),
        made_by: MadeBy::Podwarden,
        reason: Reason::TierMissing,
        settings,
    }
}

fn tier_memory(node: &Node, sums: &Sums, class: QosClass) -> (Setting, Reason) {
    let allocatable = sums.allocatable.kubepods_memory;
    let guaranteed = sums.guaranteed.memory_request;
    let burstable = sums.burstable.memory_request;
    // The kubelet does not reserve from an allocatable of zero: it is not known then.
    let percent = node.qos_reserved_memory_percent;
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
    let mut desired = Desired {
        name: snapshot.kubepods.pod(config.qos, &pod.uid),
        made_by: MadeBy::Podwarden,
        reason: Reason::PodMissing { qos: config.qos },
        settings,
    };
    reclaimed::pod(snapshot, pod, &mut desired);
    desired
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
