//! The thread: waits until it is told something or a container could have reached its quota.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use podwarden_policy::colocation::burst::NodeState;
use tokio::sync::mpsc::UnboundedSender;

use super::{Aim, Parts, Protected, Report, pod::Pod};
use crate::{
    colocation::{found::Originals, latest::Latest, pool::Pool, undo},
    hierarchy::converge::guard::Guard,
    kernel::realtime,
};

pub(super) struct Thread {
    parts: Parts,
    tell: UnboundedSender<Report>,
    originals: Originals,
    aim: Aim,
    pods: Vec<Pod>,
    /// Pods that are not protected any more and could not be put back yet.
    leaving: Vec<Pod>,
    pool: Pool,
    /// The pool's state, for others to read.
    state: Arc<Latest<Option<NodeState>>>,
    /// Puts everything back when the agent is killed.
    guard: Option<Guard>,
}

impl Thread {
    pub(super) fn new(
        parts: Parts,
        tell: UnboundedSender<Report>,
        state: Arc<Latest<Option<NodeState>>>,
    ) -> Self {
        Self {
            originals: Originals::open(parts.found.clone()),
            parts,
            tell,
            aim: Aim::default(),
            pods: Vec::new(),
            leaving: Vec::new(),
            pool: Pool::default(),
            state,
            guard: None,
        }
    }

    /// Runs until the channel closes; then puts everything back.
    pub(super) fn run(mut self, waiting: &Receiver<Aim>) {
        if self.parts.real_time && !realtime::make_fifo() {
            tracing::info!(
                "SCHED_FIFO was refused: on a busy node a throttled pod is relieved late"
            );
        }
        loop {
            let message = match self.due(Instant::now()) {
                None => waiting.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(wait) => waiting.recv_timeout(wait),
            };
            match message {
                Ok(aim) => self.take(aim),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.look();
        }
        self.end();
    }

    /// How long to wait; `None` without a pod to look at.
    fn due(&self, now: Instant) -> Option<Duration> {
        let pods = self.pods.iter().map(|pod| pod.due(now)).min()?;
        Some(pods.min(self.pool.due(now)))
    }

    /// Another list of pods: those that are not in it any more get back what was found.
    fn take(&mut self, aim: Aim) {
        let (parts, originals) = (&self.parts, &mut self.originals);
        let now = Instant::now();
        let mut protected = aim.protected.clone();
        for mut pod in std::mem::take(&mut self.pods) {
            let is_it = |one: &Protected| one.path == pod.protected.path;
            match protected.iter().position(is_it) {
                Some(at) => {
                    pod.update(parts, originals, protected.swap_remove(at), now);
                    self.pods.push(pod);
                }
                None => self.leaving.push(pod),
            }
        }
        self.leaving
            .retain_mut(|pod| !pod.restore(parts, originals));
        for protected in protected {
            match Pod::open(parts, protected, now) {
                Ok(pod) => self.pods.push(pod),
                Err(error) if error.is_gone() => {}
                Err(error) => tracing::warn!(%error, "a pod's CPU quota cannot be followed"),
            }
        }
        if parts.enforce && !self.pods.is_empty() && self.guard.is_none() {
            self.guard = undo::guard(&parts.cgroup_root, &parts.found);
        }
        self.aim = aim;
    }

    fn look(&mut self) {
        let now = Instant::now();
        let (parts, originals) = (&self.parts, &mut self.originals);
        if self.pods.is_empty() {
            return;
        }
        if self.pool.due(now).is_zero() {
            let cpus = (parts.cpus, self.aim.reserved);
            let percent = parts.config.share_pool_percent;
            (self.pool).look(&parts.tree, &self.aim.outside_pool, cpus, percent);
        }
        let state: NodeState = self.pool.state();
        self.state.set(Some(state));
        let mut tell = |report| {
            // An error says that the reconciler has ended.
            let _ = self.tell.send(report);
        };
        let unfollowed = self.pods.extract_if(.., |pod| {
            if !pod.due(now).is_zero() {
                return false;
            }
            let looked = pod.look(parts, originals, state, &mut tell);
            if let Err(error) = looked.as_ref()
                && !error.is_gone()
            {
                tracing::warn!(%error, "a pod's CPU quota is not followed any more");
            }
            looked.is_err()
        });
        self.leaving.extend(unfollowed);
        self.leaving
            .retain_mut(|pod| !pod.restore(parts, originals));
    }

    fn end(mut self) {
        let mut whole = true;
        for pod in self.pods.iter_mut().chain(&mut self.leaving) {
            whole &= pod.restore(&self.parts, &mut self.originals);
        }
        if whole && self.parts.enforce {
            self.originals.close();
        }
        if let Some(guard) = self.guard {
            guard.dismiss();
        }
    }
}
