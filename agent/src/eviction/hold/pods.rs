//! The held pods, and when each is looked at. Values only: no clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// Between two looks at a pod in which a container was made, or killed, of late.
const SOON: Duration = Duration::from_millis(5);
/// A runtime takes this long at most between a container's cgroup and its process.
const LATELY: Duration = Duration::from_secs(5);
/// Between two looks otherwise.
const SLOW: Duration = Duration::from_millis(100);
/// A pod whose processes die.
struct Held<K> {
    kill: K,
    /// When to look next.
    look: Instant,
    /// Until then each look is followed by another soon.
    lately: Instant,
    /// `None` until its status is written.
    until: Option<Instant>,
    /// Its status moves that.
    follows_status: bool,
    /// Who was killed before: the dying are found again and again.
    killed: BTreeSet<u32>,
}

/// What a look at a pod did: the processes that it killed, or that the cgroup is gone.
pub(super) enum Looked {
    Killed(BTreeSet<u32>),
    Gone,
}

pub(super) struct Pods<K>(BTreeMap<String, Held<K>>);

impl<K> Default for Pods<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K> Pods<K> {
    pub(super) fn is_held(&self, uid: &str) -> bool {
        self.0.contains_key(uid)
    }

    pub(super) fn hold(&mut self, uid: String, kill: K, until: Option<Instant>, now: Instant) {
        let held = Held {
            kill,
            look: now,
            lately: now + LATELY,
            until,
            follows_status: until.is_none(),
            killed: BTreeSet::new(),
        };
        self.0.insert(uid, held);
    }

    pub(super) fn stir(&mut self, uid: &str, now: Instant) {
        if let Some(held) = self.0.get_mut(uid) {
            (held.look, held.lately) = (now, now + LATELY);
        }
    }

    pub(super) fn until(&mut self, uid: &str, until: Option<Instant>) {
        if let Some(held) = self.0.get_mut(uid).filter(|held| held.follows_status) {
            held.until = until;
        }
    }

    /// Lets a pod go whose status will not be written; false for one that is held until a time.
    pub(super) fn release(&mut self, uid: &str) -> bool {
        let goes = self.0.get(uid).is_none_or(|held| held.follows_status);
        if goes {
            self.0.remove(uid);
        }
        goes
    }

    /// Lets those go whose time is over; gives back those whose status did not bound it: they may run.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<String> {
        let is_over = |held: &Held<K>| held.until.is_some_and(|until| until <= now);
        let over = self.0.extract_if(.., |_, held| is_over(held));
        over.filter(|(_, held)| !held.follows_status)
            .map(|(uid, _)| uid)
            .collect()
    }

    /// When the next look is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.0.values().map(|held| held.look).min()
    }

    /// Looks at those that are due; gives back those in which something new was killed, each with how many.
    pub(super) fn look(
        &mut self,
        now: Instant,
        mut look: impl FnMut(&K) -> Looked,
    ) -> Vec<(String, usize)> {
        let mut again = Vec::new();
        self.0.retain(|uid, held| {
            if held.look > now {
                return true;
            }
            let Looked::Killed(killed) = look(&held.kill) else {
                return false;
            };
            let fresh = killed.difference(&held.killed).count();
            if fresh > 0 {
                held.lately = now + LATELY;
                again.push((uid.clone(), fresh));
            }
            held.killed = killed;
            held.look = now + if now < held.lately { SOON } else { SLOW };
            true
        });
        again
    }
}

#[cfg(test)]
mod tests {
    use super::{super::AFTER, *};

    fn killed(pids: &[u32]) -> Looked {
        Looked::Killed(pids.iter().copied().collect())
    }

    fn holding(now: Instant) -> Pods<()> {
        let mut pods = Pods::default();
        pods.hold("a".to_owned(), (), None, now);
        pods
    }

    #[test]
    fn the_dying_are_found_again_and_what_is_new_is_told_once() {
        let start = Instant::now();
        let mut pods = holding(start);
        assert_eq!(pods.look(start, |()| killed(&[7])), [("a".to_owned(), 1)]);
        assert_eq!(pods.look(start, |()| unreachable!("it is not due")), []);
        assert_eq!(pods.look(start + SOON, |()| killed(&[7])), []);
        let later = start + 2 * SOON;
        assert_eq!(
            pods.look(later, |()| killed(&[7, 8, 9])),
            [("a".to_owned(), 2)]
        );
        assert_eq!(pods.due(), Some(later + SOON));
    }

    #[test]
    fn looks_become_slow_and_a_new_container_calls_for_one_at_once() {
        let start = Instant::now();
        let mut pods = holding(start);
        let late = start + LATELY;
        assert_eq!(pods.look(late, |()| killed(&[])), []);
        assert_eq!(pods.due(), Some(late + SLOW));
        pods.stir("a", late);
        pods.stir("another", late);
        assert_eq!(pods.due(), Some(late));
        assert_eq!(pods.look(late, |()| killed(&[])), []);
        assert_eq!(pods.due(), Some(late + SOON));
    }

    #[test]
    fn a_pod_is_held_for_a_while_after_its_status_and_again_when_that_is_contested() {
        let start = Instant::now();
        let mut pods = holding(start);
        pods.until("a", Some(start + AFTER));
        pods.until("a", None);
        let late = start + 2 * AFTER;
        assert_eq!(pods.look(late, |()| killed(&[3])), [("a".to_owned(), 1)]);
        pods.until("a", Some(late + AFTER));
        assert_eq!(pods.expire(late), Vec::<String>::new());
        // Its kubelet ends it by the status.
        assert_eq!(pods.expire(late + AFTER), Vec::<String>::new());
        assert_eq!(pods.due(), None);
    }

    #[test]
    fn a_pod_with_a_time_is_held_until_then_whatever_becomes_of_its_status() {
        let start = Instant::now();
        let mut pods = holding(start);
        let until = start + 2 * AFTER;
        pods.hold("static".to_owned(), (), Some(until), start);
        for (uid, goes) in [("a", true), ("static", false), ("not held yet", true)] {
            pods.until(uid, Some(start));
            pods.until(uid, None);
            assert_eq!(pods.release(uid), goes, "{uid}");
        }
        assert_eq!(pods.0.keys().collect::<Vec<_>>(), ["static"]);
        let late = until - SLOW;
        assert_eq!(
            pods.look(late, |()| killed(&[3])),
            [("static".to_owned(), 1)]
        );
        assert_eq!(pods.expire(late), Vec::<String>::new());
        assert_eq!(pods.expire(until), ["static"]);
        assert_eq!(pods.due(), None);
    }

    #[test]
    fn a_pod_whose_cgroup_is_gone_is_let_go() {
        let start = Instant::now();
        let mut pods = holding(start);
        assert_eq!(pods.look(start, |()| Looked::Gone), []);
        assert_eq!(pods.due(), None);
    }
}
