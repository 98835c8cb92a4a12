//! What the loop tells the converger and hears of it; the reactor's level of a tier above its target.

use podwarden_cgroup::MemoryReader;
use podwarden_policy::{
    Bytes, QosClass, converge as policy,
    desired::Desired,
    limits::Limit,
    name::CgroupName,
    plan::DEFAULT_MARGIN,
    settings::{Observed, Setting},
};

use super::{Parts, SlowLoop};
use crate::{
    api::{EventKind, PodRef, TierStats},
    arm::Levels,
    clock,
    converge::{Aim, Converger, Report},
    reactor::plan::{ArmedPlan, ScopeName},
    recorder::Draft,
};

/// The tiers, by class and by the reactor's name.
const TIERS: [(QosClass, ScopeName); 2] = [
    (QosClass::Burstable, ScopeName::Burstable),
    (QosClass::BestEffort, ScopeName::BestEffort),
];

impl SlowLoop {
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
        let aims = self.targets.iter().zip(TIERS);
        let aims = aims.map(|((scope, target), (class, _))| {
            let rel = parts.naming.rel(&parts.naming.kubepods.tier(class));
            Aim {
                scope: *scope,
                target: *target,
                level: self.levels.of_scope(*scope).map(Bytes),
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
                Some(armed) => working_set(&armed.memory),
                None => {
                    let rel = parts.naming.rel(&parts.naming.kubepods.tier(class));
                    MemoryReader::open(&parts.tree, &rel)
                        .ok()
                        .and_then(|memory| working_set(&memory))
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
        let Parts { naming, .. } = &self.parts;
        for (name, observed) in observed {
            let is_tier = TIERS
                .iter()
                .any(|(class, _)| naming.kubepods.tier(*class) == *name);
            if is_tier
                && let Some(limit) = observed.memory_limit
                && converger.ours().has(&naming.rel(name), limit)
            {
                drift.ours(name, limit);
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

/// `None` for what cannot be read.
fn working_set(memory: &MemoryReader) -> Option<u64> {
    let usage = memory.usage().ok()?;
    Some(usage.saturating_sub(memory.stat().ok()?.inactive_file))
}

/// No tier has a target yet.
pub(super) const NO_TARGETS: [(ScopeName, Option<Limit<Bytes>>); 2] =
    [(ScopeName::Burstable, None), (ScopeName::BestEffort, None)];
