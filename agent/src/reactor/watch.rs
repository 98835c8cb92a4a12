//! The state of one scope between two readings: a state machine without IO or clock.
//!
//! ```text
//!            working set >= level              a pod to evict   
//!  Below ──────────────────────────> Crossed ────────────────────> Relieving (kill, wait, look again)
//!    ^                                  │  no pod to evict:           │
//!    │                                  │  asked again every `retry`  │
//!    ├──── working set < level ─────────┘                             │
//!    └──── working set < target ──────────────────────────────────────┘
//! ```
//!
//! While dead pods hold memory the working set is without that ([`podwarden_policy::promise`]).
//!
//! The kernel sees usage, the level is meant for the working set: page cache that no process uses is no
//! reason to kill. So the kernel's level is armed at `level` plus the page cache seen last.

use std::time::Duration;

use podwarden_policy::{Bytes, pressure};

use super::{report::Detector, sampler};
use crate::base::clock::nanos;

/// Usage of a scope at one moment; times are `CLOCK_MONOTONIC` nanoseconds, sizes bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    /// When it was read.
    pub(super) at: u64,
    /// Memory charged.
    pub(super) usage: u64,
    /// What of it counts against the level, see [`super::plan::Scope::used`]: usage minus inactive file
    /// pages, of a tier minus all page cache. May be given as usage when that is below the level already.
    pub(super) working_set: u64,
}

/// The next action after a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing.
    Rest,
    /// To choose a victim.
    Decide {
        /// When the level was passed, as exactly as `detector` allows.
        crossed: u64,
        /// What noticed.
        detector: Detector,
        /// True for the first decision of this crossing.
        first: bool,
    },
}

/// Where a scope stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    /// Below its level, as far as is known.
    #[default]
    Below,
    /// At its level; decide at every look.
    Crossed,
    /// A pod was evicted for it: the same, down to its target.
    Relieving,
    /// The same, and what dead pods hold of it suffices.
    Awaiting,
    /// At its level and all is said (observe mode).
    Settled,
    /// At its level, and no pod could be evicted at this time.
    NoCandidate(u64),
}

/// See the module's text.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Watch {
    phase: Phase,
    /// Time and working set of the last look below the level.
    below: Option<(u64, u64)>,
    /// What the kernel said first of this crossing: when, and by what.
    stamp: Option<(u64, Detector)>,
    /// Usage at which the kernel will report.
    armed: Option<u64>,
    /// When the kernel's last report was taken.
    reported: Option<u64>,
}

impl Watch {
    /// A kernel program reported at `at`, taken at `now`. It is silent until armed again.
    pub(super) fn reported(&mut self, at: u64, detector: Detector, now: u64) {
        self.armed = None;
        self.reported = Some(now);
        self.stamp(at, detector);
    }

    /// The kernel says that something has happened, not what or when: the v1 threshold was passed in either
    /// direction, or a v2 limit was reached.
    pub(super) fn notified(&mut self, wake: u64, detector: Detector) {
        self.stamp(wake, detector);
    }

    fn stamp(&mut self, at: u64, detector: Detector) {
        if self.phase == Phase::Below && self.stamp.is_none() {
            self.stamp = Some((at, detector));
        }
    }

    /// Below this nothing is asked for: the level, or once a pod was evicted the target.
    pub(super) fn floor(&self, level: u64, target: u64) -> u64 {
        match self.phase {
            Phase::Relieving | Phase::Awaiting => target.min(level),
            Phase::Below | Phase::Crossed | Phase::Settled | Phase::NoCandidate(_) => level,
        }
    }

    /// Usage was found below the level: whatever was said before is over.
    pub(super) fn below(&mut self, look: Look) {
        self.phase = Phase::Below;
        self.below = Some((look.at, look.working_set));
        self.stamp = None;
    }

    /// Usage was found at the level, and without what dead pods hold of it below: `look` is without that. True
    /// where that ends a crossing.
    pub(super) fn awaits(&mut self, look: Look) -> bool {
        if !matches!(self.phase, Phase::Relieving | Phase::Awaiting) {
            return true;
        }
        (self.phase, self.below) = (Phase::Awaiting, Some((look.at, look.working_set)));
        false
    }

    /// Usage was found at `level`. `wake` is when the reactor's wait ended for it.
    pub(super) fn above(&mut self, level: u64, look: Look, wake: u64, retry: Duration) -> Next {
        let first = self.phase == Phase::Below;
        match self.phase {
            Phase::Settled => return Next::Rest,
            Phase::NoCandidate(asked) if look.at.saturating_sub(asked) < nanos(retry) => {
                return Next::Rest;
            }
            _ => {}
        }
        let (crossed, detector) = match (self.stamp.take(), self.below) {
            (Some(stamp), _) => stamp,
            (None, Some(below)) if first => {
                let after = (look.at, look.working_set);
                (sampler::interpolate(below, after, level), Detector::Sampler)
            }
            // Above when it was first looked at, or still above after an eviction.
            _ => (wake, Detector::Sampler),
        };
        if first {
            self.phase = Phase::Crossed;
        }
        Next::Decide {
            crossed: crossed.min(wake),
            detector,
            first,
        }
    }

    /// No pod could be evicted at `at`; true when that has not been said of this crossing.
    pub(super) fn no_candidate(&mut self, at: u64) -> bool {
        let said = matches!(self.phase, Phase::NoCandidate(_));
        self.phase = Phase::NoCandidate(at);
        !said
    }

    /// All is said until usage falls (observe mode).
    pub(super) fn settle(&mut self) {
        self.phase = Phase::Settled;
    }

    /// A victim was killed: look again, with times of their own, once its memory is free.
    pub(super) fn acted(&mut self) {
        self.phase = Phase::Relieving;
    }

    /// There are other pods to choose from now.
    pub(super) fn replanned(mut self) -> Self {
        if let Phase::NoCandidate(at) = &mut self.phase {
            *at = 0;
        }
        self
    }

    /// The usage at which the kernel should report, when that differs from what it has. Usage that
    /// hovers at its level would otherwise have it report without end: it is left alone for `quiet`
    /// after each report, which the sampler bridges.
    ///
    /// No charge passes `most`, where the limit is: with more page cache than that the level is armed there, and
    /// from there on the kernel has nothing to report that the sampler does not see.
    pub(super) fn usage_to_arm(
        &self,
        level: u64,
        most: Option<u64>,
        look: Look,
        quiet: Duration,
    ) -> Option<u64> {
        let idle = Bytes(look.usage.saturating_sub(look.working_set));
        let wanted = pressure::usage_level(Bytes(level), Bytes::ZERO, idle).as_u64();
        let wanted = match most {
            Some(most) if wanted > most && look.usage >= most => return None,
            Some(most) => wanted.min(most),
            None => wanted,
        };
        let resting = self.quiet_left(look.at, quiet).is_some();
        (self.phase == Phase::Below && self.armed != Some(wanted) && !resting).then_some(wanted)
    }

    /// The kernel reports at `usage` from now on.
    pub(super) fn armed(&mut self, usage: u64) {
        self.armed = Some(usage);
        self.reported = None;
    }

    /// How much longer the kernel is to be left alone.
    fn quiet_left(&self, now: u64, quiet: Duration) -> Option<Duration> {
        let since = now.saturating_sub(self.reported?);
        quiet
            .checked_sub(Duration::from_nanos(since))
            .filter(|left| !left.is_zero())
    }

    /// How long the reactor may sleep at `now`.
    pub(super) fn sleep(
        &self,
        level: u64,
        now: u64,
        cpus: u32,
        shortest: Duration,
        longest: Duration,
    ) -> Duration {
        match self.phase {
            Phase::Crossed | Phase::Relieving => shortest,
            Phase::Settled | Phase::NoCandidate(_) => longest,
            Phase::Below | Phase::Awaiting => {
                let headroom = level.saturating_sub(self.below.map_or(0, |(_, used)| used));
                let sleep = sampler::sleep(headroom, cpus, shortest, longest);
                match self.quiet_left(now, shortest) {
                    Some(left) => sleep.min(left.max(Duration::from_nanos(1))),
                    None => sleep,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEVEL: u64 = 1000;
    const RETRY: Duration = Duration::from_nanos(100);

    fn look(at: u64, usage: u64) -> Look {
        Look {
            at,
            usage,
            working_set: usage,
        }
    }

    fn above(watch: &mut Watch, at: u64) -> Next {
        watch.above(LEVEL, look(at, LEVEL), at, RETRY)
    }

    fn decide(crossed: u64, detector: Detector, first: bool) -> Next {
        Next::Decide {
            crossed,
            detector,
            first,
        }
    }

    #[test]
    fn a_level_below_usage_at_the_first_look_is_crossed_now() {
        assert_eq!(
            above(&mut Watch::default(), 5_000),
            decide(5_000, Detector::Sampler, true)
        );
    }

    #[test]
    fn the_sampler_interpolates_from_the_last_look_below() {
        let mut watch = Watch::default();
        watch.below(look(100, 0));
        assert_eq!(
            watch.above(LEVEL, look(300, 2000), 290, RETRY),
            decide(200, Detector::Sampler, true)
        );
    }

    #[test]
    fn the_kernels_stamp_is_used_once_and_never_later_than_the_wake() {
        let mut watch = Watch::default();
        watch.below(look(10, 1));
        watch.reported(50, Detector::Charge, 55);
        watch.notified(54, Detector::EventFd);
        assert_eq!(above(&mut watch, 60), decide(50, Detector::Charge, true));
        assert_eq!(above(&mut watch, 70), decide(70, Detector::Sampler, false));
        // What is said while above belongs to no later crossing.
        watch.notified(75, Detector::MemoryEvents);
        watch.below(look(80, 0));
        assert_eq!(
            watch.above(LEVEL, look(100, 2000), 100, RETRY),
            decide(90, Detector::Sampler, true)
        );
    }

    #[test]
    fn a_stamp_of_a_crossing_that_passed_is_forgotten() {
        let mut watch = Watch::default();
        watch.reported(50, Detector::Charge, 51);
        watch.below(look(60, 0));
        assert_eq!(
            watch.above(LEVEL, look(80, 2000), 80, RETRY),
            decide(70, Detector::Sampler, true)
        );
    }

    #[test]
    fn no_candidate_is_said_once_and_asked_again_after_a_while_or_with_a_new_plan() {
        let mut watch = Watch::default();
        above(&mut watch, 1_000);
        assert!(watch.no_candidate(1_000));
        assert_eq!(above(&mut watch, 1_099), Next::Rest);
        assert_eq!(
            above(&mut watch, 1_100),
            decide(1_100, Detector::Sampler, false)
        );
        assert!(!watch.no_candidate(1_100));
        let mut watch = watch.replanned();
        assert_eq!(
            above(&mut watch, 1_101),
            decide(1_101, Detector::Sampler, false)
        );
        assert!(!watch.no_candidate(1_101));
        watch.below(look(1_102, 0));
        above(&mut watch, 1_103);
        assert!(watch.no_candidate(1_103), "another crossing");
    }

    #[test]
    fn observe_mode_says_a_crossing_once() {
        let mut watch = Watch::default();
        above(&mut watch, 10);
        watch.settle();
        assert_eq!(above(&mut watch, 1_000_000), Next::Rest);
        assert_eq!(above(&mut watch.replanned(), 1_000_001), Next::Rest);
        watch.below(look(1_000_002, 0));
        assert_ne!(above(&mut watch, 1_000_003), Next::Rest);
    }

    #[test]
    fn the_kernel_is_armed_above_the_cache_and_left_alone_after_a_report() {
        let mut watch = Watch::default();
        let cached = Look {
            at: 10,
            usage: 1_500,
            working_set: 600,
        };
        watch.below(cached);
        let wanted = |watch: &Watch, look| watch.usage_to_arm(LEVEL, None, look, RETRY);
        assert_eq!(wanted(&watch, cached), Some(1_900));
        watch.armed(1_900);
        assert_eq!(wanted(&watch, cached), None);
        // A report that did not hold: silent, then armed again although no crossing came of it.
        watch.reported(20, Detector::Charge, 21);
        watch.below(look(22, 999));
        assert_eq!(wanted(&watch, look(22, 999)), None);
        assert_eq!(wanted(&watch, look(121, 999)), Some(LEVEL));
        let left = watch.sleep(LEVEL, 22, 1, RETRY, Duration::from_secs(1));
        assert_eq!(left, Duration::from_nanos(99));
    }

    #[test]
    fn the_kernel_is_not_armed_while_above() {
        let mut watch = Watch::default();
        above(&mut watch, 10);
        let wanted = watch.usage_to_arm(LEVEL, None, look(20, LEVEL), RETRY);
        assert_eq!(wanted, None);
    }

    #[test]
    fn page_cache_up_to_the_limit_does_not_put_the_level_where_no_charge_comes() {
        let mut watch = Watch::default();
        let cached = |usage| Look {
            at: 10,
            usage,
            working_set: 100,
        };
        watch.below(cached(1_200));
        let wanted = |watch: &Watch, usage, most| {
            watch.usage_to_arm(LEVEL, Some(most), cached(usage), RETRY)
        };
        assert_eq!(
            wanted(&watch, 1_200, 1_500),
            Some(1_500),
            "2,100 is never reached"
        );
        assert_eq!(wanted(&watch, 1_200, 3_000), Some(2_100));
        // At the limit every charge would report, and say nothing.
        assert_eq!(wanted(&watch, 1_500, 1_500), None);
        assert_eq!(wanted(&watch, 2_000, 3_000), Some(2_900));
    }

    #[test]
    fn once_acted_the_target_counts_until_it_is_reached() {
        let target = 700;
        let mut watch = Watch::default();
        let floor = |watch: &Watch| watch.floor(LEVEL, target);
        assert_eq!(floor(&watch), LEVEL);
        above(&mut watch, 10);
        assert_eq!(floor(&watch), LEVEL);
        watch.acted();
        assert_eq!(floor(&watch), target);
        let next = watch.above(LEVEL, look(20, 800), 20, RETRY);
        assert_eq!(next, decide(20, Detector::Sampler, false));
        assert_eq!(floor(&watch), target);
        watch.below(look(30, 699));
        assert_eq!(floor(&watch), LEVEL);
        assert_eq!(watch.floor(LEVEL, LEVEL + 1), LEVEL);
    }

    #[test]
    fn sleeps_by_phase() {
        let (shortest, longest) = (Duration::from_millis(1), Duration::from_millis(100));
        let mut watch = Watch::default();
        let sleep = |watch: &Watch| watch.sleep(LEVEL, 0, 1, shortest, longest);
        above(&mut watch, 10);
        assert_eq!(sleep(&watch), shortest, "decide again soon");
        watch.no_candidate(10);
        assert_eq!(sleep(&watch), longest);
        watch.settle();
        assert_eq!(sleep(&watch), longest);
        watch.acted();
        assert_eq!(sleep(&watch), shortest);
    }
}
