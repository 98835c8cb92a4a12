//! What a pass without a reader spares: a pod none of whose tasks ran keeps the figures that it had.

use foldhash::{HashMap, HashSet};
use podwarden_abi::Account;
use podwarden_policy::PodUid;

use crate::{
    accounting::index::{AccountReader, CgroupIndex, forget_gone},
    api::types::PodStats,
};

/// What a pass reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Every pod, for a reader.
    Read,
    /// Every pod, without a reader.
    Idle,
    /// The pods whose tasks ran since the last look; without a reader.
    Ran,
}

/// Where most pods ran, a look spares nothing: so many passes read every pod before the next.
const WITHOUT_LOOK: u32 = 8;

#[derive(Debug, Default)]
pub(super) struct IdlePods {
    /// See [`CgroupIndex::activity`].
    activity: HashMap<PodUid, u64>,
    ran: HashSet<PodUid>,
    /// Passes that read every pod before a look is worth it.
    without_look: u32,
}

impl IdlePods {
    /// What the pass reads that is due now; `None` where no pod ran, came or went since the last call.
    pub(super) fn look(
        &mut self,
        index: &CgroupIndex,
        figures: &impl AccountReader,
    ) -> Option<Extent> {
        if let Some(left) = self.without_look.checked_sub(1) {
            self.without_look = left;
            if left == 0 {
                // What the next look compares with.
                self.note(index, figures);
            }
            return Some(Extent::Idle);
        }
        let changed = self.note(index, figures);
        if changed && self.ran.len() * 4 >= index.pods().len() * 3 {
            self.without_look = WITHOUT_LOOK;
            return Some(Extent::Idle);
        }
        changed.then_some(Extent::Ran)
    }

    /// Notes which pods ran since the last call; returns whether any did, came or went.
    fn note(&mut self, index: &CgroupIndex, figures: &impl AccountReader) -> bool {
        self.ran.clear();
        let mut changed = false;
        for (uid, entry) in index.pods() {
            let now = index.activity(entry, figures);
            match self.activity.get_mut(uid) {
                Some(last) if *last == now => continue,
                Some(last) => *last = now,
                None => drop(self.activity.insert(uid.clone(), now)),
            }
            self.ran.insert(uid.clone());
            changed = true;
        }
        changed | forget_gone(index.pods(), &mut self.activity)
    }

    /// What a pod that did not run had in the pass before, by `last`; it used no CPU since.
    pub(super) fn unchanged(
        &self,
        extent: Extent,
        uid: &PodUid,
        last: impl FnOnce() -> Option<(PodStats, Account)>,
    ) -> Option<(PodStats, Account)> {
        if extent != Extent::Ran || self.ran.contains(uid) {
            return None;
        }
        let (mut stats, account) = last()?;
        let containers = stats.containers.iter_mut().map(|one| &mut one.cpu);
        for cpu in containers.chain([&mut stats.cpu]) {
            cpu.usage_nano_cores = cpu.usage_nano_cores.map(|_| 0);
        }
        Some((stats, account))
    }
}

#[cfg(test)]
mod tests;
