//! Killed is not freed: when to stop waiting for a victim's memory. A state machine without IO or
//! clock.
//!
//! Its processes' memory is free when no process is left in it. What stays charged then is page cache, which
//! the sweeper gives back; waiting for that too saves the next pod where it is all that was in the
//! way.

/// A victim's memory counts as freed at this share of what it was, in percent: kernel memory of its
/// cgroup stays charged for longer.
const FREED_PERCENT: u64 = 10;

/// How long to wait for more, nanoseconds, while a process is left in it.
const STALLED_NS: u64 = 5_000_000_000;

/// The same once none is: page cache that takes longer is being written to a disk.
const STALLED_EMPTY_NS: u64 = 250_000_000;

/// What a look says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outlook {
    /// There is more to come.
    Wait,
    /// What could be expected has come.
    Freed,
    /// A process is in it, and none of its memory came back for too long.
    Stuck,
}

/// The wait for one victim. Times are `CLOCK_MONOTONIC` nanoseconds, sizes bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Freeing {
    /// Its usage when it was killed.
    usage: u64,
    /// When that was.
    killed: u64,
    /// The least seen since, and when.
    least: (u64, u64),
}

impl Freeing {
    /// Killed at `at`, using `usage`.
    pub(super) fn new(usage: u64, at: u64) -> Self {
        Self {
            usage,
            killed: at,
            least: (usage, at),
        }
    }

    /// It uses `left` at `at`; no process is left in it when `empty`, nor page cache when `swept`.
    pub(super) fn look(&mut self, at: u64, left: u64, empty: bool, swept: bool) -> Outlook {
        if left < self.least.0 {
            self.least = (left, at);
        }
        let stalled = at.saturating_sub(self.least.1);
        if self.is_enough(left) || swept || (empty && stalled >= STALLED_EMPTY_NS) {
            Outlook::Freed
        } else if stalled >= STALLED_NS {
            Outlook::Stuck
        } else {
            Outlook::Wait
        }
    }

    fn is_enough(&self, left: u64) -> bool {
        left <= self.usage / 100 * FREED_PERCENT
    }

    /// What was freed, bytes, and how long that took, nanoseconds, with `left` at `at`. `None` where the
    /// wait ended for another reason than that: its length says nothing.
    pub(super) fn cost(&self, at: u64, left: u64) -> Option<(u64, u64)> {
        let took = at.saturating_sub(self.killed);
        self.is_enough(left)
            .then(|| (self.usage.saturating_sub(left), took))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_000;

    fn victim() -> Freeing {
        Freeing::new(1_000_000, START)
    }

    #[test]
    fn most_of_it_is_all_of_it() {
        let mut freeing = victim();
        assert_eq!(
            freeing.look(START + 1, 100_001, false, false),
            Outlook::Wait
        );
        assert_eq!(
            freeing.look(START + 2, 100_000, false, false),
            Outlook::Freed
        );
    }

    #[test]
    fn what_it_took_is_known_of_what_was_freed_as_a_whole() {
        let freeing = victim();
        assert_eq!(freeing.cost(START + 50, 100_000), Some((900_000, 50)));
        assert_eq!(freeing.cost(START + 50, 0), Some((1_000_000, 50)));
        assert_eq!(freeing.cost(START + 50, 600_000), None);
    }

    #[test]
    fn page_cache_of_the_dead_is_waited_for_but_not_for_long() {
        let mut freeing = victim();
        assert_eq!(freeing.look(START + 1, 600_000, true, false), Outlook::Wait);
        assert_eq!(freeing.look(START + 2, 600_000, true, true), Outlook::Freed);

        let mut freeing = victim();
        freeing.look(START + 1, 600_000, true, false);
        let late = START + 1 + STALLED_EMPTY_NS;
        assert_eq!(freeing.look(late - 1, 600_000, true, false), Outlook::Wait);
        assert_eq!(freeing.look(late, 600_000, true, false), Outlook::Freed);
    }

    #[test]
    fn the_living_are_stuck_only_when_nothing_moves() {
        let mut freeing = victim();
        let mut at = START;
        for left in [900_000, 800_000, 700_000] {
            at += STALLED_NS - 1;
            assert_eq!(freeing.look(at, left, false, false), Outlook::Wait);
        }
        // Growing again is no progress.
        assert_eq!(freeing.look(at + 1, 750_000, false, false), Outlook::Wait);
        at += STALLED_NS;
        assert_eq!(freeing.look(at, 700_000, false, false), Outlook::Stuck);
    }

    #[test]
    fn a_cgroup_that_is_gone_is_free() {
        assert_eq!(victim().look(START, 0, false, false), Outlook::Freed);
    }
}
