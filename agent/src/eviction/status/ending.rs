//! The pod's end in the container runtime, by workers of its own: a runtime that hangs keeps no status from
//! being written. Where teardown alone frees the pod's memory it waits for no kubelet: that one would stop the same
//! containers and unmount the same volumes, once it has seen the status.

use std::{pin::Pin, sync::Arc, time::Duration};

use jiff::Timestamp;

use super::{OnDegraded, queue::Shared, say, steps::forgetful};
use crate::{
    api::types::PodRef,
    eviction::pod_workers::{Job, JobError, Work},
};

/// Ends in the container runtime what is left of a pod, its sandbox last. Called again until it has done
/// so; a pod that is unknown to the runtime is success.
pub type Teardown = Arc<
    dyn Fn(PodRef, Start) -> Pin<Box<dyn Future<Output = Result<(), JobError>> + Send>>
        + Send
        + Sync,
>;

/// When a teardown begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Where there is a kubelet, once that had time to end the pod itself.
    AfterKubelet,
    /// The pod's memory comes back with it.
    AtOnce,
    /// The pod has so much time to end.
    Graceful(Duration),
}

/// Pods at a time: each may wait for its kubelet.
pub(super) const MOST: usize = 16;

pub(super) struct Ending {
    pub(super) queue: Shared,
    pub(super) teardown: Teardown,
    pub(super) on_degraded: OnDegraded,
}

impl Job for Ending {
    type Update = PodRef;

    async fn run(&self, uid: &str, work: Work<PodRef>) -> Result<(), JobError> {
        let (Work::Update(pod) | Work::Delete(pod)) = work;
        let own = self.queue.with(|queue| queue.of(uid));
        if own.is_empty() {
            // Its status was refused for good meanwhile: its kubelet starts the pod again.
            return Ok(());
        }
        let now = Timestamp::now();
        let left = own.iter().map(|(_, entry)| entry.time_left(now)).max();
        let left = left.filter(|left| !left.is_zero());
        let start = match own.iter().any(|(_, entry)| entry.frees_by_teardown) {
            _ if let Some(left) = left => Start::Graceful(left),
            true => Start::AtOnce,
            false => Start::AfterKubelet,
        };
        (self.teardown)(pod, start).await?;
        let own = self.queue.with(|queue| queue.of(uid));
        for (number, _) in own.into_iter().filter(|(_, entry)| entry.is_whole()) {
            if let Err(error) = self.queue.with(|queue| queue.done(number)) {
                say(&self.on_degraded, forgetful(&error));
            }
        }
        Ok(())
    }

    fn failed(&self, uid: &str, problem: &str) {
        say(
            &self.on_degraded,
            format!("delivery for the eviction of pod {uid} waits: {problem}"),
        );
    }
}
