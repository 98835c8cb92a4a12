//! A scope's fill rate, and the level that follows from it. Allocates nothing.
//!
//! The rate comes from the reactor's own readings, which work on every kernel: they come the denser the
//! nearer usage is to its level ([`super::sampler`]), so that the fastest fill is measured before
//! it has used a quarter of its way.

use podwarden_policy::{
    headroom::{self, FillRate, ReapCost},
    plan::CHARGE_BATCH,
    threshold::Amount,
};

use super::{plan::Scope, watch::Look};
use crate::base::clock::monotonic as now;

/// From the crossing of a level to SIGKILL, nanoseconds: on an idle node 99 in 100 are faster.
pub(super) const DETECTION_NS: u64 = 5_000_000;

/// Headroom is rounded up to this, so that the kernel's level is not armed anew for every few pages.
const GRAIN: u64 = 1 << 20;

/// The likely victim is looked for again after this, nanoseconds: that reads every pod's usage.
const LIKELY_NS: u64 = 50_000_000;

/// What holds for all scopes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Costs {
    /// What reaping takes.
    pub(super) reap: ReapCost,
    /// How far below the configured level it may go, of the scope's limit.
    most: Amount,
    /// What all CPUs may have charged ahead.
    pub(super) ahead: u64,
}

impl Costs {
    pub(super) fn new(most: Amount) -> Self {
        Self {
            reap: ReapCost::default(),
            most,
            ahead: 0,
        }
    }

    /// So many CPUs are online.
    pub(super) fn charge_on(&mut self, cpus: u32) {
        self.ahead = CHARGE_BATCH.as_u64().saturating_mul(cpus.into());
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Fill {
    usage: FillRate,
    working_set: FillRate,
    /// The likely victim's usage, and when it was read.
    likely: Option<(u64, u64)>,
    /// The level in force at the last look.
    pub(super) level: u64,
    /// The rate that it follows from.
    pub(super) rate: u64,
}

impl Fill {
    /// Usage now, with the level that is in force; `None` when it cannot be read. The page cache is looked
    /// at only where usage is at `floor` of the level: that costs ten times as much. `likely` finds what
    /// the likely victim uses.
    pub(super) fn look(
        &mut self,
        scope: &Scope,
        costs: &Costs,
        floor: impl Fn(u64) -> u64,
        mut likely: impl FnMut() -> u64,
    ) -> Option<Look> {
        let usage = scope.memory.usage().ok()?;
        let at = now();
        self.usage.observe(at, usage, costs.ahead);
        // Should all of it be in use.
        self.settle(scope, costs, (at, usage), self.usage.at(at), &mut likely);
        if usage < floor(self.level) {
            // In use is that much at most.
            self.working_set.bound(at, usage, costs.ahead);
            return Some(Look {
                at,
                usage,
                working_set: usage,
            });
        }
        let stat = scope.memory.stat().ok()?;
        let working_set = scope.used(&stat, usage);
        // Page cache that grows does not fill anything.
        self.working_set
            .observe(at, scope.filled(&stat, usage), costs.ahead);
        self.settle(
            scope,
            costs,
            (at, usage),
            self.working_set.at(at),
            &mut likely,
        );
        Some(Look {
            at,
            usage,
            working_set,
        })
    }

    /// Sets the level that is in force when the scope fills at `rate`.
    fn settle(
        &mut self,
        scope: &Scope,
        costs: &Costs,
        (at, usage): (u64, u64),
        rate: u64,
        likely: impl FnMut() -> u64,
    ) {
        (self.level, self.rate) = (scope.level, rate);
        if rate == 0 {
            return;
        }
        // Read now: limits are moved while the agent runs.
        let Some(limit) = scope.limit() else {
            return;
        };
        let level = |victim| {
            let takes = DETECTION_NS.saturating_add(costs.reap.of(victim));
            let headroom = headroom::filled(rate, takes);
            let headroom = headroom.checked_next_multiple_of(GRAIN).unwrap_or(u64::MAX);
            headroom::level(scope.level, Some(limit), headroom, costs.most.of(limit))
        };
        // No pod in it is larger than all of it.
        if level(usage) == scope.level {
            return;
        }
        self.level = level(self.likely(at, likely));
    }

    /// From a decision to the likely victim's memory, nanoseconds.
    pub(super) fn takes(&self, costs: &Costs) -> u64 {
        let likely = self.likely.map_or(0, |(_, usage)| usage);
        DETECTION_NS.saturating_add(costs.reap.of(likely))
    }

    fn likely(&mut self, at: u64, mut likely: impl FnMut() -> u64) -> u64 {
        match self.likely {
            Some((asked, usage)) if at.saturating_sub(asked) < LIKELY_NS => usage,
            _ => {
                let usage = likely();
                self.likely = Some((at, usage));
                usage
            }
        }
    }
}
