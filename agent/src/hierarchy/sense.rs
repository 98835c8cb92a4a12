//! Gathers a policy [`Snapshot`]: pods, node and what the cgroups hold. Decides nothing.

use std::collections::BTreeSet;

use podwarden_cgroup::{CgroupLayout, CgroupPath, Controller, Tree};
use podwarden_policy::{
    Bytes, Node, Pod,
    name::CgroupName,
    plan::{self, Controllers, Snapshot},
    pressure, reserve,
    settings::{Observed, Row, table},
};

use crate::{base::cpus, config::Config, hierarchy::recorded::Version, pods::PodSet};

/// What is to run, as far as it is known.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    pub pods: Vec<Pod>,
    /// There may be more of them.
    pub incomplete: bool,
}

impl From<&PodSet> for Wanted {
    fn from(set: &PodSet) -> Self {
        Self {
            pods: set.pods.iter().map(|p| p.pod.clone()).collect(),
            incomplete: !set.waiting.is_empty(),
        }
    }
}

/// What a plan goes by, without pods and cgroups.
pub fn terms(tree: &Tree, layout: &CgroupLayout, config: &Config, node: &Node) -> Snapshot {
    let mut terms = Snapshot::new(node.clone(), layout.kubepods.clone());
    config.decide(&mut terms);
    terms.controllers = controllers(tree, &layout.path(&layout.kubepods));
    terms.margin = plan::margin(cpus::online());
    terms.page_size = page_size();
    terms
}

/// Everything a plan depends on, read now. `existing` are the pods' cgroups that are there; `ours`
/// tells which of them podwarden made.
pub fn snapshot(
    tree: &Tree,
    layout: &CgroupLayout,
    config: &Config,
    node: &Node,
    Wanted { pods, incomplete }: Wanted,
    existing: &[CgroupName],
    ours: impl Fn(&CgroupPath) -> bool,
) -> Snapshot {
    let mut snapshot = terms(tree, layout, config, node);
    let classes = podwarden_policy::QosClass::ALL;
    let mut wanted = BTreeSet::from(classes.map(|c| layout.kubepods.tier(c)));
    wanted.extend(pods.iter().map(|pod| {
        let class = podwarden_policy::qos::classify(pod);
        layout.kubepods.pod(class, &pod.uid)
    }));
    wanted.extend(node.enforce.cgroups().cloned());
    let left_over: BTreeSet<_> = existing.iter().filter(|n| !wanted.contains(n)).collect();
    snapshot.pods = pods;
    snapshot.incomplete = incomplete;
    snapshot.cgroups = wanted
        .iter()
        .chain(left_over.iter().copied())
        .filter_map(|name| {
            let path = layout.path(name);
            // What is wanted and not whole is made whole; what is left over in any hierarchy is there.
            let there =
                tree.id(&path).is_ok() || (left_over.contains(name) && tree.is_anywhere(&path));
            if !there {
                return None;
            }
            let observed = Observed {
                ours: ours(&path),
                ..tree.read(&path)
            };
            Some((name.clone(), observed))
        })
        .collect();
    let pods_use = snapshot.cgroups.get(&layout.kubepods);
    let pods_use = pods_use.and_then(|kubepods| kubepods.memory_working_set);
    snapshot.crossing = pressure::crossed_by_pods(node, pods_use);
    snapshot
}

pub fn page_size() -> Bytes {
    Bytes(rustix::param::page_size() as u64)
}

/// Which files the cgroups have, by the CPU controller's hierarchy.
pub fn version(tree: &Tree) -> Version {
    if tree.hierarchies().is_on_v2(Controller::Cpu) {
        Version::V2
    } else {
        Version::V1
    }
}

/// What can be written to cgroups: the controllers that are mounted and, once there is a `kubepods`,
/// enabled for it. A setting of any other is not planned, so that it is missed once and not for
/// every pod; [`shortcomings`] says so.
fn controllers(tree: &Tree, kubepods: &CgroupPath) -> Controllers {
    let has = |part: &Part| part.is_mounted(tree) && part.is_enabled(tree, kubepods) != Some(false);
    Controllers {
        cpu: has(&Part::SHARES),
        cpu_bandwidth: has(&Part::QUOTA),
        memory: has(&Part::MEMORY),
        memory_protection: tree.hierarchies().is_on_v2(Controller::Memory)
            && has(&Part::PROTECTION),
        pids: has(&Part::PIDS),
        hugetlb: has(&Part::HUGETLB),
    }
}

/// What of a controller is written, and the files that show that it can be.
struct Part {
    controller: Controller,
    /// What is not limited without it.
    lost: &'static str,
    rows: &'static [&'static Row],
}

impl Part {
    const SHARES: Self = Self {
        controller: Controller::Cpu,
        lost: "CPU shares are not set",
        rows: &[&table::CPU_SHARES],
    };
    const QUOTA: Self = Self {
        controller: Controller::Cpu,
        lost: "CPU limits are not enforced",
        rows: &[&table::CPU_QUOTA],
    };
    const MEMORY: Self = Self {
        controller: Controller::Memory,
        lost: "memory limits are not enforced",
        rows: &[&table::MEMORY_LIMIT],
    };
    const PROTECTION: Self = Self {
        controller: Controller::Memory,
        lost: "memoryReservationPolicy has no effect",
        rows: &[&table::MEMORY_MIN, &table::MEMORY_LOW],
    };
    const PIDS: Self = Self {
        controller: Controller::Pids,
        lost: "podPidsLimit and the reserves of process ids are not enforced",
        rows: &[&table::PIDS_LIMIT],
    };
    const HUGETLB: Self = Self {
        controller: Controller::HugeTlb,
        lost: "huge pages are not limited",
        rows: &[],
    };

    fn is_mounted(&self, tree: &Tree) -> bool {
        tree.hierarchies().mount_of(self.controller).is_ok()
    }

    /// `None` before there is such a cgroup.
    fn is_enabled(&self, tree: &Tree, path: &CgroupPath) -> Option<bool> {
        tree.id(path).ok().map(|_| match self.controller {
            Controller::HugeTlb => tree.huge_page_sizes(path).is_ok_and(|s| !s.is_empty()),
            _ => self.rows.iter().all(|row| tree.value(path, row).is_ok()),
        })
    }
}

/// Configured features that this node cannot provide at present, one sentence each.
pub fn shortcomings(tree: &Tree, layout: &CgroupLayout, snapshot: &Snapshot) -> BTreeSet<String> {
    let kubepods = layout.path(&layout.kubepods);
    let tiered = snapshot.limits.memory_reservation;
    let mut asked = vec![(Part::MEMORY, true), (Part::PROTECTION, tiered)];
    if snapshot.ownership == plan::Ownership::Own {
        let limits_pids = snapshot.limits.pod_pids_limit.is_some();
        let has_hugepages = snapshot
            .node
            .hugepages
            .values()
            .any(|total| !total.is_zero());
        asked.extend([
            (Part::SHARES, true),
            (Part::QUOTA, snapshot.limits.enforce_cpu_limits),
            (Part::PIDS, limits_pids),
            (Part::HUGETLB, has_hugepages),
        ]);
    }
    let parts = asked.into_iter().filter_map(|(part, asked)| {
        let enabled = part
            .is_mounted(tree)
            .then(|| part.is_enabled(tree, &kubepods));
        let controller = part.controller;
        let why = match enabled {
            Some(None | Some(true)) => return None,
            None => format!("the {controller} controller is on no mounted cgroup hierarchy"),
            Some(Some(false)) if tree.hierarchies().is_on_v2(controller) => format!(
                "the {controller} controller has no such files in {kubepods}: enable it in \
                 cgroup.subtree_control of every cgroup above, or use a kernel that has them"
            ),
            Some(Some(false)) => {
                format!("the {controller} controller is on cgroup v1, which has no such files here")
            }
        };
        asked.then(|| format!("{}: {why}", part.lost))
    });
    let reserves = reserve::cgroup_errors(snapshot).into_iter();
    parts
        .chain(reserves.map(|error| error.to_string()))
        .collect()
}
