//! Eviction statuses just written, for as long as a kubelet may write over them. Values only: no IO, no clock.
//!
//! A kubelet that has not seen one yet writes the status that it has computed itself over it (`syncBatch`
//! with `needsReconcile`, every 10 s, of `pkg/kubelet/status/status_manager.go`; `mergePodStatus` there lets
//! Running follow Failed). Once it has synced the pod with the status it keeps to it. It keeps the phase sooner than
//! the reason: the first status that it computes after the phase became another's has none
//! (`generateAPIPodStatus` of `pkg/kubelet/kubelet_pods.go`). What was written over is written again.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::entry::Entry;

/// A change may be missed where two come at once: then the state at this time counts. Past the kubelet's next
/// turn.
const CHECK: Duration = Duration::from_secs(15);

/// For so long: a kubelet syncs every pod within a minute (`syncFrequency`).
const LONGEST: Duration = Duration::from_secs(90);

/// For so long after it was first written a status is written again. A kubelet that finds the API server after
/// an outage takes up to a minute; who takes it back for longer means it.
const CONTEST: Duration = Duration::from_secs(600);

/// For so long after it was first written the reason alone is written again. A kubelet takes it up as long as it ends
/// the pod; then it insists on what it has.
const REASON: Duration = Duration::from_secs(60);

/// Between two writes of one status.
const PAUSE: Duration = Duration::from_secs(1);

/// The same where the reason alone is written again, doubled with each time up to [`PAUSE`]. A kubelet whose pod's
/// containers are dead already ends it within a second, and takes up no reason after that.
const SOON: Duration = Duration::from_millis(50);

/// What a source says of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Runs,
    /// Failed without a reason.
    Unexplained,
    Ended,
    Gone,
}

#[derive(Debug)]
struct Written {
    entry: Entry,
    /// The pod was seen with it.
    seen: bool,
    check: Option<Instant>,
    until: Instant,
    since: Since,
    /// When it was written for the last time.
    last: Instant,
}

/// The writes of one status.
#[derive(Debug, Clone, Copy)]
struct Since {
    /// The first one.
    first: Instant,
    /// How many came after it.
    again: u32,
}

impl Written {
    /// When it may be written again in this state of the pod.
    fn next(&self, state: State) -> Instant {
        let doubled = SOON.saturating_mul(1 << self.since.again.min(8));
        self.last
            + match state {
                State::Unexplained => doubled.min(PAUSE),
                _ => PAUSE,
            }
    }
}

#[derive(Debug, Default)]
pub(super) struct Recent {
    written: BTreeMap<String, Written>,
    /// The writes of pods' statuses, also while one is to be written again.
    since: BTreeMap<String, Since>,
}

/// A status was written over.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Back {
    /// It is to be written again.
    Again(Box<Entry>),
    /// For too long.
    Enough(Box<Entry>),
}

impl Recent {
    /// A status was written.
    pub(super) fn written(&mut self, entry: Entry, now: Instant) {
        let key = entry.key().to_owned();
        let since = self.since.entry(key.clone());
        let since = since.and_modify(|since| since.again = since.again.saturating_add(1));
        let since = *since.or_insert(Since {
            first: now,
            again: 0,
        });
        let status = Written {
            entry,
            seen: false,
            check: Some(now + CHECK),
            until: now + LONGEST,
            since,
            last: now,
        };
        self.written.insert(key, status);
    }

    /// The source of the states was cut off and works again: its earlier states are old.
    pub(super) fn resumed(&mut self, now: Instant) {
        for status in self.written.values_mut() {
            if !status.seen {
                status.check = Some(now + CHECK);
            }
            status.until = now + LONGEST;
        }
    }

    /// Looks at the pods: those whose statuses were written over.
    pub(super) fn look(&mut self, now: Instant, state: impl Fn(&str) -> State) -> Vec<Back> {
        let mut back = Vec::new();
        let Self { written, since } = self;
        written.retain(|uid, status| {
            let checks = status.check.is_some_and(|check| check <= now);
            if checks {
                status.check = None;
            }
            let state = state(uid);
            // A pod fails without a reason only after its status was written, or by itself just before.
            let is_over = status.seen || checks || state == State::Unexplained;
            let next = status.next(state);
            let keep = match state {
                State::Gone => false,
                State::Ended => {
                    status.seen = true;
                    now < status.until
                }
                State::Unexplained if now >= status.since.first + REASON => now < status.until,
                State::Runs | State::Unexplained if is_over && now < next => {
                    status.check = Some(next);
                    true
                }
                State::Runs | State::Unexplained if is_over => {
                    let entry = Box::new(status.entry.clone());
                    let again = now < status.since.first + CONTEST;
                    back.push(match again {
                        true => Back::Again(entry),
                        false => Back::Enough(entry),
                    });
                    // When it was first written is remembered until it is written again.
                    return false;
                }
                State::Runs | State::Unexplained => now < status.until,
            };
            if !keep {
                since.remove(uid);
            }
            keep
        });
        for enough in &back {
            if let Back::Enough(entry) = enough {
                since.remove(entry.key());
            }
        }
        back
    }

    /// When to look again though nothing has changed.
    pub(super) fn due(&self) -> Option<Instant> {
        let written = self.written.values();
        written
            .map(|status| status.check.unwrap_or(status.until))
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{api::types::Eviction, eviction::status::wording::Sizes};

    fn entry() -> Entry {
        let mut eviction = Eviction::default();
        eviction.pod.uid = "a".into();
        Entry::of_eviction("now", &eviction, None, &Sizes::default())
    }

    fn again() -> Vec<Back> {
        vec![Back::Again(Box::new(entry()))]
    }

    #[test]
    fn a_mark_that_was_seen_and_is_gone_was_taken_back() {
        let (mut recent, now) = (Recent::default(), Instant::now());
        recent.written(entry(), now);
        // A state from before the eviction status.
        assert_eq!(recent.look(now + PAUSE, |_| State::Runs), []);
        assert_eq!(recent.look(now + PAUSE, |_| State::Ended), []);
        assert_eq!(recent.look(now + PAUSE, |_| State::Runs), again());
        assert_eq!(recent.look(now + PAUSE, |_| State::Runs), [], "it was said");
    }

    #[test]
    fn a_mark_is_written_again_for_a_time_and_not_so_many_times() {
        let (mut recent, start) = (Recent::default(), Instant::now());
        for times in 0..200 {
            let now = start + PAUSE * times;
            recent.written(entry(), now);
            assert_eq!(recent.look(now, |_| State::Ended), []);
            assert_eq!(recent.look(now, |_| State::Runs), [], "too soon");
            assert_eq!(recent.due(), Some(now + PAUSE));
            assert_eq!(recent.look(now + PAUSE, |_| State::Runs), again());
        }
        let late = start + CONTEST;
        recent.written(entry(), late - PAUSE);
        assert_eq!(recent.look(late, |_| State::Ended), []);
        let enough = vec![Back::Enough(Box::new(entry()))];
        assert_eq!(recent.look(late, |_| State::Runs), enough);
        assert!(recent.since.is_empty() && recent.written.is_empty());
    }

    #[test]
    fn a_reason_is_written_again_for_a_shorter_time() {
        let (mut recent, start) = (Recent::default(), Instant::now());
        recent.written(entry(), start);
        assert_eq!(recent.look(start, |_| State::Ended), []);
        assert_eq!(recent.look(start, |_| State::Unexplained), [], "too soon");
        assert_eq!(recent.due(), Some(start + SOON));
        assert_eq!(recent.look(start + SOON, |_| State::Unexplained), again());
        let late = start + REASON;
        recent.written(entry(), late - PAUSE);
        assert_eq!(recent.look(late, |_| State::Ended), []);
        assert_eq!(recent.look(late, |_| State::Unexplained), []);
        assert_eq!(
            recent.look(late, |_| State::Runs),
            again(),
            "the phase, too"
        );
    }

    #[test]
    fn a_reason_is_written_again_before_the_kubelet_has_ended_the_pod() {
        let (mut recent, start) = (Recent::default(), Instant::now());
        let mut now = start;
        // It was never seen as it was written: both changes came at once.
        for pause in [50, 100, 200, 400, 800, 1000, 1000] {
            recent.written(entry(), now);
            let next = now + Duration::from_millis(pause);
            let before = next - Duration::from_millis(1);
            assert_eq!(recent.look(before, |_| State::Unexplained), [], "{pause}");
            assert_eq!(recent.due(), Some(next));
            assert_eq!(recent.look(next, |_| State::Unexplained), again());
            now = next;
        }
    }

    #[test]
    fn where_it_was_not_seen_the_state_counts_after_a_while() {
        let (mut recent, now) = (Recent::default(), Instant::now());
        recent.written(entry(), now);
        assert_eq!(recent.due(), Some(now + CHECK));
        assert_eq!(recent.look(now + CHECK / 2, |_| State::Runs), []);
        assert_eq!(recent.look(now + CHECK, |_| State::Runs), again());
        assert_eq!(recent.due(), None);
    }

    #[test]
    fn what_was_told_before_an_outage_does_not_count() {
        let (mut recent, now) = (Recent::default(), Instant::now());
        recent.written(entry(), now);
        let back = now + LONGEST * 2;
        recent.resumed(back);
        assert_eq!(recent.look(back, |_| State::Runs), []);
        assert_eq!(recent.look(back, |_| State::Ended), []);
        recent.resumed(back + CHECK);
        // It was seen: there is no need to wait.
        assert_eq!(recent.look(back + CHECK, |_| State::Runs), again());
    }

    #[test]
    fn a_mark_that_stands_is_forgotten_and_one_of_a_pod_that_is_gone_at_once() {
        let (mut recent, now) = (Recent::default(), Instant::now());
        recent.written(entry(), now);
        assert_eq!(recent.look(now + CHECK, |_| State::Ended), []);
        assert_eq!(recent.due(), Some(now + LONGEST));
        assert_eq!(recent.look(now + LONGEST, |_| State::Ended), []);
        assert_eq!(recent.due(), None);
        recent.written(entry(), now);
        assert_eq!(recent.look(now, |_| State::Gone), []);
        assert!(recent.since.is_empty() && recent.written.is_empty());
    }
}
