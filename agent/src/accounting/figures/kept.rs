//! What is kept of a cgroup from one pass to the next, beside open files.

use std::time::Instant;

use arcstr::ArcStr;
use podwarden_abi::Account;
use podwarden_cgroup::{CgroupPath, Pressure, Tree};

use super::parts::below_mount;
use crate::accounting::{index::PodEntry, walked::Places};

/// Of one cgroup.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Where the kernel's pass has its records.
    pub(super) places: Places,
    /// When it was read last, and its CPU time then, nanoseconds.
    pub(super) used: Option<(Instant, u64)>,
    /// See [`super::pids`].
    pub(super) refused_forks: Option<u64>,
    /// See [`super::pids`].
    pub(super) tasks: Option<u64>,
    /// See [`super::pressure`].
    pub(super) pressure: Option<Pressure>,
}

/// Of a pod.
#[derive(Debug, Default)]
pub(super) struct KeptPod {
    pub(super) own: Kept,
    /// What it had used in all.
    pub(super) total: Option<Account>,
    /// By container id; a pod has a few.
    containers: Vec<(ArcStr, Kept)>,
    /// Its cgroup, and that below the controllers' mount points.
    cgroup: (CgroupPath, ArcStr),
}

impl KeptPod {
    /// Its cgroup below the controllers' mount points.
    pub(super) fn cgroup(&mut self, tree: &Tree, path: &CgroupPath) -> ArcStr {
        let (known, text) = &mut self.cgroup;
        if text.is_empty() || known != path {
            *text = below_mount(tree, path).into();
            known.clone_from(path);
        }
        text.clone()
    }

    /// Of one of its containers.
    pub(super) fn container(&mut self, id: &ArcStr) -> &mut Kept {
        let known = self.containers.iter().position(|(known, _)| known == id);
        let at = known.unwrap_or_else(|| {
            self.containers.push((id.clone(), Kept::default()));
            self.containers.len() - 1
        });
        &mut self.containers[at].1
    }

    /// Forgets containers that are gone.
    pub(super) fn retain(&mut self, entry: &PodEntry) {
        let is_live = |id: &str| entry.containers.get(id).is_some_and(|one| one.live);
        self.containers.retain(|(id, _)| is_live(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_a_container_is_its_own() {
        let mut pod = KeptPod::default();
        for (id, forks) in [("a", 1), ("b", 2), ("a", 3)] {
            pod.container(&id.into()).refused_forks = Some(forks);
        }
        assert_eq!(pod.containers.len(), 2);
        for (id, forks) in [("a", 3), ("b", 2)] {
            assert_eq!(pod.container(&id.into()).refused_forks, Some(forks), "{id}");
        }
        assert_eq!(pod.container(&"c".into()).refused_forks, None);
        pod.retain(&PodEntry::new(podwarden_policy::QosClass::Burstable));
        assert!(pod.containers.is_empty());
    }
}
