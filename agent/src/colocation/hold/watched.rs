//! The protected pods: which account is whose, and how long each was stopped at its own limit.

use std::collections::{HashMap, HashSet};

use podwarden_cgroup::{ThrottleReader, Tree};

use super::Protected;
use crate::{api::types::PodRef, kernel::waits::Waits};

/// One protected pod.
#[derive(Debug)]
struct Pod {
    protected: Protected,
    /// Those of its cgroups whose file could be opened.
    throttle: Vec<ThrottleReader>,
    /// How long they were throttled in all when it was last looked, nanoseconds.
    throttled: u64,
}

#[derive(Debug, Default)]
pub(super) struct Watched {
    pods: Vec<Pod>,
    by_slot: HashMap<u32, usize>,
}

impl Watched {
    /// Another list of pods.
    pub(super) fn set(
        &mut self,
        tree: &Tree,
        waits: Option<&mut Waits>,
        protected: Vec<Protected>,
    ) {
        let Some(waits) = waits else { return };
        let mut before = std::mem::take(&mut self.pods);
        let slots = |protected: &Protected| protected.slots.clone();
        let gone: HashSet<u32> = before
            .iter()
            .flat_map(|pod| slots(&pod.protected))
            .collect();
        let stays: HashSet<u32> = protected.iter().flat_map(slots).collect();
        for slot in gone.difference(&stays) {
            // No such account is as good.
            let _ = waits.set(*slot, None);
        }
        self.by_slot.clear();
        for protected in protected {
            let same = |pod: &Pod| pod.protected == protected;
            let pod = match before.iter().position(same) {
                Some(at) => before.swap_remove(at),
                None => Pod::open(tree, waits, protected),
            };
            let at = self.pods.len();
            self.by_slot
                .extend(pod.protected.slots.iter().map(|slot| (*slot, at)));
            self.pods.push(pod);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// How long a task of the account waited for others, nanoseconds: a wait of `waited` without the time that the
    /// pod was stopped at its own limit since the last wait. With the pod's number. `None` for no protected pod.
    pub(super) fn waited(&mut self, slot: u32, waited: u64) -> Option<(usize, u64)> {
        let at = *self.by_slot.get(&slot)?;
        let pod = self.pods.get_mut(at)?;
        let throttled = pod.throttled();
        let since = throttled.saturating_sub(pod.throttled);
        pod.throttled = throttled;
        let waited = waited.saturating_sub(since);
        (waited >= crate::base::clock::nanos(pod.protected.objective)).then_some((at, waited))
    }

    pub(super) fn pod(&self, number: usize) -> Option<&PodRef> {
        self.pods.get(number).map(|pod| &pod.protected.pod)
    }
}

impl Pod {
    fn open(tree: &Tree, waits: &mut Waits, protected: Protected) -> Self {
        for slot in &protected.slots {
            if let Err(error) = waits.set(*slot, Some(protected.objective)) {
                tracing::warn!(%error, slot, "waits of a protected pod are not reported");
            }
        }
        let open = |path| ThrottleReader::open(tree, path).ok();
        let mut pod = Self {
            throttle: protected.cgroups.iter().filter_map(open).collect(),
            protected,
            throttled: 0,
        };
        pod.throttled = pod.throttled();
        pod
    }

    fn throttled(&self) -> u64 {
        let read = |reader: &ThrottleReader| reader.read().ok();
        let figures = self.throttle.iter().filter_map(read);
        figures.map(|figures| figures.throttled_nanos).sum()
    }
}
