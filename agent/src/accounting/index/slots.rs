//! Which accounts a pod's tasks count to.

use super::{AccountReader, CgroupIndex, PodEntry};

impl CgroupIndex {
    /// Every account that a cgroup has to itself, in order.
    pub fn own_slots(&self) -> Vec<u32> {
        let own = self.nodes.values().filter(|node| node.own);
        let mut slots: Vec<_> = own.map(|node| node.slot).collect();
        slots.sort_unstable();
        slots
    }

    /// The accounts of a pod's cgroups, those that it shares with others left out.
    pub fn slots(&self, entry: &PodEntry) -> Vec<u32> {
        let containers = entry.containers.values().flat_map(|one| &one.nodes);
        let nodes = entry.nodes.iter().chain(containers);
        let own = nodes.filter_map(|id| self.nodes.get(id).filter(|node| node.own));
        own.map(|node| node.slot).collect()
    }

    /// A number that is another one once a task of the pod has run, or one of its cgroups came or went.
    pub fn activity(&self, entry: &PodEntry, figures: &impl AccountReader) -> u64 {
        let containers = entry.containers.values().flat_map(|one| &one.nodes);
        let nodes = entry.nodes.iter().chain(containers);
        let nodes = nodes.filter_map(|id| Some((*id, self.nodes.get(id)?)));
        nodes.fold(0, |sum: u64, (id, node)| {
            let ran = node.own.then(|| figures.activity(node.slot));
            sum.wrapping_add(id).wrapping_add(ran.unwrap_or_default())
        })
    }
}
