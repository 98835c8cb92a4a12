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
mod tests;
