//! The thread: a look at every pod in each interval.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, TryRecvError},
    },
    time::Instant,
};

use podwarden_cgroup::{Reclaims, Tree};
use podwarden_policy::PodUid;

use super::{Given, Giver, pod::Pod};
use crate::config::ProactiveConfig;

pub(super) struct Thread {
    tree: Tree,
    how: Reclaims,
    config: ProactiveConfig,
    given: Arc<Given>,
    givers: Vec<Giver>,
    pods: HashMap<PodUid, Pod>,
    /// The error of a pod that was logged last.
    failed: Option<String>,
}

impl Thread {
    pub(super) fn new(
        tree: Tree,
        how: Reclaims,
        config: ProactiveConfig,
        given: Arc<Given>,
    ) -> Self {
        Self {
            tree,
            how,
            config,
            given,
            givers: Vec::new(),
            pods: HashMap::new(),
            failed: None,
        }
    }

    /// Runs until the channel closes.
    pub(super) fn run(mut self, messages: &Receiver<Vec<Giver>>) {
        let mut due = Instant::now() + self.config.interval;
        loop {
            let wait = due.saturating_duration_since(Instant::now());
            match messages.recv_timeout(wait) {
                Ok(givers) => self.aim(givers),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    if !self.round(messages) {
                        return;
                    }
                    due = Instant::now() + self.config.interval;
                }
            }
        }
    }

    fn aim(&mut self, givers: Vec<Giver>) {
        let same: Vec<_> = self.givers.iter().filter(|g| givers.contains(g)).collect();
        // A pod whose cgroup or class changed begins anew.
        self.pods
            .retain(|uid, _| same.iter().any(|giver| giver.uid == *uid));
        self.given.keep(&givers.iter().map(|g| &g.uid).collect());
        self.givers = givers;
    }

    /// False once it is to end; a message is taken between two pods, as each may take a while.
    fn round(&mut self, messages: &Receiver<Vec<Giver>>) -> bool {
        for giver in self.givers.clone() {
            match messages.try_recv() {
                Err(TryRecvError::Empty) => {}
                Ok(givers) => {
                    self.aim(givers);
                    return true;
                }
                Err(TryRecvError::Disconnected) => return false,
            }
            if let Err(error) = self.look(&giver) {
                self.pods.remove(&giver.uid);
                self.report(&giver, &error);
            }
        }
        true
    }

    fn look(&mut self, giver: &Giver) -> podwarden_cgroup::Result<()> {
        if !self.pods.contains_key(&giver.uid) {
            let pod = Pod::open(&self.tree, &giver.path, giver.only_cold)?;
            self.pods.insert(giver.uid.clone(), pod);
        }
        let Some(pod) = self.pods.get_mut(&giver.uid) else {
            return Ok(());
        };
        if let Some(look) = pod.look(&self.tree, self.how, &self.config)? {
            self.given
                .note(&giver.uid, look.verdict, look.bytes, look.refaults);
        }
        Ok(())
    }

    /// A pod that is gone is none; another error is logged where it is another than before.
    fn report(&mut self, giver: &Giver, error: &podwarden_cgroup::Error) {
        let text = error.to_string();
        if error.is_gone() || self.failed.as_ref() == Some(&text) {
            return;
        }
        tracing::warn!(uid = %giver.uid, %error, "page cache of a pod is not given back");
        self.failed = Some(text);
    }
}
