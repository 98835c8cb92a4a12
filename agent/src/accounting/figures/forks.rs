//! Forks that were refused, by cgroup. The kernel has them in a file of each cgroup alone, so that they are read less often
//! than the rest, and no file is kept open.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use podwarden_cgroup::{CgroupPath, Tree};

use crate::api::types::ContainerStats;

/// Time between two readings.
const INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct RefusedForks {
    counts: HashMap<CgroupPath, u64>,
    read: Option<Instant>,
    /// The pass under way reads the files.
    is_due: bool,
}

impl RefusedForks {
    /// A pass begins.
    pub(super) fn begin(&mut self, now: Instant) {
        self.is_due = self.read.is_none_or(|read| now >= read + INTERVAL);
        if self.is_due {
            self.read = Some(now);
        }
    }

    /// Of one cgroup; `None` where it is not known.
    pub(super) fn of(&mut self, tree: &Tree, path: &CgroupPath) -> Option<u64> {
        if self.is_due && !path.is_root() {
            if let Ok(count) = tree.refused_forks(path) {
                self.counts.insert(path.to_owned(), count);
            } else {
                self.counts.remove(path);
            }
        }
        self.counts.get(path).copied()
    }

    /// Of a pod: its own cgroup counts what is below it, or its containers count for themselves.
    pub(super) fn of_pod(
        &mut self,
        tree: &Tree,
        path: &CgroupPath,
        containers: &[ContainerStats],
    ) -> Option<u64> {
        let below = containers.iter().filter_map(|one| one.refused_forks);
        let below = below.reduce(|a, b| a + b);
        self.of(tree, path).max(below)
    }

    /// A cgroup is gone.
    pub(super) fn close(&mut self, path: &CgroupPath) {
        self.counts.remove(path);
    }
}
