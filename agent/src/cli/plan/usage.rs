//! Usage that is written by hand, put where a snapshot keeps what was read from cgroups.

use podwarden_policy::{
    Bytes, Node,
    name::CgroupName,
    plan::Snapshot,
    pressure::{Crossing, Observation, Watch},
    qos,
    settings::Observed,
    signal::Signal,
};

use crate::{cli::select, config::Config, hierarchy::recorded::Version};

/// Notes that a pod uses so much. A pod that uses memory has a cgroup: where the snapshot has none
/// for it, it gets one as the kernel makes it. An error where there is no such pod, or there are several.
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
    let page_sizes = snapshot.node.hugepages.keys().copied();
    let fresh = || Observed::fresh(version.into(), page_sizes);
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
