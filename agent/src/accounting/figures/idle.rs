//! What a pass without a reader spares: a pod none of whose tasks ran keeps the figures that it had.

use std::collections::{HashMap, HashSet};

use podwarden_abi::Account;
use podwarden_policy::PodUid;

use crate::{
    accounting::index::{AccountReader, CgroupIndex},
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

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct IdlePods {
    /// See [`CgroupIndex::activity`].
    activity: HashMap<PodUid, u64>,
    ran: HashSet<PodUid>,
}

impl IdlePods {
    /// Notes which pods ran since the last look; returns whether any did, came or went.
    pub(super) fn look(&mut self, index: &CgroupIndex, figures: &impl AccountReader) -> bool {
        self.ran.clear();
        let before = self.activity.len();
        self.activity
            .retain(|uid, _| index.pods().contains_key(uid));
        let mut changed = self.activity.len() < before;
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
        changed
    }

    /// The pods that ran between the last two looks.
    pub(super) fn ran(&self) -> &HashSet<PodUid> {
        &self.ran
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
