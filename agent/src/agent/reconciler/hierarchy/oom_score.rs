//! `oom_score_adj` of the processes of containers: where podwarden owns the tree and enforces.

use std::time::{Duration, Instant};

use super::{Context, Fact, Hierarchy, foreign_writes::degraded};
use crate::{config::Mode, hierarchy::oom_score::score_of};
use podwarden_cgroup::CgroupPath;
use podwarden_policy::{PodUid, plan::Ownership};

/// Time between two passes over all containers, for missed notices.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Reported once.
const REFUSED: &str = "processes of Guaranteed and Burstable pods keep a higher oom_score_adj than they \
     ought to have, so that the kernel may kill them earlier (lowering it takes CAP_SYS_RESOURCE)";

impl Hierarchy {
    /// A container's cgroup exists: its processes are followed.
    pub(in crate::agent::reconciler) fn container_appeared(
        &mut self,
        cx: Context<'_>,
        path: &CgroupPath,
        uid: &PodUid,
        id: &str,
    ) -> Vec<Fact> {
        let config = &cx.env.config;
        if config.mode != Mode::Enforce || config.ownership != Ownership::Own {
            return Vec::new();
        }
        self.oom_scores.appeared(path, uid, id);
        // The watch before the look, so that no process comes in between.
        let watched = match &mut self.drift {
            Some(drift) => drift.watch_container(&cx.env.tree, path),
            None => Ok(()),
        };
        let unwatched = watched.err().map(|error| degraded(&error));
        unwatched.into_iter().chain(self.settle(path, cx)).collect()
    }

    pub(in crate::agent::reconciler) fn container_gone(&mut self, path: &CgroupPath) {
        self.oom_scores.gone(path);
        if let Some(drift) = &mut self.drift {
            drift.unwatch_container(path);
        }
    }

    /// Gives the processes of a container their value, if its pod is known.
    pub(super) fn settle(&mut self, path: &CgroupPath, cx: Context<'_>) -> Option<Fact> {
        let Context { env, known, .. } = cx;
        let (uid, id) = self.oom_scores.owner(path)?;
        // The runtime gives a sandbox a value of its own (the kubelet's -998).
        if known.identities.is_sandbox(uid, id) {
            return None;
        }
        let set = known.sources.borrow();
        let pod = set.pods.iter().find(|p| p.pod.uid == *uid)?;
        let name = known.identities.container(uid, id).unwrap_or(id);
        let score = score_of(&pod.pod, name, &env.node)?;
        drop(set);
        match self.oom_scores.settle(&env.tree, path, score) {
            Ok(settled) => {
                if settled.written > 0 {
                    tracing::debug!(cgroup = %path, score, settled.written, "oom_score_adj");
                }
                (settled.refused > 0).then(|| Fact::Degraded(REFUSED.to_owned()))
            }
            Err(error) => {
                tracing::debug!(cgroup = %path, %error, "its processes are not known");
                None
            }
        }
    }

    /// Looks at every container once in a while.
    pub(super) fn settle_due(&mut self, now: Instant, cx: Context<'_>) -> Vec<Fact> {
        let last = self.scores_settled;
        let due = last.is_none_or(|at| now.duration_since(at) >= LOOK_AGAIN);
        if due { self.settle_all(cx) } else { Vec::new() }
    }

    /// Looks at every container, at once when pods became known.
    pub(in crate::agent::reconciler) fn settle_all(&mut self, cx: Context<'_>) -> Vec<Fact> {
        self.scores_settled = Some(Instant::now());
        let containers = self.oom_scores.containers();
        let all: Vec<CgroupPath> = containers.map(|(path, ..)| path.to_owned()).collect();
        all.iter()
            .filter_map(|path| self.settle(path, cx))
            .collect()
    }
}
