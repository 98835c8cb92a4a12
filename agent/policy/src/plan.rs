//! The plan: from the present state to the desired one.
//!
//! Properties: the same snapshot gives the same actions in the same order, whatever the order of
//! its pods. When every action succeeds, the next plan is empty. On the way, no cgroup's limit is
//! ever above its parent's where that was so neither before nor after. No memory limit is written
//! below usage plus the margin.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use serde::{Deserialize, Serialize};

pub use crate::snapshot::{
    CHARGE_BATCH, ContainerCgroup, Controllers, DEFAULT_MARGIN, Ownership, Snapshot, margin,
};
use crate::{
    desired::{self, Desired, MadeBy},
    evict::{self, Ranked},
    limits::Limit,
    model::{Pod, PodUid},
    name::{self, CgroupName},
    qos,
    reason::Reason,
    settings::{Change, Observed, Setting},
    signal::Signal,
};

/// Something to do, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "action",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum Action {
    /// Make a cgroup.
    EnsureCgroup {
        /// Which.
        cgroup: CgroupName,
        /// Why.
        reason: Reason,
    },
    /// Write a value.
    Write {
        /// To which cgroup.
        cgroup: CgroupName,
        /// What.
        setting: Setting,
        /// Why this value.
        reason: Reason,
    },
    /// Remove a cgroup, its processes first.
    RemoveCgroup {
        /// Which.
        cgroup: CgroupName,
        /// Why.
        reason: Reason,
    },
    /// Evict a pod.
    Evict {
        /// Which.
        pod: PodUid,
        /// Its cgroup.
        cgroup: CgroupName,
        /// Why this one.
        reason: Reason,
    },
}

/// What to do, in order: evict, make room (raise limits from the top down), make what is missing,
/// tighten (lower limits from the bottom up), remove what is left over.
pub fn plan(snapshot: &Snapshot) -> Vec<Action> {
    towards(snapshot, &desired::tree(snapshot))
}

/// As [`plan`], towards the tree that [`desired::tree`] gave for this snapshot.
pub fn towards(snapshot: &Snapshot, desired: &[Desired]) -> Vec<Action> {
    let mut raise = Vec::new();
    let mut make = Vec::new();
    let mut lower = Vec::new();
    for cgroup in desired {
        let ours = snapshot.ownership == Ownership::Own && cgroup.made_by == MadeBy::Podwarden;
        match snapshot.cgroups.get(&cgroup.name) {
            None if ours => make_cgroup(cgroup, &mut make),
            None => {}
            Some(observed) => {
                adjust_cgroup(snapshot, cgroup, observed, &mut raise, &mut lower);
            }
        }
    }
    // Built from the top down; tightening goes the other way, cgroup by cgroup.
    lower.reverse();

    let mut actions: Vec<_> = eviction(snapshot).into_iter().collect();
    actions.append(&mut raise);
    actions.append(&mut make);
    actions.append(&mut lower);
    actions.extend(removals(snapshot, desired));
    actions
}

/// What brings some cgroups that exist back to what they ought to be: those of `desired`, parents
/// before children, that are in `observed`. The same values in the same order as a whole plan would
/// write; of `snapshot` only the page size and the margin count.
pub fn corrections<'a>(
    snapshot: &Snapshot,
    desired: impl IntoIterator<Item = &'a Desired>,
    observed: &BTreeMap<CgroupName, Observed>,
) -> Vec<Action> {
    let mut raise = Vec::new();
    let mut lower = Vec::new();
    for cgroup in desired {
        if let Some(observed) = observed.get(&cgroup.name) {
            adjust_cgroup(snapshot, cgroup, observed, &mut raise, &mut lower);
        }
    }
    lower.reverse();
    raise.append(&mut lower);
    raise
}

/// A fresh cgroup is unlimited, so only bounds are written.
fn make_cgroup(desired: &Desired, actions: &mut Vec<Action>) {
    actions.push(Action::EnsureCgroup {
        cgroup: desired.name.clone(),
        reason: desired.reason.clone(),
    });
    let written = desired.settings.iter().filter(|(s, _)| !s.is_unlimited());
    actions.extend(written.map(|(setting, reason)| Action::Write {
        cgroup: desired.name.clone(),
        setting: *setting,
        reason: reason.clone(),
    }));
}

fn adjust_cgroup(
    snapshot: &Snapshot,
    desired: &Desired,
    observed: &Observed,
    raise: &mut Vec<Action>,
    lower: &mut Vec<Action>,
) {
    for (setting, reason) in &desired.settings {
        let (setting, reason) = match hold_above_usage(snapshot, setting, observed) {
            Held::No => (*setting, reason.clone()),
            Held::At(setting, reason) => (setting, reason),
            Held::Leave => continue,
        };
        let direction = setting.change_from(observed, snapshot.page_size);
        let actions = match direction {
            Change::None => continue,
            Change::Raise => &mut *raise,
            Change::Lower => &mut *lower,
        };
        actions.push(Action::Write {
            cgroup: desired.name.clone(),
            setting,
            reason,
        });
    }
}

enum Held {
    No,
    At(Setting, Reason),
    Leave,
}

/// Keeps a memory limit above usage: the kernel would reclaim and then kill to reach it (v2), or
/// refuse it (v1).
fn hold_above_usage(snapshot: &Snapshot, setting: &Setting, observed: &Observed) -> Held {
    let Setting::MemoryLimit(Limit::At(wanted)) = *setting else {
        return Held::No;
    };
    let lowers = match observed.memory_limit {
        Some(Limit::At(now)) => wanted.round_down(snapshot.page_size) < now,
        Some(Limit::Unlimited) => true,
        // Not readable: nothing is written then either.
        None => return Held::No,
    };
    if !lowers {
        return Held::No;
    }
    // Its lower bound is unknown.
    let Some(usage) = observed.memory_usage else {
        return Held::Leave;
    };
    let floor = usage
        .saturating_add(snapshot.margin)
        .round_up(snapshot.page_size);
    if wanted >= floor {
        return Held::No;
    }
    match observed.memory_limit {
        // Already as near as it may be.
        Some(now) if now <= Limit::At(floor) => Held::Leave,
        _ => Held::At(
            Setting::MemoryLimit(Limit::At(floor)),
            Reason::HeldAboveUsage {
                wanted,
                usage,
                margin: snapshot.margin,
            },
        ),
    }
}

fn removals(snapshot: &Snapshot, desired: &[Desired]) -> Vec<Action> {
    if snapshot.ownership != Ownership::Own || snapshot.incomplete {
        return Vec::new();
    }
    let keep: BTreeSet<_> = desired.iter().map(|d| &d.name).collect();
    let parents: BTreeSet<_> = crate::QosClass::ALL
        .into_iter()
        .map(|class| snapshot.kubepods.tier(class))
        .collect();
    snapshot
        .cgroups
        .iter()
        .filter(|(name, observed)| observed.ours && !keep.contains(name))
        .filter(|(name, _)| name.parent().is_some_and(|p| parents.contains(&p)))
        .filter(|(name, _)| name.last().and_then(name::parse_pod).is_some())
        .map(|(name, _)| Action::RemoveCgroup {
            cgroup: name.clone(),
            reason: Reason::PodGone,
        })
        .collect()
}

/// At most one pod: what its death frees is not known before it is free.
fn eviction(snapshot: &Snapshot) -> Option<Action> {
    let crossing = snapshot.crossing?;
    if !matches!(
        crossing.threshold.signal,
        Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable
    ) {
        return None;
    }
    let order = ranking(snapshot);
    let first = order.first()?;
    Some(Action::Evict {
        pod: first.pod.uid.clone(),
        cgroup: pod_cgroup(snapshot, first.pod),
        reason: Reason::Evict {
            crossing,
            rank: first.rank,
            candidates: order.len(),
        },
    })
}

/// The pods that have a cgroup and may be evicted, the first to go first.
pub fn ranking(snapshot: &Snapshot) -> Vec<Ranked<'_>> {
    let observed = |pod: &Pod| snapshot.cgroups.get(&pod_cgroup(snapshot, pod));
    let running = desired::unique(&snapshot.pods)
        .into_iter()
        .filter(|pod| observed(pod).is_some());
    let working_set = |pod: &Pod| observed(pod)?.memory_working_set;
    evict::order(snapshot.ranking, &snapshot.exemptions, running, working_set)
}

fn pod_cgroup(snapshot: &Snapshot, pod: &Pod) -> CgroupName {
    snapshot.kubepods.pod(qos::classify(pod), &pod.uid)
}
