//! Limits on the reactor's kills: their rate, and pods whose kill failed.
//! Without IO or clock; allocates at construction only.

use std::collections::VecDeque;

const MINUTE_NS: u64 = 60_000_000_000;

/// At most so many evictions in any minute. Times are `CLOCK_MONOTONIC` nanoseconds.
#[derive(Debug)]
pub(super) struct Pace {
    /// The last evictions, as many as are allowed in a minute.
    times: VecDeque<u64>,
    per_minute: usize,
}

impl Pace {
    pub(super) fn new(per_minute: u32) -> Self {
        let per_minute = usize::try_from(per_minute).unwrap_or(usize::MAX);
        Self {
            times: VecDeque::with_capacity(per_minute),
            per_minute,
        }
    }

    /// Whether one more is allowed at `now`.
    pub(super) fn allows(&self, now: u64) -> bool {
        self.times.len() < self.per_minute
            || self
                .times
                .front()
                .is_some_and(|oldest| now.saturating_sub(*oldest) >= MINUTE_NS)
    }

    /// One was done at `now`.
    pub(super) fn note(&mut self, now: u64) {
        if self.times.len() == self.per_minute {
            self.times.pop_front();
        }
        self.times.push_back(now);
    }
}

/// Pods left out for this long after a try in vain, nanoseconds: by then there is another process in
/// them, or rights were granted.
const PASSED_OVER_NS: u64 = MINUTE_NS;

/// Pods that can be passed over at a time; beyond that the oldest is tried again.
const MOST: usize = 64;

/// Pods that could not be killed, or that did not give their memory back.
#[derive(Debug)]
pub(super) struct PassedOver {
    /// Token and until when; 0 is no token.
    entries: [(u64, u64); MOST],
    next: usize,
}

impl Default for PassedOver {
    fn default() -> Self {
        Self {
            entries: [(0, 0); MOST],
            next: 0,
        }
    }
}

impl PassedOver {
    /// Leaves a pod out from `now` on, for a while.
    pub(super) fn add(&mut self, token: u64, now: u64) {
        self.entries[self.next] = (token, now.saturating_add(PASSED_OVER_NS));
        self.next = (self.next + 1) % MOST;
    }

    /// Whether it is left out at `now`.
    pub(super) fn contains(&self, token: u64, now: u64) -> bool {
        self.entries
            .iter()
            .any(|(entry, until)| *entry == token && now < *until)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_minute_has_more_than_allowed(
            per_minute in 1_u32..20,
            steps in prop::collection::vec(0_u64..10_000_000_000, 1..300),
        ) {
            let mut pace = Pace::new(per_minute);
            let (mut now, mut done) = (0, Vec::<u64>::new());
            for step in steps {
                now += step;
                let recent = done.iter().filter(|at| now - **at < MINUTE_NS).count();
                prop_assert_eq!(pace.allows(now), recent < per_minute as usize);
                if pace.allows(now) {
                    pace.note(now);
                    done.push(now);
                }
            }
        }
    }

    #[test]
    fn passed_over_for_a_while() {
        let mut passed = PassedOver::default();
        assert!(!passed.contains(7, 10));
        passed.add(7, 10);
        assert!(passed.contains(7, 10) && !passed.contains(8, 10));
        assert!(!passed.contains(7, 10 + PASSED_OVER_NS));
        for token in 100..100 + MOST as u64 {
            passed.add(token, 10);
        }
        assert!(!passed.contains(7, 11), "the oldest makes room");
        assert!(passed.contains(100, 11));
    }
}
