//! Foreign writes: noticed, judged, put right and reported.

use std::collections::BTreeMap;

use podwarden_cgroup::{CgroupLayout, Tree};
use podwarden_policy::{desired::Desired, drift::Judgement, plan::Action, settings::Observed};

use super::{Colocation, Context, Environment, Fact, Hierarchy};
use crate::{
    api::types::EventKind,
    base::error,
    config::Mode,
    hierarchy::{
        act::{Actor, Performed},
        drift::{Drift, Finding, WatchError},
    },
};

/// Of the actor: a pass over the whole tree, or what undoes a foreign write.
type Perform = fn(&mut Actor, &Tree, &CgroupLayout, &[Action]) -> Performed;

impl Hierarchy {
    /// Begins to notice foreign writes, in enforce mode.
    pub(in crate::agent::reconciler) fn watch_writes(&mut self, env: &Environment) -> Option<Fact> {
        if env.config.mode != Mode::Enforce {
            return None;
        }
        let kubepods = &env.layout.kubepods;
        let (drift, unwatched) = match Drift::new(kubepods.clone()) {
            Ok(drift) => (drift, None),
            Err(error) => (Drift::unwatched(kubepods.clone()), Some(degraded(&error))),
        };
        self.drift = Some(drift);
        unwatched
    }

    /// Executes the admitted corrections, and hands the converger's own writes to it; see
    /// [`Drift::carry_out`].
    pub(super) fn carry_out(
        &mut self,
        judgement: Judgement,
        env: &Environment,
        perform: Perform,
    ) -> (Performed, Vec<Finding>) {
        self.hand_over(&judgement, env);
        let actor = &mut self.actor;
        let mut perform = |actions: &[Action]| perform(actor, &env.tree, &env.layout, actions);
        if let Some(drift) = &mut self.drift {
            return drift.carry_out(judgement, perform);
        }
        let (actions, _): (Vec<_>, Vec<_>) = judgement.admitted.into_iter().unzip();
        (perform(&actions), Vec::new())
    }

    /// Takes the tree as it ought to be from now on.
    pub(super) fn follow(&mut self, desired: Vec<Desired>, env: &Environment) -> Vec<Fact> {
        let Some(drift) = &mut self.drift else {
            return Vec::new();
        };
        let followed = drift.follow(&env.tree, &env.layout, desired);
        followed.err().iter().map(degraded).collect()
    }

    pub(super) fn take_foreign_writes(
        &mut self,
        cx: Context<'_>,
        colocation: &Colocation,
    ) -> Vec<Fact> {
        let mut facts = Vec::new();
        let Some(drift) = &mut self.drift else {
            return facts;
        };
        if drift.take_notices() {
            facts.push(Fact::Reconcile);
        }
        for path in drift.entered() {
            facts.extend(self.settle(&path, cx));
        }
        let Some(drift) = &mut self.drift else {
            return facts;
        };
        let Environment { tree, layout, .. } = cx.env;
        let mut observed = BTreeMap::new();
        for name in drift.take_noticed() {
            let path = layout.path(&name);
            if tree.id(&path).is_ok() {
                let found = Observed {
                    ours: self.actor.made(&path),
                    ..tree.read(&path)
                };
                observed.insert(name, found);
            } else {
                drift.gone(&name);
            }
        }
        colocation.mask(&mut observed, cx.env);
        self.know_ours(&observed, cx.env);
        let judgement = self.drift.as_mut().map(|drift| drift.judge(&observed));
        let judgement = judgement.unwrap_or_default();
        if judgement != Judgement::default() {
            let (_, findings) = self.carry_out(judgement, cx.env, Actor::correct);
            facts.extend(self::facts(findings));
        }
        facts
    }
}

/// Logs each.
pub(super) fn facts(findings: Vec<Finding>) -> impl Iterator<Item = Fact> {
    findings.into_iter().map(|finding| {
        match &finding.1 {
            EventKind::ForeignWriteContested {
                cgroup,
                property,
                found,
                wanted,
            } => tracing::warn!(
                cgroup,
                property,
                found,
                wanted,
                "another keeps writing this; it is corrected at growing intervals"
            ),
            EventKind::ForeignWriteSettled {
                cgroup,
                property,
                corrections,
            } => tracing::info!(cgroup, property, corrections, "left alone again"),
            EventKind::ForeignWrite {
                cgroup,
                property,
                found,
                wanted,
                corrected,
            } => tracing::info!(
                cgroup,
                property,
                found,
                wanted,
                corrected,
                "another wrote this"
            ),
            _ => {}
        }
        Fact::ForeignWrite(finding)
    })
}

/// Passes over the tree find unnoticed writes.
pub(super) fn degraded(error: &WatchError) -> Fact {
    Fact::Degraded(error::chain(error))
}
