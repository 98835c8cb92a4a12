//! Orphans: cgroups that no record named, whose accounts would never become free.
//!
//! A cgroup whose creation record was lost, and that was gone before the agent walked the tree, is in the kernel's
//! table and not in the index. Such a suspect is an orphan if the index still lacks it when every record of its time
//! has been read.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use podwarden_abi::Tracked;

/// Longer than a record can wait to be read, and longer than the last task of a removed cgroup runs.
const CERTAIN_AFTER: Duration = Duration::from_secs(3);

/// Suspects that may become orphans.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    suspects: BTreeSet<u64>,
    due: Option<Instant>,
}

impl Orphans {
    /// Notes the ids of the kernel's table that the index lacks right after a walk of the tree.
    pub(super) fn suspect(&mut self, ids: BTreeSet<u64>, now: Instant) {
        self.due = (!ids.is_empty()).then(|| now + CERTAIN_AFTER);
        self.suspects = ids;
    }

    /// When [`Orphans::take_due`] has suspects to return.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The suspects, once it is time.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<BTreeSet<u64>> {
        self.due.filter(|due| *due <= now)?;
        self.due = None;
        Some(std::mem::take(&mut self.suspects))
    }
}

/// The orphans among `suspects`, parents first. `known` is true for ids in the index.
pub(super) fn orphans(
    suspects: &BTreeSet<u64>,
    mut table: Vec<(u64, Tracked)>,
    known: impl Fn(u64) -> bool,
) -> Vec<(u64, Tracked)> {
    table.retain(|(id, _)| suspects.contains(id) && !known(*id));
    table.sort_unstable_by_key(|(id, tracked)| (tracked.depth, *id));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orphans_are_suspects_that_the_index_still_lacks() {
        let at = |id, depth| {
            let tracked = Tracked {
                slot: 5,
                depth,
                ..Tracked::default()
            };
            (id, tracked)
        };
        let table = vec![at(10, 4), at(14, 3), at(13, 3), at(15, 3)];
        let suspects = BTreeSet::from([10, 11, 13, 14]);
        let found = orphans(&suspects, table, |id| id == 14);
        assert_eq!(
            found,
            [at(13, 3), at(10, 4)],
            "14 is in the index, 15 was never suspected, 11 left the table"
        );
    }

    #[test]
    fn suspects_are_taken_when_it_is_certain_and_once() {
        let (mut orphans, now) = (Orphans::default(), Instant::now());
        orphans.suspect(BTreeSet::new(), now);
        assert_eq!(orphans.due(), None);
        orphans.suspect(BTreeSet::from([1]), now);
        assert_eq!(orphans.take_due(now), None);
        let later = now + CERTAIN_AFTER;
        assert_eq!(orphans.take_due(later), Some(BTreeSet::from([1])));
        assert_eq!(orphans.take_due(later), None);
    }
}
