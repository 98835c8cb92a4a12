//! Forks that were refused, by cgroup. The kernel has them in a file of each cgroup alone, so that they are read less often
//! than the rest, and no file is kept open.

use std::time::{Duration, Instant};

use podwarden_cgroup::{CgroupPath, Tree};

use super::kept::Kept;
use crate::api::types::ContainerStats;

/// Time between two readings.
const INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct RefusedForks {
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

    /// Of one cgroup, from `kept` unless it is read now; `None` where it is not known.
    pub(super) fn of(&self, tree: &Tree, path: &CgroupPath, kept: &mut Kept) -> Option<u64> {
        if self.is_due && !path.is_root() {
            kept.refused_forks = tree.refused_forks(path).ok();
        }
        kept.refused_forks
    }

    /// Of a pod: its own cgroup counts what is below it, or its containers count for themselves.
    pub(super) fn of_pod(
        &self,
        tree: &Tree,
        path: &CgroupPath,
        containers: &[ContainerStats],
        kept: &mut Kept,
    ) -> Option<u64> {
        let below = containers.iter().filter_map(|one| one.refused_forks);
        let below = below.reduce(|a, b| a + b);
        self.of(tree, path, kept).max(below)
    }
}
