//! Whether the node is short of memory, for its Node object. Values only: no clock.
//!
//! As the kubelet's condition `MemoryPressure` it lasts for `evictionPressureTransitionPeriod` after its last sign. A
//! tier at what `qosReserved` leaves it is no sign: the node has memory for pods of the other classes.

use std::time::{Duration, Instant};

use podwarden_policy::signal::ScopeName;

use crate::{api::types::TierStats, eviction::status::NodePressure, reactor::report::Report};

#[derive(Debug)]
pub(super) struct Pressed {
    pub(super) calm: Duration,
    /// The last sign of pressure.
    last: Option<Instant>,
    pressure: NodePressure,
}

impl Pressed {
    /// Pressure is over after `calm` without a sign of it.
    pub(super) fn new(calm: Duration, pressure: NodePressure) -> Self {
        Self {
            calm,
            last: None,
            pressure,
        }
    }

    /// The reactor reported something about `scope`.
    pub(super) fn sign(&mut self, scope: ScopeName, now: Instant) {
        if is_node(scope) {
            self.last = Some(now);
            self.pressure.set(true);
        }
    }

    /// How long until [`Pressed::look`] has something to do; `None` without pressure.
    pub(super) fn due(&self, now: Instant) -> Option<Duration> {
        let end = self.last? + self.calm;
        Some(end.saturating_duration_since(now))
    }

    /// Ends the pressure that is over by now; `lasts` where the node is at its level still.
    pub(super) fn look(&mut self, now: Instant, lasts: bool) {
        if self.due(now).is_none_or(|due| !due.is_zero()) {
            return;
        }
        self.last = lasts.then_some(now);
        self.pressure.set(lasts);
    }
}

/// Whether pods of every class are short of what this scope is short of.
pub(super) fn is_node(scope: ScopeName) -> bool {
    match scope {
        ScopeName::Kubepods | ScopeName::Node | ScopeName::Pressure => true,
        ScopeName::Burstable
        | ScopeName::BestEffort
        | ScopeName::Pids
        | ScopeName::Cpu
        | ScopeName::BatchMemory => false,
    }
}

/// What a report is about; `None` where it is no sign of pressure.
pub(super) fn scope_of(report: &Report) -> Option<ScopeName> {
    match report {
        Report::Crossed(crossing)
        | Report::NotKilled { crossing, .. }
        | Report::KilledAgain { crossing, .. }
        | Report::RateLimited(crossing)
        | Report::OthersGrow(crossing, _)
        | Report::StrangersGrow(crossing, _)
        | Report::Awaited(crossing)
        | Report::NoCandidate(crossing) => Some(crossing.scope),
        Report::Chosen(chosen) => Some(chosen.crossing.scope),
        Report::Freed { .. } => None,
    }
}

/// Whether the pods of all classes together are at their level.
pub(super) fn pods_are_at_level(tiers: &[TierStats]) -> bool {
    let pods = ScopeName::Kubepods.as_str();
    tiers
        .iter()
        .any(|tier| tier.name == pods && is_at_level(tier))
}

/// Whether a tier is at its level.
pub(super) fn is_at_level(tier: &TierStats) -> bool {
    let used = tier.memory.as_ref().map(|memory| memory.working_set_bytes);
    used.zip(tier.armed_level_bytes)
        .is_some_and(|(used, level)| used >= level)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: Duration = Duration::from_secs(300);

    #[test]
    fn pressure_lasts_for_the_calm_after_its_last_sign() {
        let (start, pressure) = (Instant::now(), NodePressure::default());
        let mut pressed = Pressed::new(CALM, pressure.clone());
        assert_eq!(pressed.due(start), None);
        pressed.look(start, true);
        assert!(!pressure.is(), "a level alone is no sign");
        pressed.sign(ScopeName::Kubepods, start);
        assert!(pressure.is());
        let later = start + Duration::from_secs(200);
        pressed.sign(ScopeName::Node, later);
        pressed.look(start + CALM, false);
        assert!(pressure.is() && pressed.due(start + CALM) == Some(Duration::from_secs(200)));
        pressed.look(later + CALM, true);
        assert!(pressure.is(), "it is at its level still");
        pressed.look(later + 2 * CALM, false);
        assert!(!pressure.is());
        assert_eq!(pressed.due(later + 3 * CALM), None);
    }

    #[test]
    fn a_tier_at_its_reserve_and_process_ids_are_no_sign() {
        let (start, pressure) = (Instant::now(), NodePressure::default());
        let mut pressed = Pressed::new(CALM, pressure.clone());
        for scope in ScopeName::ALL.iter().copied() {
            pressed.sign(scope, start);
            assert_eq!(pressure.is(), is_node(scope), "{scope}");
            pressed.look(start + CALM, false);
        }
    }
}
