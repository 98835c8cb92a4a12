//! How long the node is short of memory in one piece, and what that costs. Values only: no IO, no clock.
//!
//! Properties, each with a test:
//!
//! - An period begins with the first level that is reached, and ends with the last sign of pressure once none
//!   came for the calm that is asked for.
//! - Of an period either both its beginning and its end are told, or neither.
//! - No more is told than client-go's recorder would let through ([`Budget`]).

use std::time::{Duration, Instant};

/// So many Events about one object at once, and one more every five minutes (`defaultSpamBurst` and
/// `defaultSpamQPS` of client-go `tools/record/events_cache.go`).
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_secs(300);

/// So many victims are named.
const NAMED: usize = 5;

#[derive(Debug)]
pub(super) struct PressurePeriods {
    calm: Duration,
    open: Option<Open>,
    budget: Budget,
    /// Pressure periods without an Event since the last one with an Event.
    untold: u32,
}

#[derive(Debug)]
struct Open {
    period: PressurePeriod,
    began: Instant,
    /// The last sign of pressure.
    last: Instant,
    /// Its beginning has an Event.
    told: bool,
    /// It was told why no pod is evicted.
    held_back: bool,
}

/// One that is over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PressurePeriod {
    /// When it began, RFC 3339.
    pub(super) since: String,
    /// The same, `CLOCK_MONOTONIC` nanoseconds.
    pub(super) at: u64,
    /// From its first sign to its last.
    pub(super) lasted: Duration,
    /// From its last sign until now.
    pub(super) silent: Duration,
    /// How often a level was reached.
    pub(super) crossings: u32,
    /// How many pods were evicted.
    pub(super) evicted: usize,
    /// The first of them, `namespace/name`.
    pub(super) names: Vec<String>,
}

/// Tokens for Events.
#[derive(Debug)]
struct Budget {
    left: u32,
    /// Up to when it was refilled.
    since: Option<Instant>,
}

impl Budget {
    /// Takes so many, all or none.
    fn take(&mut self, count: u32, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        let passed = now.saturating_duration_since(since);
        let more = u32::try_from(passed.as_secs() / REFILL.as_secs()).unwrap_or(u32::MAX);
        self.left = self.left.saturating_add(more).min(BURST);
        self.since = Some(match self.left {
            BURST => now,
            _ => since + REFILL.saturating_mul(more),
        });
        let enough = self.left >= count;
        if enough {
            self.left -= count;
        }
        enough
    }
}

impl PressurePeriods {
    /// A node that was under no pressure for `calm` is under pressure anew.
    pub(super) fn new(calm: Duration) -> Self {
        Self {
            calm,
            open: None,
            budget: Budget {
                left: BURST,
                since: None,
            },
            untold: 0,
        }
    }

    /// A level was reached, at `at` by `CLOCK_MONOTONIC`, which `time` has as text. Where a pressure period begins
    /// that gets an Event: how many before it got none.
    pub(super) fn crossed(&mut self, at: u64, time: &str, now: Instant) -> Option<u32> {
        if let Some(open) = &mut self.open {
            open.period.crossings = open.period.crossings.saturating_add(1);
            open.last = now;
            return None;
        }
        // With its end.
        let told = self.budget.take(2, now);
        self.open = Some(Open {
            period: PressurePeriod {
                since: time.to_owned(),
                at,
                crossings: 1,
                ..PressurePeriod::default()
            },
            began: now,
            last: now,
            told,
            held_back: false,
        });
        if told {
            return Some(std::mem::take(&mut self.untold));
        }
        self.untold = self.untold.saturating_add(1);
        None
    }

    /// A pod was evicted.
    pub(super) fn evicted(&mut self, pod: String, now: Instant) {
        let Some(open) = &mut self.open else { return };
        open.last = now;
        open.period.evicted += 1;
        if open.period.names.len() < NAMED {
            open.period.names.push(pod);
        }
    }

    /// No pod is evicted, or one at a time with long pauses; true where that gets an Event, once in a pressure period.
    pub(super) fn held_back(&mut self, now: Instant) -> bool {
        let Some(open) = &mut self.open else {
            return false;
        };
        open.last = now;
        let is_first = !std::mem::replace(&mut open.held_back, true);
        is_first && open.told && self.budget.take(1, now)
    }

    /// The pressure lasts.
    pub(super) fn lasts(&mut self, now: Instant) {
        if let Some(open) = &mut self.open {
            open.last = now;
        }
    }

    /// When the period that is under way ends, if nothing more happens.
    pub(super) fn due(&self) -> Option<Instant> {
        Some(self.open.as_ref()?.last + self.calm)
    }

    /// The pressure period that has ended by now, where it gets an Event.
    pub(super) fn ended(&mut self, now: Instant) -> Option<PressurePeriod> {
        let open = self.open.take_if(|open| open.last + self.calm <= now)?;
        open.told.then_some(PressurePeriod {
            lasted: open.last.saturating_duration_since(open.began),
            silent: now.saturating_duration_since(open.last),
            ..open.period
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: Duration = Duration::from_secs(300);

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn an_episode_lasts_from_the_first_sign_to_the_last() {
        let (mut periods, start) = (PressurePeriods::new(CALM), Instant::now());
        assert_eq!(periods.due(), None);
        assert_eq!(periods.crossed(7, "then", start), Some(0));
        assert_eq!(periods.crossed(8, "later", start + seconds(200)), None);
        for n in 0..7 {
            periods.evicted(format!("shop/{n}"), start + seconds(201));
        }
        periods.lasts(start + seconds(202));
        assert_eq!(periods.due(), Some(start + seconds(502)));
        assert_eq!(periods.ended(start + seconds(501)), None);
        let expected = PressurePeriod {
            since: "then".to_owned(),
            at: 7,
            lasted: seconds(202),
            silent: CALM,
            crossings: 2,
            evicted: 7,
            names: (0..NAMED).map(|n| format!("shop/{n}")).collect(),
        };
        assert_eq!(periods.ended(start + seconds(502)), Some(expected));
        assert_eq!(
            (periods.due(), periods.ended(start + CALM * 9)),
            (None, None)
        );
        // Of none that is under way.
        periods.evicted("shop/late".to_owned(), start + CALM * 9);
        assert_eq!(periods.due(), None);
    }

    #[test]
    fn of_many_episodes_some_are_told_whole_and_the_others_counted() {
        let (mut periods, mut now) = (PressurePeriods::new(seconds(1)), Instant::now());
        let mut told = Vec::new();
        for at in 0..100 {
            let begins = periods.crossed(at, "then", now);
            now += seconds(10);
            let ends = periods.ended(now).is_some();
            assert_eq!(begins.is_some(), ends, "period {at}");
            told.extend(begins);
        }
        // 24 of the first 25, then one for every two that are refilled in 1,000 s.
        assert_eq!(told[..12], [0; 12]);
        assert_eq!(told.len(), 12 + 2, "{told:?}");
        assert!(told[12..].iter().all(|untold| *untold > 10), "{told:?}");
    }

    #[test]
    fn a_period_is_told_once_why_no_pod_is_evicted() {
        let (mut periods, start) = (PressurePeriods::new(CALM), Instant::now());
        assert!(!periods.held_back(start), "there is no period");
        periods.crossed(7, "then", start);
        assert!(periods.held_back(start));
        assert!(!periods.held_back(start + seconds(250)));
        assert_eq!(periods.due(), Some(start + seconds(250) + CALM));
        let mut now = start + CALM * 2;
        assert!(periods.ended(now).is_some());
        // Within the budget of all Events about the node.
        let mut told = 0;
        for at in 8..40 {
            periods.crossed(at, "then", now);
            told += u32::from(periods.held_back(now));
            now += CALM / 100;
            periods.open = None;
        }
        assert!((7..=8).contains(&told), "{told}");
    }

    #[test]
    fn an_unused_budget_is_full_and_no_more() {
        let mut budget = Budget {
            left: 0,
            since: None,
        };
        let now = Instant::now();
        assert!(!budget.take(1, now));
        assert!(!budget.take(1, now + REFILL - seconds(1)));
        assert!(budget.take(1, now + REFILL));
        assert!(budget.take(BURST, now + REFILL * 1000));
        assert!(!budget.take(1, now + REFILL * 1000));
    }
}
