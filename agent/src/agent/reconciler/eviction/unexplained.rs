//! Pods' cgroups that no source explains: looked for, and said.

use std::time::Instant;

use super::EvictionManager;
use crate::agent::{
    arm::unexplained::{Explainers, are_in_trouble},
    reconciler::{Context, Environment},
};

impl EvictionManager {
    /// Looks for pods' cgroups that no source explains; returns the degradation.
    pub(in crate::agent::reconciler) fn look_for_unexplained(
        &mut self,
        cx: Context<'_>,
    ) -> Option<String> {
        let (env, known, entries) = (cx.env, cx.known, cx.entries);
        let now = Instant::now();
        let explainers = Explainers {
            set: &known.set(),
            sources: &env.published.sources(),
            ownership: env.config.ownership,
            runtime: (env.config.container_runtime_endpoint.as_ref())
                .map(|_| known.identities.runtime()),
        };
        self.unexplained.look(entries, explainers, now);
        self.unexplained.notice(now)
    }

    /// Whether it is time for another look.
    pub(super) fn unexplained_are_due(&self, env: &Environment, now: Instant) -> bool {
        let trouble = are_in_trouble(&env.published.sources(), env.config.ownership);
        self.unexplained.is_outdated(trouble)
            || self.unexplained.due(now).is_some_and(|due| due.is_zero())
    }

    /// Pods' cgroups that no source explains.
    pub(in crate::agent::reconciler) fn unexplained(&self) -> usize {
        self.unexplained.count()
    }
}
