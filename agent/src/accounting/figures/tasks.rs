//! The tasks of a cgroup: from the kernel's pass, from its file where there is none.

use std::time::{Duration, Instant};

use podwarden_cgroup::{CgroupPath, Tree};

use super::{kept::Kept, seldom::Seldom};
use crate::accounting::walked::Walked;

/// Time between two readings of the files.
const INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Tasks(Seldom);

impl Default for Tasks {
    fn default() -> Self {
        Self(Seldom::every(INTERVAL))
    }
}

impl Tasks {
    /// A pass begins.
    pub(super) fn begin(&mut self, now: Instant) {
        self.0.begin(now);
    }

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
