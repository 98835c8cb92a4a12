//! Part: the pods of the sources, their identities, and the runtime state.

use std::{collections::BTreeSet, sync::Arc};

use podwarden_policy::{PodUid, colocation::batch_pod, name::parse_container};
use tokio::sync::watch;

use super::{Environment, Fact};
use crate::{
    api::types::{PodRef, RuntimeStats},
    pods::runtime::Follower,
    pods::{Identities, PodSet, SourceError, SourcedPod},
};

pub(in crate::agent) struct Pods {
    sources: watch::Receiver<Arc<PodSet>>,
    /// False once the feed has ended: its last set stays in force.
    open: bool,
    /// The problems of pods that have been reported.
    reported: Vec<SourceError>,
    identities: Identities,
    /// `None` where no runtime is configured.
    runtime: Option<Follower>,
}

/// What is ready.
#[derive(Clone, Copy)]
pub(super) enum Wake {
    Sources,
    Runtime,
}

/// What the other parts may read.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) sources: &'a watch::Receiver<Arc<PodSet>>,
    pub(super) identities: &'a Identities,
}

impl Known<'_> {
    pub(super) fn set(&self) -> Arc<PodSet> {
        Arc::clone(&self.sources.borrow())
    }
}

impl Pods {
    pub(in crate::agent) fn new(
        sources: watch::Receiver<Arc<PodSet>>,
        runtime: Option<Follower>,
    ) -> Self {
        Self {
            sources,
            open: true,
            reported: Vec::new(),
            identities: Identities::default(),
            runtime,
        }
    }

    /// Cancel-safe. The sources before the runtime.
    pub(super) async fn ready(&mut self) -> Wake {
        let runtime = async {
            match &mut self.runtime {
                Some(runtime) => runtime.changed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            changed = self.sources.changed(), if self.open => {
                self.open = changed.is_ok();
                Wake::Sources
            }
            () = runtime => Wake::Runtime,
        }
    }

    pub(super) fn step(&mut self, wake: Wake, env: &Environment) -> Vec<Fact> {
        match wake {
            Wake::Sources => {
                self.take_set(env);
                vec![Fact::PodsChanged]
            }
            Wake::Runtime => self.take_runtime(env),
        }
    }

    /// Takes the set that the sources have now, and reports problems that are new.
    pub(super) fn take_set(&mut self, env: &Environment) {
        let set = Arc::clone(&self.sources.borrow_and_update());
        let reported = std::mem::replace(&mut self.reported, set.errors.clone());
        for error in set.errors.iter().filter(|error| !reported.contains(error)) {
            tracing::warn!("{error}");
            env.published.degraded(error.to_string());
        }
        self.identities.learn(&set);
    }

    /// The runtime state changed, or the runtime does not answer any more.
    fn take_runtime(&mut self, env: &Environment) -> Vec<Fact> {
        let Some(runtime) = &self.runtime else {
            return Vec::new();
        };
        let known = runtime.names().known();
        let problem_changed = known.problem != self.identities.runtime().problem;
        self.identities.learn_runtime(known);
        // The pass over the tree shows the problem among the notices, and writes to containers that have names now.
        let named = env.config.colocation.reclaimed.enforce;
        let reconcile = (problem_changed || named).then_some(Fact::Reconcile);
        reconcile.into_iter().chain([Fact::Arm]).collect()
    }

    /// A container's cgroup exists: looks for it in the runtime. True where its last list had it.
    pub(super) fn container_appeared(&self, uid: &PodUid, id: &str, env: &Environment) -> bool {
        let Some(runtime) = &self.runtime else {
            return false;
        };
        // What CRI-O has beside its containers is none.
        if parse_container(id).is_none() {
            return false;
        }
        let names = runtime.names();
        names.seen(id, self.waits_for_name(uid, env));
        names.known().state.container(uid, id).is_some()
    }

    /// True where a container's share of reclaimed resources depends on its name.
    fn waits_for_name(&self, uid: &PodUid, env: &Environment) -> bool {
        let set = self.sources.borrow();
        let of_several = |p: &&SourcedPod| p.pod.uid == *uid && p.pod.containers.len() > 1;
        let pod = set.pods.iter().find(of_several);
        env.config.colocation.reclaimed.enforce
            && pod.is_some_and(|p| batch_pod::tier(&p.pod).is_some())
    }

    /// The cgroup of a pod is gone: its identity goes too unless a source still has the pod.
    pub(super) fn cgroup_gone(&mut self, uid: &PodUid) {
        if !self.sources.borrow().mentions(uid) {
            self.identities.forget(uid);
        }
    }

    pub(super) fn set(&self) -> Arc<PodSet> {
        self.known().set()
    }

    pub(super) fn known(&self) -> Known<'_> {
        Known {
            sources: &self.sources,
            identities: &self.identities,
        }
    }

    /// Name and namespace of a pod; the uid for a pod that only its cgroup shows.
    pub(super) fn identity(&self, uid: &PodUid) -> PodRef {
        self.identities.get(uid).pod
    }

    /// A container's name by its id, where a source or the runtime has it.
    pub(super) fn container_name(&self, uid: &PodUid, id: &str) -> Option<&str> {
        self.identities.container(uid, id)
    }

    /// The runtime's problem, for the notices.
    pub(super) fn runtime_problem(&self) -> BTreeSet<String> {
        let problem = self.identities.runtime().problem.as_ref();
        let sentence = problem.map(|problem| {
            format!(
                "containers keep their ids for names, sandboxes are guessed from their content, and evicted pods \
                 keep their network until the runtime answers ({problem})"
            )
        });
        sentence.into_iter().collect()
    }

    /// The runtime as the API shows it.
    pub(super) fn runtime_stats(&self) -> Option<RuntimeStats> {
        let endpoint = self.runtime.as_ref().map(Follower::client)?.socket();
        let known = self.identities.runtime();
        Some(RuntimeStats {
            endpoint: endpoint.display().to_string(),
            name: known.version.as_ref().map(|v| v.runtime_name.clone()),
            version: known.version.as_ref().map(|v| v.runtime_version.clone()),
            problem: known.problem.clone(),
        })
    }
}
