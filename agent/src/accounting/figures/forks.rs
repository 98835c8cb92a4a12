//! Forks that were refused, by cgroup.

use podwarden_cgroup::{CgroupPath, Tree};

use super::{kept::Kept, seldom::Seldom};
use crate::{accounting::walked::Walked, api::types::ContainerStats};

/// Where the kernel's pass has none the files are read, each 5 s.
#[derive(Debug, Default)]
pub(super) struct RefusedForks(pub(super) Seldom<5>);

impl RefusedForks {
    /// Of one cgroup, from `kept` where the kernel's pass has none and the file is not read now; `None` where it is not known.
    pub(super) fn of(
        &self,
        walked: &mut Walked,
        tree: &Tree,
        path: &CgroupPath,
        kept: &mut Kept,
    ) -> Option<u64> {
        if let Some(forks) = walked.refused_forks(tree, path, &mut kept.places) {
            return Some(forks);
        }
        if self.0.is_due() && !path.is_root() {
            kept.refused_forks = tree.refused_forks(path).ok();
        }
        kept.refused_forks
    }

    /// Of a pod: its own cgroup counts what is below it, or its containers count for themselves.
    pub(super) fn of_pod(
        &self,
        walked: &mut Walked,
        tree: &Tree,
        path: &CgroupPath,
        containers: &[ContainerStats],
        kept: &mut Kept,
    ) -> Option<u64> {
        let below = containers.iter().filter_map(|one| one.refused_forks);
        let below = below.reduce(|a, b| a + b);
        self.of(walked, tree, path, kept).max(below)
    }
}
