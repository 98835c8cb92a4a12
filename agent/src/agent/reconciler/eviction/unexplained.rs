//! Pods' cgroups that no source explains: looked for, and said.

use std::time::Instant;

use super::EvictionManager;
use crate::agent::{arm::unexplained::Explainers, reconciler::Context};

impl EvictionManager {
    /// Looks for pods' cgroups that no source explains; returns the degradation.
    pub(in crate::agent::reconciler) fn look_for_unexplained(
        &mut self,
        cx: Context<'_>,
    ) -> Option<String> {
        let Context {
            env,
            known,
            entries,
        } = cx;
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

    /// Pods' cgroups that no source explains.
    pub(in crate::agent::reconciler) fn unexplained(&self) -> usize {
        self.unexplained.count()
    }
}
