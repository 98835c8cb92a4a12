//! The tasks of a cgroup, and its forks that were refused: from the kernel's pass, from its files where there is none.

use podwarden_cgroup::{CgroupPath, Tree};

use super::{kept::Kept, seldom::Seldom};
use crate::{accounting::walked::Walked, api::types::ContainerStats};

/// The files are read each 5 s. What is not known is `None`.
#[derive(Debug, Default)]
pub(super) struct Pids(pub(super) Seldom<5>);

impl Pids {
    /// Of one cgroup and all below it.
    pub(super) fn tasks(
        &self,
        walked: &mut Walked,
        tree: &Tree,
        path: &CgroupPath,
        kept: &mut Kept,
    ) -> Option<u64> {
        let found = walked.tasks(tree, path, &mut kept.places);
        let is_due = self.0.is_due() || kept.tasks.is_none();
        found.or_else(|| from_file(is_due, path, &mut kept.tasks, || tree.tasks(path).ok()))
    }

    /// Of one cgroup.
    pub(super) fn refused_forks(
        &self,
        walked: &mut Walked,
        tree: &Tree,
        path: &CgroupPath,
        kept: &mut Kept,
    ) -> Option<u64> {
        let (is_due, kept_forks) = (self.0.is_due(), &mut kept.refused_forks);
        match walked.refused_forks(tree, path, &mut kept.places) {
            Some(found) => *kept_forks = Some(found),
            None => {
                from_file(is_due, path, kept_forks, || tree.refused_forks(path).ok());
            }
        }
        *kept_forks
    }

    /// Of a pod: its own cgroup counts what is below it, or its containers count for themselves, of which those that
    /// are gone had counted `gone`.
    pub(super) fn refused_forks_of_pod(
        &self,
        walked: &mut Walked,
        tree: &Tree,
        path: &CgroupPath,
        containers: &[ContainerStats],
        gone: Option<u64>,
        kept: &mut Kept,
    ) -> Option<u64> {
        let below = containers.iter().filter_map(|one| one.refused_forks);
        let below = below.chain(gone).reduce(|a, b| a + b);
        self.refused_forks(walked, tree, path, kept).max(below)
    }
}

/// What the file says where it is due, else what is kept of it; a hierarchy's root has no such file.
fn from_file(
    is_due: bool,
    path: &CgroupPath,
    kept: &mut Option<u64>,
    file: impl FnOnce() -> Option<u64>,
) -> Option<u64> {
    if is_due && !path.is_root() {
        *kept = file();
    }
    *kept
}
