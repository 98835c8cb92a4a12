//! Between reconciler and converger: targets, levels and foreign limits go there, gaps come back.

use std::time::Instant;

use podwarden_cgroup::{CgroupLayout, Controller};
use podwarden_policy::{
    Bytes,
    converge::{may_be_slowed, slowed_alone},
    desired::{self, Desired},
    drift::Judgement,
    limits::{self, Limit},
    name::CgroupName,
    settings::{Observed, Setting, Value},
};

use super::{Environment, Fact, Hierarchy};
use crate::{
    agent::{arm::Levels, reconciler::TIERS},
    api::types::EventKind,
    base::clock,
    hierarchy::converge::{Aim, PodAim, Report, Whose},
    pods::PodSet,
    reactor::plan::ScopeName,
};

/// What the limit that the converger writes is called, see [`Setting::name`].
const MEMORY_LIMIT: &str = Setting::MemoryLimit(Limit::Unlimited).name();

/// No tier has a target yet.
pub(super) const NO_TARGETS: [(ScopeName, Option<Limit<Bytes>>); 2] =
    [(ScopeName::Burstable, None), (ScopeName::BestEffort, None)];

impl Hierarchy {
    /// Lowers the targets of tiers that have to make room for pods of this set, before anything is read or
    /// made for them: the tier is kept from growing. True when the reactor's levels have to follow.
    pub(in crate::agent::reconciler) fn make_room(
        &mut self,
        env: &Environment,
        set: &PodSet,
        levels: Levels,
    ) -> bool {
        // Of sums over pods nothing is lowered while pods may be missing.
        if self.converger.is_none() || !set.waiting.is_empty() {
            return false;
        }
        let limits = desired::tier_limits(&env.node, set.pods.iter().map(|p| &p.pod));
        let mut falls = false;
        for ((_, target), limit) in self.targets.iter_mut().zip(limits) {
            if target.is_some_and(|now| limit < now) {
                *target = Some(limit);
                falls = true;
            }
        }
        if falls && env.tree.hierarchies().is_on_v2(Controller::Memory) {
            // `memory.high` holds the tier without the reactor.
            self.aim(env, levels, set);
        }
        falls
    }

    /// Takes the tiers' targets from the tree as it ought to be.
    pub(super) fn set_targets(&mut self, desired: &[Desired], env: &Environment) {
        let target = |class| {
            let name = env.layout.kubepods.tier(class);
            let tier = desired.iter().find(|desired| desired.name == name)?;
            tier.settings.iter().find_map(|(setting, _)| match setting {
                Setting::MemoryLimit(limit) => Some(*limit),
                _ => None,
            })
        };
        self.targets = TIERS.map(|(class, scope)| (scope, target(class)));
    }

    /// Hands the converger the targets as they are now, and the reactor's levels.
    pub(in crate::agent::reconciler) fn aim(
        &self,
        env: &Environment,
        levels: Levels,
        set: &PodSet,
    ) {
        let Some(converger) = &self.converger else {
            return;
        };
        let layout = &env.layout;
        let aims = self.targets.iter().zip(TIERS);
        let aims = aims.map(|((scope, target), (class, _))| {
            let path = layout.path(&layout.kubepods.tier(class));
            let pods = || set.pods.iter().map(|pod| &pod.pod);
            let slows = may_be_slowed(class, pods());
            let alone = slowed_alone(class, pods()).filter(|_| !slows);
            Aim {
                scope: *scope,
                target: *target,
                level: levels.of_scope(*scope).map(Bytes),
                told: set.since.0,
                made: self.actor.made(&path),
                slows,
                pods: alone
                    .map(|pod| PodAim {
                        path: layout.path(&layout.kubepods.pod(class, &pod.uid)),
                        requests: limits::ranking_memory_request(pod),
                    })
                    .collect(),
                path,
            }
        });
        converger.aim(aims.collect());
    }

    pub(in crate::agent::reconciler) fn usage_may_have_fallen(&self) {
        if let Some(converger) = &self.converger {
            converger.look();
        }
    }

    /// Marks values in the tiers' files that the converger wrote as ours, for the drift tracker.
    pub(super) fn know_ours<'a>(
        &mut self,
        observed: impl IntoIterator<Item = (&'a CgroupName, &'a Observed)>,
        env: &Environment,
    ) {
        let (Some(converger), Some(drift)) = (&self.converger, &mut self.drift) else {
            return;
        };
        let Environment { layout, tree, .. } = env;
        for (name, observed) in observed {
            let Some(found) = observed.memory_limit.filter(|_| is_tier(layout, name)) else {
                continue;
            };
            let path = layout.path(name);
            // Another notice follows another change.
            let stands = || tree.memory_limit(&path).is_ok_and(|now| found == now);
            match converger.ours().whose(&path, found, Instant::now()) {
                Whose::Others { left } if stands() => drift.ours(name, left),
                Whose::Ours | Whose::Others { .. } => drift.ours(name, found),
            }
            // A writer of one of a tier's files may have written the others: systemd does.
            converger.look();
        }
    }

    /// Has the converger answer what others wrote to the tiers' limits, which it alone writes.
    pub(super) fn hand_over(&self, judgement: &Judgement, env: &Environment) {
        let Some(converger) = &self.converger else {
            return;
        };
        let layout = &env.layout;
        let deviations = judgement.admitted.iter().filter_map(|(_, d)| d.as_ref());
        for deviation in deviations {
            if let Value::Limit(found) = deviation.found
                && deviation.property == MEMORY_LIMIT
                && is_tier(layout, &deviation.cgroup)
            {
                converger.answer(&layout.path(&deviation.cgroup), found);
            }
        }
    }
}

/// What a report of the converger means.
pub(super) fn facts(report: Report, env: &Environment) -> Vec<Fact> {
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
            let (scope, at) = (gap.scope, gap.since);
            vec![Fact::Gap { scope, at, kind }]
        }
        Report::Fell(_) => vec![Fact::TierFell],
        Report::Closed {
            gap,
            usage,
            at,
            reclaimed,
            writes,
        } => {
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
            let scope = gap.scope;
            vec![Fact::TierFell, Fact::Gap { scope, at, kind }]
        }
        Report::Refused(message) => {
            tracing::warn!("{message}");
            let kind = EventKind::Degraded { message };
            env.published.event(clock::now_text(), None, kind);
            Vec::new()
        }
    }
}

fn is_tier(layout: &CgroupLayout, name: &CgroupName) -> bool {
    let mut tiers = TIERS.iter();
    tiers.any(|(class, _)| layout.kubepods.tier(*class) == *name)
}
