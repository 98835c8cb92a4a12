//! When the next pass over the whole tree is due.

use std::time::{Duration, Instant};

/// How often while all is as it should be, as the kubelet does
/// (`periodicTasks` of `pkg/kubelet/cm/container_manager_linux.go`).
const STEADY: Duration = Duration::from_secs(60);

/// How soon again after something could not be done; doubled each time that was no better, up to
/// [`STEADY`]. Passes in between, for pods that have changed, are no tries of their own: while pods come
/// and go the obstacle would be looked at less and less often.
const RETRY: Duration = Duration::from_secs(1);

/// Time is an argument.
#[derive(Debug)]
pub(super) struct Pace {
    last: Instant,
    /// How many passes in a row were incomplete, by the timer but for the first.
    incomplete: u32,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            last: now,
            incomplete: 0,
        }
    }

    /// A pass was made; `incomplete` when something of it was refused or is to be done later.
    pub(super) fn passed(&mut self, now: Instant, incomplete: bool) {
        self.incomplete = match (incomplete, self.incomplete) {
            (false, _) => 0,
            (true, 0) => 1,
            (true, before) if self.due(now).is_zero() => before.saturating_add(1),
            (true, before) => before,
        };
        self.last = now;
    }

    /// What was in the way may be gone: the tries begin anew.
    pub(super) fn begin_anew(&mut self) {
        self.incomplete = 0;
    }

    fn interval(&self) -> Duration {
        match self.incomplete.checked_sub(1) {
            None => STEADY,
            Some(before) => RETRY
                .saturating_mul(2_u32.saturating_pow(before))
                .min(STEADY),
        }
    }

    /// How long until the next; zero when it is time.
    pub(super) fn due(&self, now: Instant) -> Duration {
        self.interval()
            .saturating_sub(now.saturating_duration_since(self.last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_is_tried_again_soon_and_then_less_often() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        assert_eq!(pace.due(now), STEADY);
        let mut intervals = Vec::new();
        for _ in 0..8 {
            pace.passed(now, true);
            intervals.push(pace.due(now).as_secs());
            now += pace.due(now);
        }
        assert_eq!(intervals, [1, 2, 4, 8, 16, 32, 60, 60]);
        pace.passed(now, false);
        assert_eq!(pace.due(now), STEADY);
        pace.passed(now, true);
        assert_eq!(pace.due(now + RETRY), Duration::ZERO);
    }

    #[test]
    fn a_change_has_it_tried_as_soon_as_at_first() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        for n in 0..8 {
            pace.passed(now + STEADY * n, true);
        }
        let now = now + STEADY * 8;
        pace.begin_anew();
        pace.passed(now, true);
        assert_eq!(pace.due(now), RETRY);
    }

    #[test]
    fn passes_in_between_do_not_put_off_the_next_try() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        pace.passed(now, true);
        for _ in 0..10 {
            pace.passed(now + RETRY / 2, true);
        }
        assert_eq!(pace.due(now + RETRY / 2), RETRY);
        pace.passed(now + RETRY * 3 / 2, true);
        assert_eq!(pace.due(now + RETRY * 3 / 2), RETRY * 2);
    }
}
