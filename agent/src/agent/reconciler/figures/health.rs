//! The reactor's health, from a number that it counts up; the clock is an argument.
//!
//! The reactor has real-time priority and no lock, so only the kernel can hold it up:
//! a stopped or frozen thread, a CPU that never returns, a cgroup lock that is never let
//! go. The node must not go on trusting an agent that evicts nothing.

use std::time::{Duration, Instant};

/// Between two looks.
const LOOK: Duration = Duration::from_secs(2);

/// A reactor that was woken and has not gone round for this long is stuck.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) const ENDED: &str =
    "the reactor has ended: nothing is evicted any more; restart the agent";
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
    stuck: bool,
    ended: bool,
}

impl Health {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            beat: 0,
            since: now,
            looked: now,
            stuck: false,
            ended: false,
        }
    }

    /// How long until the next look.
    pub(super) fn due(&self, now: Instant) -> Duration {
        LOOK.saturating_sub(now.saturating_duration_since(self.looked))
    }

    /// Takes the reactor's beat, `None` once its thread has ended. The reactor is woken between two looks,
    /// so that the next beat differs.
    pub(super) fn look(&mut self, beat: Option<u64>, now: Instant) -> News {
        // A look that comes this late was held up itself, and the reactor was not woken meanwhile.
        let late = now.saturating_duration_since(self.looked) >= PATIENCE;
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
        if !self.stuck && stood >= PATIENCE {
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
        let mut health = Health::new(start);
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
        let mut health = Health::new(start);
        assert_eq!(health.look(Some(1), start + SECOND), News::None);
        assert_eq!(health.look(Some(1), start + 60 * SECOND), News::None);
        assert_eq!(health.look(Some(1), start + 62 * SECOND), News::None);
        assert_eq!(health.look(Some(2), start + 64 * SECOND), News::None);
    }

    #[test]
    fn looks_are_regular() {
        let start = Instant::now();
        let mut health = Health::new(start);
        assert_eq!(health.due(start), LOOK);
        assert_eq!(health.due(start + 10 * SECOND), Duration::ZERO);
        health.look(Some(1), start + 10 * SECOND);
        assert_eq!(health.due(start + 11 * SECOND), SECOND);
    }
}
