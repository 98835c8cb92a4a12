//! Cgroups that the kernel's table names and no record told of: they went while no agent ran, or with their
//! records. What they counted is not lost.

use std::time::Instant;

use super::{Accounting, orphans};

impl Accounting {
    /// What an agent before this one knew and the tree has no more. Cgroups do not move, and no id is used
    /// twice: who is not found is gone.
    pub(super) fn inherit(&mut self) {
        let Some(kernel) = &mut self.kernel else {
            return;
        };
        let inherited = kernel.accounts.take_inherited().into_iter();
        let inherited = inherited.map(|(id, tracked)| (id, tracked, kernel.accounts.pod_of(id)));
        self.index.inherit(inherited, Instant::now());
    }

    /// Enters what was lost with its records, as gone: it counts to whom it counted to.
    pub(super) fn bury_orphans(&mut self, now: Instant) {
        let (Some(suspects), Some(kernel)) = (self.orphans.take_due(now), &self.kernel) else {
            return;
        };
        let table = kernel.accounts.table();
        let found = orphans::orphans(&suspects, table, |id| self.index.knows(id));
        let found = found.into_iter().map(|(id, tracked)| {
            tracing::debug!(id, ?tracked, "a cgroup that came and went unseen");
            (id, tracked, kernel.accounts.pod_of(id))
        });
        self.index.inherit(found, now);
    }
}
