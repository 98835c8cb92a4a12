//! What is kept of a cgroup from one pass to the next, beside open files.

use std::{collections::BTreeMap, time::Instant};

use podwarden_abi::Account;

use crate::accounting::{index::PodEntry, walked::Places};

/// Of one cgroup.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Where the kernel's pass has its records.
    pub(super) places: Places,
    /// When it was read last, and its CPU time then, nanoseconds.
    pub(super) used: Option<(Instant, u64)>,
    /// See [`super::forks`].
    pub(super) refused_forks: Option<u64>,
}

/// Of a pod.
#[derive(Debug, Default)]
pub(super) struct KeptPod {
    pub(super) own: Kept,
    /// What it had used in all.
    pub(super) total: Option<Account>,
    /// By container id.
    containers: BTreeMap<String, Kept>,
}

impl KeptPod {
    /// Of one of its containers.
    pub(super) fn container(&mut self, id: &str) -> Kept {
        let kept = self.containers.get_mut(id);
        kept.map(std::mem::take).unwrap_or_default()
    }

    /// Puts back what [`KeptPod::container`] gave.
    pub(super) fn put_back(&mut self, id: &str, kept: Kept) {
        match self.containers.get_mut(id) {
            Some(place) => *place = kept,
            None => drop(self.containers.insert(id.to_owned(), kept)),
        }
    }

    /// Forgets containers that are gone.
    pub(super) fn retain(&mut self, entry: &PodEntry) {
        let is_live = |id: &str| entry.containers.get(id).is_some_and(|one| one.live);
        self.containers.retain(|id, _| is_live(id));
    }
}
