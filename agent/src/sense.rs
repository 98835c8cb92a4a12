//! Gathers a policy [`Snapshot`]: pods, node and what the cgroups hold. Decides nothing.

use std::collections::BTreeMap;

use podwarden_cgroup::{Controller, CpuShare as TreeShare, Driver, MemoryReader, Tree};
use podwarden_policy::{
    Bytes, CpuShares, CpuWeight, Node, Pod, convert,
    limits::{CpuMax, Limit},
    name::{self, CgroupName},
    plan::{Controllers, Snapshot},
    settings::{CpuShare, Observed},
};

use crate::{config::Config, recorded::Version};

/// How the tree is named, and where kubepods is in it.
#[derive(Debug, Clone)]
pub struct Naming {
    /// Who names the cgroups.
    pub driver: Driver,
    /// The `kubepods` cgroup.
    pub kubepods: CgroupName,
}

impl Naming {
    /// Names below the tree's root.
    pub fn new(driver: Driver) -> Self {
        Self {
            driver,
            kubepods: name::kubepods(&CgroupName::root()),
        }
    }

    /// A cgroup's path relative to the tree's root.
    pub fn rel(&self, name: &CgroupName) -> String {
        let path = match self.driver {
            Driver::Cgroupfs => name.to_cgroupfs(),
            Driver::Systemd => name.to_systemd(),
        };
        path.trim_start_matches('/').to_owned()
    }
}

/// Everything a plan depends on, read now. `existing` are the pods' cgroups that are there; `ours`
/// tells which of them podwarden made.
pub fn snapshot(
    tree: &Tree,
    naming: &Naming,
    config: &Config,
    node: &Node,
    pods: Vec<Pod>,
    existing: &[CgroupName],
    ours: impl Fn(&str) -> bool,
) -> Snapshot {
    let mut snapshot = Snapshot::new(node.clone(), naming.kubepods.clone());
    snapshot.ownership = config.ownership.into();
    snapshot.controllers = controllers(tree);
    snapshot.ranking = config.ranking;
    snapshot.immunity = config.immunity();
    snapshot.page_size = Bytes(rustix::param::page_size() as u64);
    let classes = podwarden_policy::QosClass::ALL;
    let mut names: Vec<_> = classes.map(|c| naming.kubepods.tier(c)).to_vec();
    names.extend(pods.iter().map(|pod| {
        let class = podwarden_policy::qos::classify(pod);
        naming.kubepods.pod(class, &pod.uid)
    }));
    names.extend(existing.iter().cloned());
    names.extend(node.enforce.cgroups().cloned());
    snapshot.pods = pods;
    snapshot.cgroups = names
        .into_iter()
        .filter_map(|name| {
            let rel = naming.rel(&name);
            tree.id(&rel).ok()?;
            let observed = observe(tree, &rel, ours(&rel));
            Some((name, observed))
        })
        .collect();
    snapshot
}

/// Which files the cgroups have, by the CPU controller's hierarchy.
pub fn version(tree: &Tree) -> Version {
    if tree.hierarchies().is_on_v2(Controller::Cpu) {
        Version::V2
    } else {
        Version::V1
    }
}

fn controllers(tree: &Tree) -> Controllers {
    let hierarchies = tree.hierarchies();
    let has = |c| hierarchies.mount_of(c).is_ok();
    Controllers {
        cpu: has(Controller::Cpu),
        cpu_bandwidth: has(Controller::Cpu),
        memory: has(Controller::Memory),
        memory_protection: hierarchies.is_on_v2(Controller::Memory),
        pids: has(Controller::Pids),
        hugetlb: has(Controller::HugeTlb),
    }
}

/// What a cgroup holds; a value that cannot be read is unknown.
pub(crate) fn observe(tree: &Tree, rel: &str, ours: bool) -> Observed {
    let limit = |bytes: Option<u64>| match bytes {
        Some(bytes) => Limit::At(Bytes(bytes)),
        None => Limit::Unlimited,
    };
    // All of it, where the file says `max`.
    let protected = |bytes: Option<u64>| Bytes(bytes.unwrap_or(u64::MAX));
    let memory = MemoryReader::open(tree, rel).ok();
    let usage = memory.as_ref().and_then(|m| m.usage().ok());
    let stat = memory.as_ref().and_then(|m| m.stat().ok());
    Observed {
        ours,
        cpu: tree.cpu_share(rel).ok().map(|share| match share {
            TreeShare::Shares(shares) => CpuShare::Shares(CpuShares(shares)),
            TreeShare::Weight(weight) => CpuShare::Weight(CpuWeight(weight)),
        }),
        cpu_max: tree.cpu_quota(rel).ok().map(|quota| CpuMax {
            quota_us: quota.map_or(Limit::Unlimited, |q| Limit::At(q.quota_us)),
            period_us: quota.map_or(convert::DEFAULT_PERIOD_US, |q| q.period_us),
        }),
        memory_limit: memory.as_ref().and_then(|m| m.limit().ok()).map(limit),
        memory_min: tree.memory_min(rel).ok().map(protected),
        memory_low: tree.memory_low(rel).ok().map(protected),
        pids_limit: tree
            .pids_limit(rel)
            .ok()
            .map(|l| l.map_or(Limit::Unlimited, Limit::At)),
        hugetlb: tree.hugetlb_limits(rel).map_or_else(
            |_| BTreeMap::new(),
            |limits| {
                let limits = limits.into_iter();
                limits.map(|(size, b)| (Bytes(size), limit(b))).collect()
            },
        ),
        memory_usage: usage.map(Bytes),
        memory_working_set: usage
            .zip(stat)
            .map(|(usage, stat)| Bytes(usage.saturating_sub(stat.inactive_file))),
    }
}
