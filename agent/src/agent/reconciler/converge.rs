//! What the loop tells the converger and hears of it; the reactor's level of a tier above its target.

use std::time::Instant;

use podwarden_cgroup::{Controller, MemoryReader};
use podwarden_policy::{
    Bytes, QosClass, converge as policy,
    desired::{self, Desired},
    drift::{Judgement, Value},
    limits::Limit,
    name::CgroupName,
    plan::DEFAULT_MARGIN,
    settings::{Observed, Setting},
};

use super::{Parts, SlowLoop};
use crate::{
    agent::arm::Levels,
    api::types::{EventKind, PodRef, TierStats},
    base::clock,
    eviction::recorder::Draft,
    hierarchy::{
        converge::{Aim, Converger, Report, Whose},
        sense::Naming,
    },
    reactor::plan::{ArmedPlan, ScopeName},
};

/// The tiers, by class and by the reactor's name.
const TIERS: [(QosClass, ScopeName); 2] = [
    (QosClass::Burstable, ScopeName::Burstable),
    (QosClass::BestEffort, ScopeName::BestEffort),
];

/// What the limit that the converger writes is called, see [`Setting::property`].
const MEMORY_LIMIT: &str = Setting::MemoryLimit(Limit::Unlimited).property();

impl SlowLoop {
    /// Where pods have come for whom a tier has to make room, that is done before anything is read or
    /// made for them: the tier is kept from growing, with the reactor's level above what it uses.
    pub(super) fn cap(&mut self) {
        let parts = &self.parts;
        let set = parts.pods.borrow().clone();
        // Of sums over pods nothing is lowered while pods may be missing.
        if self.converger.is_none() || !set.waiting.is_empty() {
            return;
        }
        let limits = desired::tier_limits(&parts.node, set.pods.iter().map(|p| &p.pod));
        let mut falls = false;
        for ((_, target), limit) in self.targets.iter_mut().zip(limits) {
            if target.is_some_and(|now| limit < now) {
                *target = Some(limit);
                falls = true;
            }
        }
        if falls {
            if parts.tree.hierarchies().is_on_v2(Controller::Memory) {
                // Without the reactor.
                self.aim();
            }
            self.arm();
        }
    }

    /// Takes the tiers' targets from the tree as it ought to be.
    pub(super) fn set_targets(&mut self, desired: &[Desired]) {
        let naming = &self.parts.naming;
        let target = |class| {
            let name = naming.kubepods.tier(class);
            let tier = desired.iter().find(|desired| desired.name == name)?;
            tier.settings.iter().find_map(|(setting, _)| match setting {
                Setting::MemoryLimit(limit) => Some(*limit),
                _ => None,
            })
        };
        self.targets = TIERS.map(|(class, scope)| (scope, target(class)));
        self.aim();
    }

    /// Hands the converger targets and levels as they are now.
    pub(super) fn aim(&self) {
        let Some(converger) = &self.converger else {
            return;
        };
        let parts = &self.parts;
        let since = parts.pods.borrow().since.0;
        let aims = self.targets.iter().zip(TIERS);
        let aims = aims.map(|((scope, target), (class, _))| {
            let rel = parts.naming.rel(&parts.naming.kubepods.tier(class));
            Aim {
                scope: *scope,
                target: *target,
                level: self.levels.of_scope(*scope).map(Bytes),
                told: since,
                made: parts.actor.made(&rel),
                rel,
            }
        });
        converger.aim(aims.collect());
    }

    /// A level that comes down upon a tier is held above what the tier uses, so that only growth is
    /// answered by an eviction.
    pub(super) fn hold(&self, levels: &mut Levels, before: &ArmedPlan) {
        let parts = &self.parts;
        for (class, scope) in TIERS {
            let Some(level) = levels.of_scope(scope) else {
                continue;
            };
            let armed = before.scopes.iter().find(|armed| armed.name == scope);
            let used = match armed {
                Some(armed) => without_cache(&armed.memory),
                None => {
                    let rel = parts.naming.rel(&parts.naming.kubepods.tier(class));
                    MemoryReader::open(&parts.tree, &rel)
                        .ok()
                        .and_then(|memory| without_cache(&memory))
                }
            };
            let held = policy::hold(
                Bytes(level),
                Bytes(used.unwrap_or(0)),
                armed.map(|armed| Bytes(armed.level)),
                DEFAULT_MARGIN,
                parts.config.convergence.steps,
            );
            levels.set(scope, held.0);
        }
    }

    /// Tells the drift book which of what was found in the tiers' files the converger has written.
    pub(super) fn know_ours<'a>(
        &mut self,
        observed: impl IntoIterator<Item = (&'a CgroupName, &'a Observed)>,
    ) {
        let (Some(converger), Some(drift)) = (&self.converger, &mut self.drift) else {
            return;
        };
        let Parts { naming, tree, .. } = &self.parts;
        for (name, observed) in observed {
            let Some(found) = observed.memory_limit.filter(|_| is_tier(naming, name)) else {
                continue;
            };
            let rel = naming.rel(name);
            // What was answered since it was read; of another change there is another notice.
            let stands = || {
                tree.memory_limit(&rel)
                    .is_ok_and(|now| found == now.map(Bytes).into())
            };
            match converger.ours().whose(&rel, found, Instant::now()) {
                Whose::Others { left } if stands() => drift.ours(name, left),
                Whose::Ours | Whose::Others { .. } => drift.ours(name, found),
            }
            // Whoever writes one of a tier's files may have written the others: systemd does.
            converger.look();
        }
    }

    /// Has the converger answer what others wrote to the tiers' limits; nobody else writes those.
    pub(super) fn hand_over(&self, judgement: &Judgement) {
        let Some(converger) = &self.converger else {
            return;
        };
        let naming = &self.parts.naming;
        let deviations = judgement.admitted.iter().filter_map(|(_, d)| d.as_ref());
        for deviation in deviations {
            if let Value::Limit(found) = deviation.found
                && deviation.property == MEMORY_LIMIT
                && is_tier(naming, &deviation.cgroup)
            {
                converger.answer(&naming.rel(&deviation.cgroup), found);
            }
        }
    }

    pub(super) fn take_convergence(&mut self, report: Report) {
        match report {
            Report::Opened(gap) => {
                let tier = gap.scope.as_str();
                tracing::warn!(
                    tier,
                    target = %Bytes(gap.target),
                    usage = %Bytes(gap.usage),
                    "the tier uses more than qosReserved leaves it: kept from growing"
                );
                let kind = EventKind::GapOpened {
                    tier: tier.to_owned(),
                    target_bytes: gap.target,
                    usage_bytes: gap.usage,
                };
                self.gap_event(gap.scope, gap.since, kind);
            }
            Report::Fell(_) => self.arm(),
            Report::Closed {
                gap,
                usage,
                at,
                reclaimed,
                writes,
            } => {
                self.arm();
                let tier = gap.scope.as_str();
                let open_nanos = at.saturating_sub(gap.since);
                tracing::info!(
                    tier,
                    target = %Bytes(gap.target),
                    usage = %Bytes(usage),
                    before = %Bytes(gap.usage),
                    after = ?std::time::Duration::from_nanos(open_nanos),
                    "the tier's limit is what qosReserved leaves it"
                );
                let kind = EventKind::GapClosed {
                    tier: tier.to_owned(),
                    target_bytes: gap.target,
                    usage_before_bytes: gap.usage,
                    usage_bytes: usage,
                    reclaimed_bytes: reclaimed,
                    writes,
                    open_nanos,
                };
                self.gap_event(gap.scope, at, kind);
            }
            Report::Refused(message) => {
                tracing::warn!("{message}");
                let kind = EventKind::Degraded { message };
                self.parts.published.event(clock::now_text(), None, kind);
            }
        }
    }

    /// Publishes an event at `at` with what the recorder has of the tier.
    fn gap_event(&mut self, scope: ScopeName, at: u64, kind: EventKind) {
        let id = self.parts.published.event(clock::text_of(at), None, kind);
        if let Some(recorder) = &mut self.recorder {
            let reactor = &self.parts.reactor;
            let draft = Draft::of_gap(scope, at, &reactor.armed(), reactor.trace().read());
            recorder.incident(id, PodRef::default(), draft);
        }
    }
}

fn is_tier(naming: &Naming, name: &CgroupName) -> bool {
    let mut tiers = TIERS.iter();
    tiers.any(|(class, _)| naming.kubepods.tier(*class) == *name)
}

/// Puts how far they have come beside the tiers' figures.
pub(super) fn add_figures(converger: &Converger, tiers: &mut [TierStats]) {
    for (scope, mut figures) in converger.figures() {
        let Some(tier) = tiers.iter_mut().find(|tier| tier.name == scope.as_str()) else {
            continue;
        };
        // The converger looks when something changes; this was read just now.
        if let (Some(memory), Some(target)) = (&tier.memory, figures.target_bytes) {
            figures.gap_bytes = memory.usage_bytes.saturating_sub(target);
        }
        tier.convergence = Some(figures);
    }
}

/// What the reactor compares a tier's level with; `None` for what cannot be read.
fn without_cache(memory: &MemoryReader) -> Option<u64> {
    let usage = memory.usage().ok()?;
    Some(memory.stat().ok()?.without_cache(usage))
}

/// No tier has a target yet.
pub(super) const NO_TARGETS: [(ScopeName, Option<Limit<Bytes>>); 2] =
    [(ScopeName::Burstable, None), (ScopeName::BestEffort, None)];
