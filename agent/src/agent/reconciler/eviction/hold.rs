//! Evicted pods -> what holds them dead.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use podwarden_policy::PodUid;

use super::EvictionManager;
use crate::{api::types::Eviction, base::clock::monotonic, pods::PodSet, reactor::report::Report};

/// An evicted pod that is to be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ToHold {
    /// When it was killed, `CLOCK_MONOTONIC` nanoseconds.
    pub(super) killed: u64,
    /// Its status was written by an agent before this one.
    pub(super) is_written: bool,
    /// Its status was queued a while before: it had time to end.
    had_time: bool,
}

impl ToHold {
    /// One that was killed just now.
    pub(super) const fn killed(at: u64) -> Self {
        Self {
            killed: at,
            is_written: false,
            had_time: false,
        }
    }

    /// One that had time to end.
    pub(super) const fn ended(at: u64) -> Self {
        Self {
            had_time: true,
            ..Self::killed(at)
        }
    }

    /// How a pod is held at `at`; `None` where it is not.
    ///
    /// A static pod has no status that would end it: its kubelet starts it again as long as its manifest is there. It
    /// is held as long as the pressure counts that it was evicted for, `calm`.
    fn bound(self, is_static: bool, calm: Duration, at: u64) -> Option<Bound> {
        if !is_static {
            return (!self.is_written).then_some(Bound::ByStatus);
        }
        let since = Duration::from_nanos(at.saturating_sub(self.killed));
        let left = calm.saturating_sub(since);
        (!left.is_zero()).then_some(Bound::For(left))
    }
}

/// Until when a pod is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    /// Until its kubelet follows the status.
    ByStatus,
    /// For so long.
    For(Duration),
}

impl EvictionManager {
    /// A pod that was killed is to be held dead. True for one that had time to end: its eviction was reported before.
    pub(super) fn note_kill(&mut self, report: &Report) -> bool {
        let Report::Chosen(chosen) = report else {
            return false;
        };
        let killed = chosen.outcome.filter(|outcome| outcome.grace_seconds == 0);
        let (Some(outcome), Some(uid)) = (killed, self.tokens.uid(chosen.token)) else {
            return false;
        };
        let had_time = self.graceful.cut_short(uid, Instant::now());
        if had_time {
            tracing::info!(
                %uid,
                scope = %chosen.crossing.scope,
                "killed before its time to end was over: a hard level was reached"
            );
        }
        let dead = ToHold {
            had_time,
            ..ToHold::killed(outcome.killed)
        };
        self.to_hold.insert(uid.clone(), dead);
        had_time
    }

    /// Takes the evictions of agents before this one, as far as their pods are still dead.
    pub(super) fn recall_dead(&mut self, recorded: &[(String, Eviction)]) {
        let Some(status) = &self.status else { return };
        for (_, eviction) in recorded {
            let uid = &eviction.pod.uid;
            if !self.evictions.evicted.contains(uid) || self.graceful.recall(eviction) {
                continue;
            }
            let killed = eviction.timeline.killed_nanos.unwrap_or_default();
            let to_hold = ToHold {
                is_written: !status.is_unwritten(uid),
                ..ToHold::killed(killed)
            };
            // Of several evictions of a pod the last one counts.
            self.to_hold.insert(uid.clone(), to_hold);
        }
    }

    /// Takes note of the pods that are held no longer. One that still has its time to end stays evicted: it is killed when
    /// that is over.
    pub(super) fn take_let_go(&mut self) {
        let Some(status) = &mut self.status else {
            return;
        };
        let mut released = status.let_go();
        released.retain(|uid| !self.graceful.is_ending(uid));
        let_go(&released, &mut self.evictions.evicted, &mut self.to_hold);
    }

    /// Holds evicted pods whose files are open.
    pub(super) fn hold_dead(&mut self, set: &PodSet) {
        let Some(status) = self.status.as_mut().filter(|_| !self.to_hold.is_empty()) else {
            self.to_hold.clear();
            return;
        };
        let armed = self.reactor.armed();
        let is_static = |uid: &PodUid| {
            let found = set.pods.iter().find(|known| known.pod.uid == *uid);
            found.is_some_and(|known| known.pod.static_pod)
        };
        let calm = self.pressed.calm;
        let evicted = &mut self.evictions.evicted;
        self.to_hold.retain(|uid, to_hold| {
            let Some(victim) = armed.victim(uid.as_str()) else {
                return true;
            };
            let is_static = is_static(uid);
            if let Some(bound) = to_hold.bound(is_static, calm, monotonic()) {
                let until = match bound {
                    Bound::ByStatus => None,
                    Bound::For(left) => Some(Instant::now() + left),
                };
                status.hold(uid.as_str(), Arc::clone(&victim.files), until);
                if to_hold.had_time {
                    status.follow_late(uid.as_str());
                }
            } else if is_static {
                // Its time was over before this agent began.
                evicted.remove(uid);
            }
            false
        });
    }
}

/// Pods that may run again are evicted no longer: what runs in them may be a victim.
fn let_go(
    released: &[PodUid],
    evicted: &mut BTreeSet<PodUid>,
    to_hold: &mut BTreeMap<PodUid, ToHold>,
) {
    for uid in released {
        to_hold.remove(uid);
        if evicted.remove(uid) {
            tracing::info!(%uid, "the pod counts as evicted no longer");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_may_run_again_is_evicted_no_longer() {
        let uids = ["a", "b"].map(PodUid::from);
        let mut evicted = BTreeSet::from(uids.clone());
        let mut to_hold = BTreeMap::from(uids.map(|uid| (uid, ToHold::killed(1))));
        let_go(&["a", "gone"].map(PodUid::from), &mut evicted, &mut to_hold);
        assert_eq!(evicted, BTreeSet::from(["b".into()]));
        assert_eq!(to_hold.keys().collect::<Vec<_>>(), [&PodUid::from("b")]);
    }

    #[test]
    fn a_pod_is_held_until_its_status_counts_and_a_static_one_for_a_time() {
        const SECOND: u64 = 1_000_000_000;
        let calm = Duration::from_secs(300);
        let killed = ToHold::killed(5 * SECOND);
        let written = ToHold {
            is_written: true,
            ..killed
        };
        let at = 105 * SECOND;
        assert_eq!(killed.bound(false, calm, at), Some(Bound::ByStatus));
        assert_eq!(written.bound(false, calm, at), None);
        let left = Bound::For(Duration::from_secs(200));
        // What is written to its mirror is not heeded, and an agent that was restarted holds it for what is left.
        assert_eq!(killed.bound(true, calm, at), Some(left));
        assert_eq!(written.bound(true, calm, at), Some(left));
        assert_eq!(written.bound(true, calm, 305 * SECOND), None);
    }
}
