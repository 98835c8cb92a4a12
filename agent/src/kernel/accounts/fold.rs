//! Adds the figures of a cgroup that is gone to the record of its fold target.
//!
//! The maps may outlive the agent, and the agent may die between any two operations on them. Each operation is atomic,
//! and a fold does them in this order:
//!
//! 1. write the target's record: the old sum plus the figures, and the id of the folded cgroup, in one write;
//! 2. erase the cgroup's own record, which holds what others left to it;
//! 3. take the cgroup out of the table of cgroups in scope;
//! 4. clear its account, 5. and free it.
//!
//! Before 1 nothing has happened. After 1 and before 3 the cgroup is in the table and some record names it as its last:
//! [`settle`] finishes the fold and adds nothing. From 3 on only its account is left: the next agent finds that no
//! cgroup uses it, and clears it. One cgroup is folded at a time, so no record forgets a name too early.

use std::collections::{HashMap, HashSet};

use podwarden_abi::{Account, NO_SLOT, Tracked};

/// A record of what is gone, by the id of a cgroup that is there or by [`super::FoldTarget::key`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// What was added up.
    pub(crate) sum: Account,
    /// The cgroup whose figures were added last; 0 before the first.
    pub(crate) last: u64,
    /// A pod's: [`super::PodKey::uid_hash`].
    pub(crate) uid_hash: u64,
    /// A pod's class, by its number in `key`; 0 for what is no pod's.
    pub(crate) class: u32,
    /// Unused.
    pub(crate) pad: u32,
}
const _: () = assert!(size_of::<Record>() == size_of::<Account>() + 24);

/// The operations; each whole or not done.
pub(crate) trait Maps {
    /// The figures of an account, all CPUs added up.
    fn figures(&self, slot: u32) -> Option<Account>;
    fn write(&mut self, key: u64, record: &Record);
    /// Erases a record.
    fn erase(&mut self, key: u64);
    /// Takes a cgroup out of the table.
    fn untrack(&mut self, id: u64);
    /// Sets the figures of an account to zero on every CPU.
    fn clear(&mut self, slot: u32);
    /// Gives an account back.
    fn free(&mut self, slot: u32);
}

/// The records, as they are written.
pub(crate) type Records = HashMap<u64, Record>;

/// Folds what `id` and those before it counted into `target`; `own` is its account where it had one to itself.
/// No task may be in it any more.
pub(crate) fn fold(
    records: &mut Records,
    maps: &mut impl Maps,
    id: u64,
    own: Option<u32>,
    target: u64,
) {
    let before = records.get(&id).map(|record| record.sum);
    let mut left = before.unwrap_or_default();
    if let Some(figures) = own.and_then(|slot| maps.figures(slot)) {
        left.accumulate(&figures);
    }
    if left != Account::default() {
        let record = records.entry(target).or_default();
        record.sum.accumulate(&left);
        record.last = id;
        maps.write(target, record);
    }
    if records.remove(&id).is_some() {
        maps.erase(id);
    }
    maps.untrack(id);
    if let Some(slot) = own {
        maps.clear(slot);
        maps.free(slot);
    }
}

/// What an agent left behind, made consistent.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    /// Every cgroup that the table or a record names, parents first; some are gone.
    pub(crate) inherited: Vec<(u64, Tracked)>,
    /// Accounts that these have to themselves.
    pub(crate) used: HashSet<u32>,
    /// Entries that could not be right: they are taken out.
    pub(crate) wrong: usize,
}

/// Finishes what the last agent was doing when it ended. `accounts` is how many there are.
pub(crate) fn settle(
    records: &mut Records,
    maps: &mut impl Maps,
    mut table: Vec<(u64, Tracked)>,
    accounts: u32,
) -> Settled {
    let folded: HashSet<u64> = records.values().map(|record| record.last).collect();
    let mut settled = Settled::default();
    table.sort_unstable_by_key(|(id, tracked)| (tracked.depth, *id));
    for (id, tracked) in table {
        if folded.contains(&id) {
            if records.remove(&id).is_some() {
                maps.erase(id);
            }
            maps.untrack(id);
            continue;
        }
        // Of two cgroups with one account each would report the figures of both.
        if let Some(slot) = tracked.own_slot()
            && (slot == NO_SLOT || slot >= accounts || !settled.used.insert(slot))
        {
            settled.wrong += 1;
            maps.untrack(id);
            continue;
        }
        settled.inherited.push((id, tracked));
    }
    let known: HashSet<u64> = settled.inherited.iter().map(|(id, _)| *id).collect();
    // Of a cgroup for which the table had no room.
    let mut strays: Vec<u64> = records
        .keys()
        .filter(|key| !is_constant(**key) && !known.contains(key))
        .copied()
        .collect();
    strays.sort_unstable();
    settled
        .inherited
        .extend(strays.into_iter().map(|id| (id, Tracked::default())));
    settled
}

/// Keys of what belongs to no cgroup that is there; no cgroup has such an id: they count up from 1 (kernel
/// fs/kernfs/dir.c).
const CONSTANTS: u64 = u64::MAX - 8;

/// Whether a key is one of the constants.
pub(crate) fn is_constant(key: u64) -> bool {
    key > CONSTANTS
}

/// The key of a class by its number; of number 0 that of what belongs to no pod.
pub(crate) fn constant(number: u32) -> u64 {
    u64::MAX - u64::from(number)
}

#[cfg(test)]
pub(crate) mod tables;
#[cfg(test)]
mod tests;
