//! Cgroups in the kernel's table that no record named: they were removed while no agent ran, or their records were
//! lost. Their figures still count.

use std::time::Instant;

use super::{Accounting, orphans};

impl Accounting {
    /// Enters the cgroups that an agent before this one knew and the tree lacks. Cgroups do not move and no id is
    /// used twice: a cgroup that the walk did not find is gone.
    pub(super) fn inherit(&mut self) {
        let Some(kernel) = &mut self.kernel else {
            return;
        };
        let inherited = kernel.accounts.take_inherited().into_iter();
        let inherited = inherited.map(|(id, tracked)| (id, tracked, kernel.accounts.pod_of(id)));
        self.index.inherit(inherited, Instant::now());
    }

    /// Enters orphans, as gone: their figures count as before.
    pub(super) fn bury_orphans(&mut self, now: Instant) {
        let (Some(suspects), Some(kernel)) = (self.orphans.take_due(now), &self.kernel) else {
            return;
        };
        let table = kernel.accounts.table();
        let found = orphans::orphans(&suspects, table, |id| self.index.contains(id));
        let found = found.into_iter().map(|(id, tracked)| {
            tracing::debug!(id, ?tracked, "a cgroup that came and went unseen");
            (id, tracked, kernel.accounts.pod_of(id))
        });
        self.index.inherit(found, now);
    }
}
