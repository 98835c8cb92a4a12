//! Accounts that nobody would give back.
//!
//! A cgroup whose creation record was lost, and that was gone again before the tree was looked at, is
//! in the kernel's table and in no book. Such a suspect that is still in no book a while later, when
//! every record of its time has been read, is one.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use podwarden_abi::{NO_SLOT, Tracked};

/// Longer than a record can wait to be read, and longer than the last task of a removed cgroup runs.
const CERTAIN_AFTER: Duration = Duration::from_secs(3);

/// Suspects until it is certain.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    suspects: BTreeSet<u64>,
    due: Option<Instant>,
}

impl Orphans {
    /// What of the kernel's table is in no book, right after the tree was looked at.
    pub(super) fn suspect(&mut self, ids: BTreeSet<u64>, now: Instant) {
        self.due = (!ids.is_empty()).then(|| now + CERTAIN_AFTER);
        self.suspects = ids;
    }

    /// When [`Orphans::take_due`] has something to say.
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

/// The orphans among `suspects`, each with the account that it had to itself. `known` tells what is in
/// the books by now, `used` which accounts something in the books counts to.
pub(super) fn orphans(
    suspects: &BTreeSet<u64>,
    table: &[(u64, Tracked)],
    known: impl Fn(u64) -> bool,
    used: impl Fn(u32) -> bool,
) -> Vec<(u64, Option<u32>)> {
    let mut freed = BTreeSet::from([NO_SLOT]);
    let orphans = table
        .iter()
        .filter(|(id, _)| suspects.contains(id) && !known(*id));
    orphans
        .map(|(id, Tracked { slot, .. })| {
            (*id, (!used(*slot) && freed.insert(*slot)).then_some(*slot))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracked(slot: u32) -> Tracked {
        Tracked { slot, depth: 3 }
    }

    #[test]
    fn an_account_is_given_back_once_and_never_while_it_is_used() {
        // 10 and its nested 11 share an account, 12 counts to its parent's, which lives; 13 has none.
        let table = [
            (10, tracked(5)),
            (11, tracked(5)),
            (12, tracked(6)),
            (13, tracked(NO_SLOT)),
            (14, tracked(7)),
            (15, tracked(8)),
        ];
        let suspects = BTreeSet::from([10, 11, 12, 13, 14]);
        let found = orphans(&suspects, &table, |id| id == 14, |slot| slot == 6);
        assert_eq!(
            found,
            [(10, Some(5)), (11, None), (12, None), (13, None)],
            "14 is in the books by now, 15 was never suspected"
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
