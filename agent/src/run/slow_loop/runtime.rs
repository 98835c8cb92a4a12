//! The container runtime: what it tells, and what it is asked to take down.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use podwarden_policy::name::parse_container;
use tokio::task::{AbortHandle, JoinSet};

use super::SlowLoop;
use crate::{
    api::RuntimeStats,
    config::Mode,
    runtime::{Follower, teardown},
};

/// How long pods that are being taken down keep the agent from ending: a runtime whose caller goes away
/// gives up, and leaves a network half removed.
const LAST: Duration = Duration::from_secs(5);

/// Pods that are being taken down; all of it ends with this.
#[derive(Debug, Default)]
pub(super) struct Teardowns {
    tasks: JoinSet<()>,
    by_uid: HashMap<String, AbortHandle>,
}

impl Teardowns {
    /// Begins with a pod; anew where that is under way, since what it did not list may run by now.
    fn begin(&mut self, uid: &str, work: impl Future<Output = ()> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        self.by_uid.retain(|_, task| !task.is_finished());
        let task = self.tasks.spawn(work);
        if let Some(before) = self.by_uid.insert(uid.to_owned(), task) {
            before.abort();
        }
    }

    /// Waits until all is done; the pods that are not after `limit`.
    async fn end(&mut self, limit: Duration) -> Vec<String> {
        let all = async { while self.tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(limit, all).await;
        let left = self.by_uid.drain().filter(|(_, task)| !task.is_finished());
        left.map(|(uid, _)| uid).collect()
    }
}

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
        self.rearm |= runtime.known().truth.container(uid, id).is_some();
    }

    /// Takes down what was evicted. The processes are dead; the sandbox and the network are left.
    pub(super) fn tear_down_evicted(&mut self) {
        let ended = self.evictions.take_ended();
        let Some(runtime) = &self.parts.runtime else {
            return;
        };
        if self.parts.config.mode != Mode::Enforce {
            return;
        }
        for uid in ended {
            let client = runtime.client().clone();
            let pod = self.identities.get(&uid).pod;
            self.teardowns.begin(&uid, async move {
                let done = teardown(&client, &pod.uid, Duration::ZERO).await;
                tracing::info!(
                    pod = pod.name,
                    namespace = pod.namespace,
                    uid = pod.uid,
                    containers = done.containers,
                    sandboxes = done.ready + done.not_ready,
                    tries = done.tries,
                    "torn down"
                );
            });
        }
    }

    /// Before the agent ends.
    pub(in crate::run) async fn end_teardowns(&mut self) {
        for uid in self.teardowns.end(LAST).await {
            tracing::warn!(uid, "the pod is not torn down, and the agent ends");
        }
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

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    use super::*;

    #[tokio::test]
    async fn a_pod_that_is_begun_anew_is_done_once() {
        let mut teardowns = Teardowns::default();
        let done = Arc::new(AtomicU32::new(0));
        for uid in ["a", "a", "b"] {
            let done = Arc::clone(&done);
            teardowns.begin(uid, async move {
                tokio::task::yield_now().await;
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert!(teardowns.end(LAST).await.is_empty());
        assert_eq!(done.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn the_end_does_not_wait_for_ever() {
        let mut teardowns = Teardowns::default();
        teardowns.begin("done", async {});
        teardowns.begin("stuck", std::future::pending());
        let left = teardowns.end(Duration::from_millis(50)).await;
        assert_eq!(left, ["stuck"]);
    }
}
