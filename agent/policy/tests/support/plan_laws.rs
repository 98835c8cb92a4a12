//! The laws of `plan`, each for one snapshot: what `laws.rs` generates and what the fuzzer finds go
//! through the same checks.

use podwarden_policy::{
    QosClass,
    container::{self, ContainerOptions, ContainerValue},
    desired,
    evict::Ranking,
    limits::Limit,
    name::CgroupName,
    plan::{Action, Snapshot, plan, ranking},
    settings::Setting,
};

use crate::kernel::apply;

/// Every law that holds for any snapshot, on a kernel of the version that `weights` tells. Panics where one is broken.
pub(crate) fn all(snapshot: &Snapshot, weights: bool) {
    order_does_not_matter(snapshot);
    settles(snapshot, weights);
    children_fit_on_the_way(snapshot, weights);
    lowers_nothing_below_usage(snapshot);
    leaves_others_alone(snapshot);
    limits_kubepods_to_something(snapshot);
    ranks_every_candidate_once(snapshot);
    slows_containers_between_request_and_limit(snapshot);
    knows_the_tiers_limits_without_looking(snapshot);
}

/// The same snapshot gives the same actions, whatever the order of its pods.
pub(crate) fn order_does_not_matter(snapshot: &Snapshot) {
    let mut turned = snapshot.clone();
    turned.pods.reverse();
    let actions = plan(snapshot);
    assert_eq!(plan(snapshot), actions);
    assert_eq!(plan(&turned), actions);
}

/// What the pods alone say of the tiers' limits is what the tree has wherever it has one, once all pods are
/// known.
pub(crate) fn knows_the_tiers_limits_without_looking(snapshot: &Snapshot) {
    let mut whole = snapshot.clone();
    whole.incomplete = false;
    whole.pods.sort();
    whole.pods.dedup_by(|a, b| a.uid == b.uid);
    let known = desired::tier_limits(&whole.node, &whole.pods);
    let tiers = [QosClass::Burstable, QosClass::BestEffort].map(|of| whole.kubepods.tier(of));
    for cgroup in desired::tree(&whole) {
        let Some(at) = tiers.iter().position(|tier| *tier == cgroup.name) else {
            continue;
        };
        for (setting, _) in &cgroup.settings {
            if let Setting::MemoryLimit(limit) = setting {
                assert_eq!(*limit, known[at], "{}", cgroup.name);
            }
        }
    }
}

/// A plan that is done leaves nothing to do, except to evict the next pod.
pub(crate) fn settles(snapshot: &Snapshot, weights: bool) {
    let mut done = snapshot.clone();
    for action in plan(snapshot) {
        apply(&mut done, &action, weights);
    }
    let left = plan(&done).into_iter();
    let left: Vec<_> = left
        .filter(|a| !matches!(a, Action::Evict { .. }))
        .collect();
    assert_eq!(left, []);
}

/// Limits that a child's are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Property {
    Memory,
    Cpu,
}

/// Whether the child's limit is not above the parent's; `None` where one of them is not known.
fn fits(snapshot: &Snapshot, child: &CgroupName, property: Property) -> Option<bool> {
    let parent = snapshot.cgroups.get(&child.parent()?)?;
    let child = snapshot.cgroups.get(child)?;
    Some(match property {
        Property::Memory => child.memory_limit? <= parent.memory_limit?,
        Property::Cpu => {
            let (child, parent) = (child.cpu_max?, parent.cpu_max?);
            match (child.quota_us, parent.quota_us) {
                (Limit::At(a), Limit::At(b)) => {
                    u128::from(a) * u128::from(parent.period_us)
                        <= u128::from(b) * u128::from(child.period_us)
                }
                (a, b) => a <= b,
            }
        }
    })
}

/// A child's limit that is within its parent's before and after is so after every single action.
pub(crate) fn children_fit_on_the_way(snapshot: &Snapshot, weights: bool) {
    let actions = plan(snapshot);
    let mut done = snapshot.clone();
    for action in &actions {
        apply(&mut done, action, weights);
    }
    let properties = [Property::Memory, Property::Cpu];
    let kept: Vec<_> = snapshot
        .cgroups
        .keys()
        .flat_map(|name| properties.map(|property| (name.clone(), property)))
        .filter(|(name, property)| fits(snapshot, name, *property) == Some(true))
        .filter(|(name, property)| fits(&done, name, *property) == Some(true))
        .collect();
    let mut now = snapshot.clone();
    for action in &actions {
        apply(&mut now, action, weights);
        let Action::Write { cgroup, .. } = action else {
            continue;
        };
        for (name, property) in &kept {
            if name == cgroup || name.parent().as_ref() == Some(cgroup) {
                let fits = fits(&now, name, *property);
                assert_eq!(fits, Some(true), "{name} {property:?} after {action:?}");
            }
        }
    }
}

/// No memory limit is lowered to less than usage and the margin.
pub(crate) fn lowers_nothing_below_usage(snapshot: &Snapshot) {
    for action in plan(snapshot) {
        let Action::Write {
            cgroup,
            setting: Setting::MemoryLimit(Limit::At(limit)),
            ..
        } = action
        else {
            continue;
        };
        let Some(observed) = snapshot.cgroups.get(&cgroup) else {
            continue;
        };
        if observed
            .memory_limit
            .is_some_and(|now| Limit::At(limit) < now)
        {
            let usage = observed.memory_usage;
            let usage = usage.expect("known where a limit is lowered");
            assert!(limit >= usage.saturating_add(snapshot.margin), "{cgroup}");
        }
    }
}

/// What podwarden did not make is not removed; outside `kubepods` only the cgroups that are
/// configured are written, where they exist.
pub(crate) fn leaves_others_alone(snapshot: &Snapshot) {
    let daemons: Vec<_> = snapshot.node.enforce.cgroups().collect();
    for action in plan(snapshot) {
        match action {
            Action::Write { cgroup, .. } if !cgroup.is_within(&snapshot.kubepods) => {
                assert!(daemons.contains(&&cgroup), "{cgroup} is not configured");
                let exists = snapshot.cgroups.contains_key(&cgroup);
                assert!(exists, "{cgroup} does not exist");
            }
            Action::RemoveCgroup { cgroup, .. } => {
                assert!(cgroup.is_within(&snapshot.kubepods), "{cgroup} is not ours");
                assert!(snapshot.cgroups[&cgroup].ours, "{cgroup} is not ours");
            }
            Action::EnsureCgroup { cgroup, .. } => {
                assert!(cgroup.is_within(&snapshot.kubepods), "{cgroup} is not ours");
            }
            _ => {}
        }
    }
}

/// A node that is not known or not configured does not stop every pod.
pub(crate) fn limits_kubepods_to_something(snapshot: &Snapshot) {
    for action in plan(snapshot) {
        if let Action::Write {
            cgroup, setting, ..
        } = action
        {
            let nothing = match setting {
                Setting::MemoryLimit(Limit::At(bytes)) => bytes.is_zero(),
                Setting::PidsLimit(Limit::At(limit)) => limit == 0,
                _ => false,
            };
            assert!(cgroup != snapshot.kubepods || !nothing, "{setting}");
        }
    }
}

/// The ranking holds every pod that has a cgroup and may be evicted, once, ordered by rank.
pub(crate) fn ranks_every_candidate_once(snapshot: &Snapshot) {
    for order in [Ranking::QosFirst, Ranking::Kubelet] {
        let mut snapshot = snapshot.clone();
        snapshot.ranking = order;
        let ranked = ranking(&snapshot);
        assert!(ranked.is_sorted_by_key(|r| (r.rank, &r.pod.uid)));
        let mut uids: Vec<_> = ranked.iter().map(|r| &r.pod.uid).collect();
        uids.sort();
        assert!(uids.is_sorted_by(|a, b| a < b), "a pod is in it twice");
        for ranked in &ranked {
            assert_eq!(snapshot.exemptions.of(ranked.pod), None);
        }
    }
}

/// `memory.high` lies above the request and not above the limit, and a score within its range.
pub(crate) fn slows_containers_between_request_and_limit(snapshot: &Snapshot) {
    let mut snapshot = snapshot.clone();
    snapshot.containers = ContainerOptions {
        throttling_factor: Some(900_000),
        limited_swap: true,
    };
    let pods = snapshot.pods.iter();
    for (pod, container) in pods.flat_map(|pod| pod.containers.iter().map(move |c| (pod, c))) {
        let resources = &container.resources;
        for (value, _) in container::values(&snapshot, pod, container) {
            match value {
                ContainerValue::MemoryHigh(Limit::At(high)) => {
                    assert!(high > resources.memory_request.unwrap_or_default());
                    let limit = resources.memory_limit.filter(|limit| !limit.is_zero());
                    assert!(limit.is_none_or(|limit| high <= limit), "{high}");
                }
                ContainerValue::SwapMax(swap) => assert!(swap <= snapshot.node.swap_capacity),
                ContainerValue::OomScoreAdj(score) => assert!((-997..=1000).contains(&score)),
                _ => {}
            }
        }
    }
}
