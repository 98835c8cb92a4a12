//! Foreign writes: what was noticed is looked at, put right and told.

use std::collections::BTreeMap;

use podwarden_cgroup::Tree;
use podwarden_policy::{desired::Desired, drift::Judgement, name, plan::Action};

use super::{Parts, SlowLoop};
use crate::{
    api::types::EventKind,
    base::{clock, error},
    hierarchy::{
        act::{Actor, Performed},
        drift::{Drift, Finding, WatchError},
        sense::{self, Naming},
    },
};

/// Of the actor: a pass over the whole tree, or what undoes a foreign write.
type Perform = fn(&mut Actor, &Tree, &Naming, &[Action]) -> Performed;

impl SlowLoop {
    /// Carries out what a judgement admits, also what is the converger's to write; see
    /// [`Drift::carry_out`].
    pub(super) fn carry_out(
        &mut self,
        judgement: Judgement,
        perform: Perform,
    ) -> (Performed, Vec<Finding>) {
        self.hand_over(&judgement);
        let Parts {
            tree,
            naming,
            actor,
            ..
        } = &mut self.parts;
        let mut perform = |actions: &[Action]| perform(actor, tree, naming, actions);
        if let Some(drift) = &mut self.drift {
            return drift.carry_out(judgement, perform);
        }
        let (actions, _): (Vec<_>, Vec<_>) = judgement.admitted.into_iter().unzip();
        (perform(&actions), Vec::new())
    }

    /// Begins to notice foreign writes.
    pub(super) fn notice_writes(&mut self) {
        let kubepods = self.parts.naming.kubepods.clone();
        self.drift = Some(match Drift::new(kubepods.clone()) {
            Ok(drift) => drift,
            Err(error) => {
                self.unwatched(&error);
                Drift::unwatched(kubepods)
            }
        });
    }

    /// The tree as it ought to be from now on.
    pub(super) fn follow(&mut self, desired: Vec<Desired>) {
        let Some(drift) = &mut self.drift else {
            return;
        };
        let (tree, naming) = (&self.parts.tree, &self.parts.naming);
        if let Err(error) = drift.follow(tree, naming, desired) {
            self.unwatched(&error);
        }
    }

    pub(super) fn take_notices(&mut self) {
        let Some(drift) = &mut self.drift else {
            return;
        };
        self.stale |= drift.take_notices();
        for rel in drift.entered() {
            self.settle(&rel);
        }
        let Some(drift) = &mut self.drift else {
            return;
        };
        let Parts {
            tree,
            naming,
            actor,
            ..
        } = &mut self.parts;
        let mut observed = BTreeMap::new();
        for name in drift.to_look_at() {
            let rel = naming.rel(&name);
            if tree.id(&rel).is_ok() {
                let found = sense::observe(tree, &rel, actor.made(&rel));
                observed.insert(name, found);
            } else {
                drift.gone(&name);
            }
        }
        self.know_ours(&observed);
        let Some(drift) = &mut self.drift else {
            return;
        };
        let judgement = drift.judge(&observed);
        if judgement == Judgement::default() {
            return;
        }
        let (_, findings) = self.carry_out(judgement, Actor::correct);
        self.tell(findings);
    }

    /// One log line and one event each.
    pub(super) fn tell(&self, findings: Vec<Finding>) {
        for (cgroup, kind) in findings {
            match &kind {
                EventKind::DriftContested {
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
                EventKind::DriftSettled {
                    cgroup,
                    property,
                    corrections,
                } => tracing::info!(cgroup, property, corrections, "left alone again"),
                EventKind::Drift {
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
            let uid = cgroup.last().and_then(name::parse_pod).map(|(_, uid)| uid);
            let pod = uid.map(|uid| self.identities.get(uid.as_str()).pod);
            self.parts.published.event(clock::now_text(), pod, kind);
        }
    }

    /// Said once; the timer still finds what is not noticed.
    pub(super) fn unwatched(&mut self, error: &WatchError) {
        self.degraded(error::chain(error));
    }

    /// A capability that turns out to be missing; said once.
    pub(super) fn degraded(&mut self, message: String) {
        let degradations = &mut self.parts.stats.degradations;
        if degradations.contains(&message) {
            return;
        }
        tracing::warn!("{message}");
        degradations.push(message.clone());
        self.parts.published.degraded(message);
    }
}
