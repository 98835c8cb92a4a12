//! Usage that is written by hand, put where a snapshot keeps what was read from cgroups.

use podwarden_policy::{
    Bytes, CpuShares, CpuWeight, Node, convert,
    limits::{CpuMax, Limit},
    name::CgroupName,
    plan::Snapshot,
    pressure::{Crossing, Observation, Watch},
    qos,
    settings::{CpuShare, Observed},
    signal::Signal,
};

use crate::{cli::select, config::Config, hierarchy::recorded::Version};

/// Notes that a pod uses so much. A pod that uses memory has a cgroup: where the snapshot has none
/// for it, it gets one as the kernel makes it.
///
/// # Errors
/// There is no such pod, or there are several.
pub(super) fn note(
    snapshot: &mut Snapshot,
    version: Version,
    pod: &str,
    used: Bytes,
) -> anyhow::Result<()> {
    let found = select::pod(&snapshot.pods, pod)?;
    let name = snapshot.kubepods.pod(qos::classify(found), &found.uid);
    let observed = entry(snapshot, &name, version);
    observed.memory_working_set = Some(used);
    observed.memory_usage = observed.memory_usage.max(Some(used));
    Ok(())
}

/// Gives every cgroup the ancestors that it must have, which use what those below use.
pub(super) fn complete(snapshot: &mut Snapshot, version: Version) {
    let given = snapshot.cgroups.clone();
    for (name, observed) in &given {
        let mut above = name.parent();
        while let Some(parent) = above.filter(|n| n.is_within(&snapshot.kubepods)) {
            if !given.contains_key(&parent) {
                let used = observed.memory_usage.unwrap_or_default();
                let parent = entry(snapshot, &parent, version);
                let sum = parent.memory_usage.unwrap_or_default();
                parent.memory_usage = Some(sum.saturating_add(used));
            }
            above = parent.parent();
        }
    }
}

fn entry<'a>(snapshot: &'a mut Snapshot, name: &CgroupName, version: Version) -> &'a mut Observed {
    let hugetlb = snapshot.node.hugepages.keys();
    let hugetlb = hugetlb.map(|size| (*size, Limit::Unlimited)).collect();
    let fresh = || Observed {
        cpu: Some(match version {
            Version::V1 => CpuShare::Shares(CpuShares(convert::SHARES_PER_CPU)),
            // CGROUP_WEIGHT_DFL of the kernel's include/linux/cgroup.h.
            Version::V2 => CpuShare::Weight(CpuWeight(100)),
        }),
        cpu_max: Some(CpuMax {
            quota_us: Limit::Unlimited,
            period_us: convert::DEFAULT_PERIOD_US,
        }),
        memory_limit: Some(Limit::Unlimited),
        memory_min: Some(Bytes::ZERO),
        memory_low: Some(Bytes::ZERO),
        pids_limit: Some(Limit::Unlimited),
        hugetlb,
        ..Observed::default()
    };
    snapshot.cgroups.entry(name.clone()).or_insert_with(fresh)
}

/// Whether so much left crosses the hard threshold.
pub(super) fn crossing(config: &Config, node: &Node, available: Bytes) -> Option<Crossing> {
    let threshold = *config.hard(Signal::MemoryAvailable)?;
    let reading = Observation {
        available: available.0,
        capacity: node.memory_capacity.0,
    };
    let readings = [(Signal::MemoryAvailable, reading)].into();
    let crossed = Watch::default().observe(std::time::Duration::ZERO, &[threshold], &readings);
    crossed.into_iter().next()
}
