//! What the container runtime tells.

use std::collections::BTreeSet;

use podwarden_policy::name::parse_container;

use super::SlowLoop;
use crate::{api::types::RuntimeStats, runtime::Follower};

impl SlowLoop {
    /// The runtime has told more, or has ceased to answer.
    pub(super) fn take_runtime(&mut self) {
        let Some(runtime) = &self.parts.runtime else {
            return;
        };
        let known = runtime.known();
        // What is wrong with it is said with what else is not as it should be.
        self.stale |= known.problem != self.identities.runtime().problem;
        self.identities.learn_runtime(known);
        self.rearm = true;
    }

    /// A container's cgroup is there: the runtime knows whose.
    pub(super) fn seek_container(&mut self, uid: &str, id: &str) {
        let Some(runtime) = &self.parts.runtime else {
            return;
        };
        // What CRI-O has beside its containers is none.
        if parse_container(id).is_none() {
            return;
        }
        runtime.seen(id);
        // What was told before its cgroup was made is of use from now on.
        self.rearm |= runtime.known().state.container(uid, id).is_some();
    }

    /// What is wrong with the runtime, for the notices.
    pub(super) fn runtime_problem(&self) -> BTreeSet<String> {
        let problem = self.identities.runtime().problem.as_ref();
        let sentence = problem.map(|problem| {
            format!(
                "containers keep their ids for names, sandboxes are told by their looks, and evicted pods \
                 keep their network until the runtime answers ({problem})"
            )
        });
        sentence.into_iter().collect()
    }

    /// For the API.
    pub(super) fn runtime_stats(&self) -> Option<RuntimeStats> {
        let endpoint = self.parts.runtime.as_ref().map(Follower::client)?.socket();
        let known = self.identities.runtime();
        Some(RuntimeStats {
            endpoint: endpoint.display().to_string(),
            name: known.version.as_ref().map(|v| v.runtime_name.clone()),
            version: known.version.as_ref().map(|v| v.runtime_version.clone()),
            problem: known.problem.clone(),
        })
    }
}

/// Completes when the runtime has told more; never without one.
pub(super) async fn changed(runtime: Option<&mut Follower>) {
    match runtime {
        Some(runtime) => runtime.changed().await,
        None => std::future::pending().await,
    }
}
