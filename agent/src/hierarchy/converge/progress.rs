//! What is known of a tier on its way to its target: figures, and reports of the gap.

use podwarden_policy::{
    Bytes,
    converge::{self, Reading, Step},
    limits::Limit,
    plan::DEFAULT_MARGIN,
};

use super::{Gap, Report};
use crate::{api::types::TierConvergence, base::clock, reactor::plan::ScopeName};

/// What the reactor's level may be above usage and the margin before it is worth lowering it.
const LEVEL_GRAIN: u64 = DEFAULT_MARGIN.0 / 2;

/// What was done since the gap opened.
#[derive(Debug)]
struct Open {
    gap: Gap,
    reclaimed: u64,
    writes: u64,
    /// Usage when the reconciler was last told that it fell.
    told: u64,
}

#[derive(Debug)]
pub(super) struct Progress {
    scope: ScopeName,
    open: Option<Open>,
    pub(super) figures: TierConvergence,
    /// A lower target is not answered yet; since when it is known.
    lowered: Option<u64>,
}

impl Progress {
    pub(super) fn of(scope: ScopeName) -> Self {
        Self {
            scope,
            open: None,
            figures: TierConvergence::default(),
            lowered: None,
        }
    }

    /// There is a gap.
    pub(super) const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// The target fell, by what is known since `told`.
    pub(super) const fn lowered(&mut self, told: u64) {
        self.lowered = Some(told);
        self.figures.cap_nano_seconds = None;
    }

    /// The tier fits into its target: there is nothing to keep from growing.
    pub(super) const fn fits(&mut self) {
        self.lowered = None;
    }

    /// A limit is in force since `at`: notes how long that took, for the first under a lower target.
    pub(super) fn capped(&mut self, at: u64) {
        if let Some(told) = self.lowered.take()
            && self.open.is_some()
            && told > 0
        {
            let took = at.saturating_sub(told);
            self.figures.cap_nano_seconds = Some(took);
        }
    }

    /// Keeps figures of a look, and reports when a gap opens, shrinks and closes.
    pub(super) fn look(
        &mut self,
        reading: &Reading,
        machine: &converge::Tier,
        tell: &mut impl FnMut(Report),
    ) {
        let usage = reading.usage.0;
        let gap = machine.gap(reading.usage).0;
        self.figures.gap_bytes = gap;
        self.figures.high_bytes = reading.high.and_then(Limit::bound).map(|high| high.0);
        let Some(target) = target(machine) else {
            self.close(usage, tell);
            return;
        };
        let reached = reading.max <= Limit::At(Bytes(target));
        self.figures.reached = reached;
        match &mut self.open {
            None if gap > 0 && !reached => {
                let gap = Gap {
                    scope: self.scope,
                    since: clock::monotonic(),
                    target,
                    usage,
                };
                self.open = Some(Open {
                    gap,
                    reclaimed: 0,
                    writes: 0,
                    told: usage,
                });
                tell(Report::Opened(gap));
            }
            Some(_) if reached => self.close(usage, tell),
            Some(open) if usage.saturating_add(LEVEL_GRAIN) < open.told => {
                open.told = usage;
                tell(Report::Fell(self.scope));
            }
            _ => {}
        }
    }

    fn close(&mut self, usage: u64, tell: &mut impl FnMut(Report)) {
        if let Some(open) = self.open.take() {
            tell(Report::Closed {
                gap: open.gap,
                usage,
                at: clock::monotonic(),
                reclaimed: open.reclaimed,
                writes: open.writes,
            });
        }
    }

    /// Counts a step that was carried out; without `done` the kernel had no page cache to give.
    pub(super) fn count(&mut self, step: &Step, done: bool) {
        let steps = &mut self.figures.steps;
        let mut limits = 0;
        let mut reclaimed = 0;
        match *step {
            Step::Max(_) => (steps.max, limits) = (steps.max + 1, 1),
            Step::High(_) => (steps.high, limits) = (steps.high + 1, 1),
            Step::Reclaim(bytes) => {
                steps.reclaim += 1;
                reclaimed = if done { bytes.0 } else { 0 };
            }
        }
        self.figures.reclaimed_bytes += reclaimed;
        if let Some(open) = &mut self.open {
            open.writes += limits;
            open.reclaimed += reclaimed;
        }
    }
}

/// The target of a tier, bytes; `None` where it is unlimited.
pub(super) fn target(machine: &converge::Tier) -> Option<u64> {
    machine.target()?.bound().map(Bytes::as_u64)
}
