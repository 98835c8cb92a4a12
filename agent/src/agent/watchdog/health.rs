//! A loop's health, from a number that it counts up; the clock is an argument.
//!
//! The reactor has real-time priority and no lock, so only the kernel can hold it up:
//! a stopped or frozen thread, a CPU that never returns, a cgroup lock that is never let
//! go. The node must not go on trusting an agent that evicts nothing.

use std::time::{Duration, Instant};

/// Between two looks.
pub(super) const LOOK: Duration = Duration::from_secs(2);

/// A reactor that was woken and has not gone round for this long is stuck.
pub(super) const REACTOR_PATIENCE: Duration = Duration::from_secs(5);

/// A look that comes so late blames no loop.
const LATE: Duration = Duration::from_secs(5);

pub(super) const ENDED: &str =
    "the reactor has ended: nothing is evicted any more; the agent ends, to be started anew";
pub(super) const STUCK: &str = "the reactor is stuck: nothing is evicted until it goes on; see what its \
     thread waits for (/proc/PID/task/*/wchan), and restart the agent";

/// What a look found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    None,
    /// Its thread has ended.
    Ended,
    /// It has not gone round for so long.
    Stuck(Duration),
    /// It goes round again.
    Recovered,
}

#[derive(Debug)]
pub(super) struct Health {
    beat: u64,
    /// When the beat was first seen.
    since: Instant,
    looked: Instant,
    /// A beat that stands for this long is stuck.
    patience: Duration,
    stuck: bool,
    ended: bool,
}

impl Health {
    pub(super) fn new(now: Instant, patience: Duration) -> Self {
        Self {
            beat: 0,
            since: now,
            looked: now,
            patience,
            stuck: false,
            ended: false,
        }
    }

    /// What is wrong at the moment.
    pub(super) fn trouble(&self, stuck: &'static str) -> Option<&'static str> {
        let ended = self.ended.then_some(ENDED);
        ended.or(self.stuck.then_some(stuck))
    }

    /// The loop waits for work.
    pub(super) fn rests(&mut self, now: Instant) -> News {
        (self.looked, self.since) = (now, now);
        match std::mem::take(&mut self.stuck) {
            true => News::Recovered,
            false => News::None,
        }
    }

    /// Takes a loop's beat, `None` once its thread has ended. The reactor is woken between two looks,
    /// so that the next beat differs.
    pub(super) fn look(&mut self, beat: Option<u64>, now: Instant) -> News {
        // A look that comes this late was held up itself, and the loops were held up with it.
        let late = now.saturating_duration_since(self.looked) >= LATE;
        self.looked = now;
        let Some(beat) = beat else {
            let before = std::mem::replace(&mut self.ended, true);
            return if before { News::None } else { News::Ended };
        };
        if beat != self.beat || late {
            self.since = now;
        }
        if beat != self.beat {
            self.beat = beat;
            if std::mem::take(&mut self.stuck) {
                return News::Recovered;
            }
        }
        let stood = now.saturating_duration_since(self.since);
        if !self.stuck && stood >= self.patience {
            self.stuck = true;
            return News::Stuck(stood);
        }
        News::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_beat_that_stands_still_is_said_once_and_so_is_its_return() {
        let start = Instant::now();
        let mut health = Health::new(start, REACTOR_PATIENCE);
        assert_eq!(health.look(Some(1), start + 2 * SECOND), News::None);
        assert_eq!(health.look(Some(1), start + 4 * SECOND), News::None);
        assert_eq!(health.look(Some(1), start + 6 * SECOND), News::None);
        let stuck = News::Stuck(6 * SECOND);
        assert_eq!(health.look(Some(1), start + 8 * SECOND), stuck);
        assert_eq!(health.look(Some(1), start + 10 * SECOND), News::None);
        assert_eq!(health.look(Some(2), start + 12 * SECOND), News::Recovered);
        assert_eq!(health.look(Some(3), start + 14 * SECOND), News::None);
    }

    #[test]
    fn a_look_that_was_held_up_itself_does_not_blame_the_reactor() {
        let start = Instant::now();
        let mut health = Health::new(start, REACTOR_PATIENCE);
        assert_eq!(health.look(Some(1), start + SECOND), News::None);
        assert_eq!(health.look(Some(1), start + 60 * SECOND), News::None);
        assert_eq!(health.look(Some(1), start + 62 * SECOND), News::None);
        assert_eq!(health.look(Some(2), start + 64 * SECOND), News::None);
    }

    #[test]
    fn a_loop_that_rests_is_not_stuck() {
        let start = Instant::now();
        let mut health = Health::new(start, 3 * SECOND);
        for second in 1..20 {
            assert_eq!(health.rests(start + second * SECOND), News::None);
        }
        assert_eq!(health.look(Some(1), start + 20 * SECOND), News::None);
        assert_eq!(health.look(Some(1), start + 22 * SECOND), News::None);
        let stuck = News::Stuck(4 * SECOND);
        assert_eq!(health.look(Some(1), start + 24 * SECOND), stuck);
        assert_eq!(health.trouble("it stands"), Some("it stands"));
        assert_eq!(health.rests(start + 25 * SECOND), News::Recovered);
        assert_eq!(health.trouble("it stands"), None);
    }
}
