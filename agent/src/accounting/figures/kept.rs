//! What is kept of a cgroup from one pass to the next, beside open files.

use std::time::Instant;

use arcstr::ArcStr;
use podwarden_abi::Account;
use podwarden_cgroup::{CgroupPath, Pressure, Tree};

use super::parts::below_mount;
use crate::{
    accounting::{index::PodEntry, walked::Places},
    api::types::ThrottlingStats,
};

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
    /// How often and how long its quota held it up.
    pub(super) throttling: Option<ThrottlingStats>,
}

#[derive(Debug, Default)]
pub(super) struct KeptPod {
    pub(super) own: Kept,
    /// What it had used in all.
    pub(super) total: Option<Account>,
    /// By container id; a pod has a few.
    containers: Vec<(ArcStr, Kept)>,
    /// What containers that are gone had counted when they were read last: a pod's counters never go back.
    pub(super) gone: Gone,
    /// Its cgroup, and that below the controllers' mount points.
    cgroup: (CgroupPath, ArcStr),
}

/// Of a pod's containers that are gone.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Gone {
    pub(super) throttling: Option<ThrottlingStats>,
    pub(super) refused_forks: Option<u64>,
}

impl Gone {
    fn add(&mut self, container: &Kept) {
        self.throttling = sum([self.throttling, container.throttling]);
        let forks = [self.refused_forks, container.refused_forks];
        self.refused_forks = forks.into_iter().flatten().reduce(|a, b| a + b);
    }
}

/// Of those that are known; `None` of none.
pub(super) fn sum(
    all: impl IntoIterator<Item = Option<ThrottlingStats>>,
) -> Option<ThrottlingStats> {
    let known = all.into_iter().flatten();
    known.reduce(|a, b| ThrottlingStats {
        periods: a.periods + b.periods,
        throttled_periods: a.throttled_periods + b.throttled_periods,
        throttled_nano_seconds: a.throttled_nano_seconds + b.throttled_nano_seconds,
    })
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

    /// Forgets containers that are gone, but for what they had counted.
    pub(super) fn retain(&mut self, entry: &PodEntry) {
        let is_live = |id: &str| entry.containers.get(id).is_some_and(|one| one.live);
        self.containers.retain(|(id, kept)| {
            let live = is_live(id);
            if !live {
                self.gone.add(kept);
            }
            live
        });
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

    #[test]
    fn what_a_container_had_counted_stays_with_its_pod() {
        let mut pod = KeptPod::default();
        let throttled = |n| ThrottlingStats {
            periods: n,
            throttled_periods: n,
            throttled_nano_seconds: n,
        };
        let none = PodEntry::new(podwarden_policy::QosClass::Burstable);
        for (id, n, periods) in [("a", 5, Some(5)), ("b", 2, Some(7))] {
            let kept = pod.container(&id.into());
            (kept.throttling, kept.refused_forks) = (Some(throttled(n)), Some(n));
            pod.retain(&none);
            assert_eq!(pod.gone.throttling.map(|all| all.periods), periods);
            assert_eq!(pod.gone.refused_forks, periods);
        }
        // One that was never read.
        pod.container(&"c".into());
        pod.retain(&none);
        assert_eq!(pod.gone.refused_forks, Some(7));
        let live = sum([Some(throttled(1)), None, pod.gone.throttling]);
        assert_eq!(live.map(|all| all.throttled_nano_seconds), Some(8));
    }
}
