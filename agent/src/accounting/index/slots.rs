//! Which accounts a pod's tasks count to.

use super::{CgroupIndex, PodEntry};

impl CgroupIndex {
    /// The accounts of a pod's cgroups, those that it shares with others left out.
    pub fn slots(&self, entry: &PodEntry) -> Vec<u32> {
        let containers = entry.containers.values().flat_map(|one| &one.nodes);
        let nodes = entry.nodes.iter().chain(containers);
        let own = nodes.filter_map(|id| self.nodes.get(id).filter(|node| node.own));
        own.map(|node| node.slot).collect()
    }
}
