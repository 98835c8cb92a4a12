//! The limit on the rate of the reactor's kills. Without IO or clock; allocates at construction only.

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
}
