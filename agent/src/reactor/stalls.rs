//! PSI notices and their consequence: a state machine without IO or clock, and the
//! reading that separates a node short of memory from a pod at its own limit.
//!
//! A notice describes a past window: notices within one window of a victim's end may
//! describe the time before it.

use std::time::Duration;

use podwarden_policy::{Bytes, pressure};

use super::{plan::Pressure, report::Detector};
use crate::base::clock::nanos;

/// A decision that changed nothing (observe mode, no pod to evict) stands for this long, nanoseconds:
/// the kernel notices once a window for as long as tasks wait.
const STANDS_NS: u64 = 60_000_000_000;

/// A decision that waits until a source has told of a pod stands for this long, nanoseconds.
const WAITS_NS: u64 = 1_000_000_000;

/// Times are `CLOCK_MONOTONIC` nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Stalls {
    noticed: Option<(u64, Detector)>,
    quiet_until: u64,
}

impl Stalls {
    /// The kernel said so, at the reactor's wake-up at `wake`.
    pub(super) fn noticed(&mut self, wake: u64, detector: Detector) {
        if wake >= self.quiet_until && self.noticed.is_none() {
            self.noticed = Some((wake, detector));
        }
    }

    /// What there is to act on, once.
    pub(super) fn take(&mut self) -> Option<(u64, Detector)> {
        self.noticed.take()
    }

    /// A victim's memory was free at `at`: what is noticed within `window` from then is old.
    pub(super) fn relieved(&mut self, at: u64, window: Duration) {
        self.noticed = None;
        self.quiet_until = self.quiet_until.max(at.saturating_add(nanos(window)));
    }

    /// What was noticed may be of pods of which a source has to tell first: it is asked again soon.
    pub(super) fn waits(&mut self, at: u64) {
        self.quiet_until = self.quiet_until.max(at.saturating_add(WAITS_NS));
    }

    /// All is said that can be said at `at`.
    pub(super) fn said(&mut self, at: u64) {
        self.quiet_until = at.saturating_add(STANDS_NS);
    }
}

/// How far back the notices look at most.
pub(super) fn window(pressure: &Pressure) -> Duration {
    let windows = pressure.triggers.iter().map(|trigger| trigger.window);
    windows.max().unwrap_or_default()
}

/// What all pods use and from where that counts as short; `None` where memory is not short.
pub(super) fn shortage(of: &Pressure) -> Option<(u64, u64)> {
    let usage = of.memory.usage().ok()?;
    if let Some(limit) = of.memory.limit().ok().flatten() {
        let level = pressure::short_from(Bytes(limit)).as_u64();
        if usage >= level {
            return Some((usage, level));
        }
    }
    let (free, total) = of.free.read()?;
    pressure::node_is_short(free, total).then_some((usage, usage))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_acted_on_once_and_not_within_a_window_of_relief() {
        let window = Duration::from_nanos(100);
        let mut stalls = Stalls::default();
        assert_eq!(stalls.take(), None);
        stalls.noticed(10, Detector::PsiSome);
        stalls.noticed(11, Detector::PsiFull);
        assert_eq!(stalls.take(), Some((10, Detector::PsiSome)));
        assert_eq!(stalls.take(), None);
        stalls.noticed(12, Detector::PsiSome);
        stalls.relieved(20, window);
        assert_eq!(stalls.take(), None, "it was about the time before");
        stalls.noticed(119, Detector::PsiSome);
        assert_eq!(stalls.take(), None);
        stalls.noticed(120, Detector::PsiFull);
        assert_eq!(stalls.take(), Some((120, Detector::PsiFull)));
    }

    #[test]
    fn what_waits_for_a_source_is_acted_on_within_a_second() {
        let mut stalls = Stalls::default();
        stalls.waits(5);
        stalls.noticed(4 + WAITS_NS, Detector::PsiSome);
        assert_eq!(stalls.take(), None);
        stalls.noticed(5 + WAITS_NS, Detector::PsiSome);
        assert!(stalls.take().is_some());
        // Relief that is longer stands.
        stalls.relieved(6, Duration::from_nanos(2 * WAITS_NS));
        stalls.waits(7);
        stalls.noticed(7 + WAITS_NS, Detector::PsiSome);
        assert_eq!(stalls.take(), None);
    }

    #[test]
    fn what_was_said_stands_for_a_while() {
        let mut stalls = Stalls::default();
        stalls.said(5);
        stalls.noticed(4 + STANDS_NS, Detector::PsiSome);
        assert_eq!(stalls.take(), None);
        stalls.relieved(6, Duration::from_nanos(1));
        stalls.noticed(5 + STANDS_NS, Detector::PsiSome);
        assert!(stalls.take().is_some());
    }
}
