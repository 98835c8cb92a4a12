//! The pod or container of a memory cgroup, whose hierarchy may be another than the index's.

use podwarden_cgroup::{CgroupPath, Tree};
use podwarden_policy::PodUid;

use super::{CgroupIndex, PodEntry};

impl CgroupIndex {
    /// The pod whose own memory cgroup has the id `memory_id`, or whose container `Some(id)` has. `below` is a cgroup
    /// of the index in it or below it, where one is known: its pod is looked at first, then all others, since the
    /// kernel may charge a task's memory to another cgroup.
    pub fn by_memory_id(
        &self,
        tree: &Tree,
        below: u64,
        memory_id: u64,
    ) -> Option<(&PodUid, Option<&str>)> {
        let first = self.owner(below).map(|(uid, _)| uid);
        let first = first.and_then(|uid| self.pods.get_key_value(uid));
        let all = first.into_iter().chain(&self.pods);
        all.filter_map(|(uid, pod)| Some((uid, of_pod(tree, pod, memory_id)?)))
            .next()
    }
}

/// `Some(None)` for the pod itself.
fn of_pod<'a>(tree: &Tree, pod: &'a PodEntry, memory_id: u64) -> Option<Option<&'a str>> {
    let is = |path: &CgroupPath| tree.memory_id(path).is_ok_and(|id| id == memory_id);
    if is(&pod.path) {
        return Some(None);
    }
    let mut live = pod.containers.iter().filter(|(_, one)| one.live);
    let found = live.find(|(_, one)| is(&one.path));
    found.map(|(id, _)| Some(id.as_str()))
}
