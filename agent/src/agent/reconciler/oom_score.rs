//! `oom_score_adj` of the processes of containers: where podwarden owns the tree and enforces.

use std::time::{Duration, Instant};

use super::SlowLoop;
use crate::{
    config::{Mode, Ownership},
    hierarchy::oom_score::score_of,
};

/// How often all containers are looked at, for what was not noticed.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Said once.
const REFUSED: &str = "processes of Guaranteed and Burstable pods keep a higher oom_score_adj than they \
     ought to have, so that the kernel may kill them earlier (lowering it takes CAP_SYS_RESOURCE)";

impl SlowLoop {
    fn scores_are_ours(&self) -> bool {
        let config = &self.parts.config;
        config.mode == Mode::Enforce && config.ownership == Ownership::Own
    }

    /// A container's cgroup is there: its processes are followed.
    pub(super) fn container_appeared(&mut self, uid: &str, id: &str) {
        if !self.scores_are_ours() {
            return;
        }
        let pods = self.parts.accounting.index.pods();
        let Some(rel) = pods
            .get(uid)
            .and_then(|pod| pod.containers.get(id))
            .map(|container| container.rel.clone())
        else {
            return;
        };
        self.oom_scores.appeared(&rel, uid, id);
        // The watch before the look, so that no process comes in between.
        let tree = &self.parts.tree;
        let watched = match &mut self.drift {
            Some(drift) => drift.watch_container(tree, &rel),
            None => Ok(()),
        };
        if let Err(error) = watched {
            self.unwatched(&error);
        }
        self.settle(&rel);
    }

    /// Its cgroup is gone.
    pub(super) fn container_gone(&mut self, rel: &str) {
        self.oom_scores.gone(rel);
        if let Some(drift) = &mut self.drift {
            drift.unwatch_container(rel);
        }
    }

    /// Gives the processes of a container their value, where its pod is known.
    pub(super) fn settle(&mut self, rel: &str) {
        let parts = &mut self.parts;
        let Some((uid, id)) = self.oom_scores.owner(rel) else {
            return;
        };
        // The runtime gives a sandbox a value of its own (the kubelet's -998).
        if self.identities.is_sandbox(uid, id) {
            return;
        }
        let pods = parts.pods.borrow();
        let pod = pods.pods.iter().find(|p| p.pod.uid.as_str() == uid);
        let name = self.identities.container(uid, id).unwrap_or(id);
        let Some(score) = pod.and_then(|p| score_of(&p.pod, name, &parts.node)) else {
            return;
        };
        drop(pods);
        match self.oom_scores.settle(&parts.tree, rel, score) {
            Ok(settled) => {
                if settled.written > 0 {
                    tracing::debug!(cgroup = rel, score, settled.written, "oom_score_adj");
                }
                if settled.refused > 0 {
                    self.degraded(REFUSED.to_owned());
                }
            }
            Err(error) => tracing::debug!(cgroup = rel, %error, "its processes are not known"),
        }
    }

    /// Looks at every container once in a while, and at once when pods became known.
    pub(super) fn settle_all(&mut self, pods_changed: bool) {
        let now = Instant::now();
        let due = self
            .scores_settled
            .is_none_or(|at| now.duration_since(at) >= LOOK_AGAIN);
        if !(due || pods_changed) {
            return;
        }
        self.scores_settled = Some(now);
        let all: Vec<String> = self
            .oom_scores
            .containers()
            .map(|(rel, ..)| rel.to_owned())
            .collect();
        for rel in all {
            self.settle(&rel);
        }
    }
}
