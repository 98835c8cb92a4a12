//! The tasks of a cgroup: from the kernel's pass, from its file where there is none.

use podwarden_cgroup::{CgroupPath, Tree};

use super::{kept::Kept, seldom::Seldom};
use crate::accounting::walked::Walked;

/// The files are read each 5 s.
#[derive(Debug, Default)]
pub(super) struct Tasks(pub(super) Seldom<5>);

impl Tasks {
    /// Of one cgroup and all below it, from `kept` where the kernel's pass has none and the file is not read now; `None`
    /// where it is not known.
    pub(super) fn of(
        &self,
        walked: &mut Walked,
        tree: &Tree,
        path: &CgroupPath,
        kept: &mut Kept,
    ) -> Option<u64> {
        if let Some(tasks) = walked.tasks(tree, path, &mut kept.places) {
            return Some(tasks);
        }
        if (self.0.is_due() || kept.tasks.is_none()) && !path.is_root() {
            kept.tasks = tree.tasks(path).ok();
        }
        kept.tasks
    }
}
