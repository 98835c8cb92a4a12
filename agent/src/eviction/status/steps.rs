//! What is done after an eviction, in this order: the Event, the mark, and the pod's end in the container
//! runtime. Marked first, or the kubelet would start again what the runtime has stopped.
//!
//! Every step bears being repeated: the Event's name is the entry's, a status is written only to the
//! object that was looked at just before, in the version that it had then, and not if it says already that
//! the pod has ended.

use std::{pin::Pin, sync::Arc};

use tokio::sync::{mpsc, watch};

use super::{
    OnDegraded,
    deliveries::DeliveryCounts,
    entry::{About, Entry, NODE_KEY},
    object::{Found, Object},
    queue::Shared,
    say,
    server::{EVICT, PATCH, Refusal, Server, TELL},
    wording,
};
use crate::{
    api::types::PodRef,
    config::EvictionStatusConfig,
    eviction::pod_workers::{Job, JobError, Work},
    pods::{PodSet, Source},
};

/// Ends in the container runtime what is left of a pod, its sandbox last. Called again until it has done
/// so; a pod that is unknown to the runtime is success.
pub type Teardown =
    Arc<dyn Fn(PodRef) -> Pin<Box<dyn Future<Output = Result<(), JobError>> + Send>> + Send + Sync>;

/// An object that changes so often within one try is tried again later.
const TRIES: u32 = 3;

/// See the module's text.
pub(super) struct Steps {
    pub(super) queue: Shared,
    /// `None` without an API server.
    pub(super) server: Option<Server>,
    pub(super) how: EvictionStatusConfig,
    pub(super) node_name: String,
    pub(super) pods: watch::Receiver<Arc<PodSet>>,
    pub(super) teardown: Option<Teardown>,
    pub(super) on_degraded: OnDegraded,
    pub(super) deliveries: Arc<DeliveryCounts>,
    /// Delivery of marks that were written to a status.
    pub(super) written: mpsc::UnboundedSender<Entry>,
}

/// What became of an entry.
enum Delivery {
    /// Everything was said.
    All,
    /// The same, and its status was written for that.
    Written,
    /// It has no object any more, as the sentence says.
    Moot(String),
}

impl Job for Steps {
    type Update = PodRef;

    async fn run(&self, uid: &str, work: Work<PodRef>) -> Result<(), JobError> {
        let pod = match work {
            Work::Update(pod) => {
                while let Some((number, entry)) = self.next(uid) {
                    self.deliver(number, entry).await?;
                }
                pod
            }
            Work::Delete(pod) => {
                while let Some((number, entry)) = self.next(uid) {
                    self.over(number, entry, Some("the pod is gone"));
                }
                pod
            }
        };
        if let Some(teardown) = &self.teardown
            && !pod.uid.is_empty()
        {
            teardown(pod).await?;
        }
        let whole = self.queue.with(|queue| queue.of(uid));
        for (number, _) in whole.into_iter().filter(|(_, entry)| is_whole(entry)) {
            self.done(number);
        }
        Ok(())
    }

    fn failed(&self, uid: &str, problem: &str) {
        let what = match uid {
            NODE_KEY => "the node's pressure".to_owned(),
            uid => format!("the eviction of pod {uid}"),
        };
        self.say(format!("delivery for {what} waits: {problem}"));
    }
}

fn is_whole(entry: &Entry) -> bool {
    entry.event_sent && entry.status_written
}

impl Steps {
    /// The oldest entry that something is to be said of.
    fn next(&self, uid: &str) -> Option<(u64, Entry)> {
        let own = self.queue.with(|queue| queue.of(uid));
        own.into_iter().find(|(_, entry)| !is_whole(entry))
    }

    async fn deliver(&self, number: u64, mut entry: Entry) -> Result<(), JobError> {
        let Some(server) = &self.server else {
            self.over(number, entry, None);
            return Ok(());
        };
        let told = match &entry.about {
            About::Pod { pod, object } => {
                let (pod, object) = (self.who(pod)?, object.clone());
                match pod {
                    Some(pod) => {
                        self.tell_of_pod(server, number, &mut entry, &pod, object.as_deref())
                            .await?
                    }
                    None => Delivery::Moot("no source has the pod".to_owned()),
                }
            }
            About::Node { .. } => {
                self.tell(server, &entry, &PodRef::default(), "").await?;
                Delivery::All
            }
        };
        match told {
            Delivery::All => self.over(number, entry, None),
            Delivery::Written => {
                self.over(number, entry.clone(), None);
                // An error says that the agent ends.
                let _ = self.written.send(entry);
            }
            Delivery::Moot(why) => self.over(number, entry, Some(&why)),
        }
        Ok(())
    }

    /// The name of a pod that was known by uid only; `None` where no source has it.
    fn who(&self, pod: &PodRef) -> Result<Option<PodRef>, JobError> {
        if !pod.namespace.is_empty() {
            return Ok(Some(pod.clone()));
        }
        let set = self.pods.borrow();
        let mut all = set.pods.iter().chain(&set.ended);
        let found = all.find(|known| known.pod.uid == pod.uid);
        if found.is_none() && set.waiting.contains(&Source::Apiserver) {
            return Err(JobError::new(
                "its name is not known until the API server has told its pods",
            ));
        }
        Ok(found.map(|known| PodRef {
            name: known.pod.name.clone(),
            namespace: known.pod.namespace.clone(),
            uid: pod.uid.clone(),
        }))
    }

    async fn tell_of_pod(
        &self,
        server: &Server,
        number: u64,
        entry: &mut Entry,
        pod: &PodRef,
        object: Option<&str>,
    ) -> Result<Delivery, JobError> {
        let mut found = server.find(pod, object).await?;
        for _ in 0..TRIES {
            let object = match found {
                Found::Is(object) => object,
                Found::Gone => return Ok(Delivery::Moot("the pod is gone".to_owned())),
                Found::Another => {
                    return Ok(Delivery::Moot(
                        "another pod has its name now, and is left alone".to_owned(),
                    ));
                }
            };
            if !entry.event_sent {
                self.tell(server, entry, pod, &object.uid).await?;
                entry.event_sent = true;
                self.keep(number, entry);
            }
            if entry.status_written {
                return Ok(Delivery::All);
            }
            match self.mark(server, entry, pod, &object).await? {
                Marked::Is => return Ok(Delivery::All),
                Marked::Written => return Ok(Delivery::Written),
                Marked::Not(why) => return Ok(Delivery::Moot(why)),
                Marked::Changed => found = server.find(pod, Some(&object.uid)).await?,
            }
        }
        Err(JobError::new("the pod changes all the time"))
    }

    async fn mark(
        &self,
        server: &Server,
        entry: &Entry,
        pod: &PodRef,
        object: &Object,
    ) -> Result<Marked, JobError> {
        let (answer, asked) = match self.how {
            EvictionStatusConfig::None => return Ok(Marked::Is),
            // It is not started again, and what it ended with is its own affair.
            _ if object.has_ended => return Ok(Marked::Is),
            EvictionStatusConfig::Status => {
                let patch = wording::status(entry, object);
                let answer = server
                    .patch_status(&pod.namespace, &pod.name, &patch)
                    .await?;
                (answer, PATCH)
            }
            EvictionStatusConfig::EvictionApi => {
                let request = wording::eviction_request(pod, &object.uid);
                let answer = server.evict(&pod.namespace, &pod.name, &request).await?;
                (answer, EVICT)
            }
        };
        match answer {
            Ok(_) if self.how == EvictionStatusConfig::Status => Ok(Marked::Written),
            Ok(_) => Ok(Marked::Is),
            Err(refusal) if matches!(refusal.code, 404 | 409) => Ok(Marked::Changed),
            Err(refusal) if refusal.for_good() => Ok(Marked::Not(refusal.sentence(asked))),
            Err(refusal) => Err(refusal.failure(asked)),
        }
    }

    /// Sends the Event. A refused Event is not sent again.
    async fn tell(
        &self,
        server: &Server,
        entry: &Entry,
        pod: &PodRef,
        uid: &str,
    ) -> Result<(), JobError> {
        if entry.event_sent {
            return Ok(());
        }
        let event = wording::event(entry, pod, uid, &self.node_name);
        let namespace = event["metadata"]["namespace"].as_str().unwrap_or_default();
        let refusal: Refusal = match server.tell(namespace, &event).await? {
            Ok(_) => return Ok(()),
            Err(refusal) if refusal.already_exists() => return Ok(()),
            Err(refusal) => refusal,
        };
        if refusal.for_good() || matches!(refusal.code, 403 | 404 | 409) {
            self.say(refusal.sentence(TELL));
            return Ok(());
        }
        Err(refusal.failure(TELL))
    }

    /// Everything is said, or, for a reason, nothing more can be.
    fn over(&self, number: u64, mut entry: Entry, moot: Option<&str>) {
        let (id, key) = (&entry.id, entry.key());
        match moot {
            _ if self.server.is_none() => {}
            Some(why) => tracing::warn!(
                id,
                "the API server is not told of the eviction of {key}: {why}"
            ),
            None => tracing::info!(id, "the API server was told of {key}"),
        }
        self.deliveries.over(moot.is_none());
        (entry.event_sent, entry.status_written) = (true, true);
        if self.teardown.is_some() {
            self.keep(number, &entry);
        } else {
            self.done(number);
        }
    }

    fn keep(&self, number: u64, entry: &Entry) {
        let kept = self.queue.with(|queue| queue.update(number, entry.clone()));
        self.forgetful(kept);
    }

    fn done(&self, number: u64) {
        let done = self.queue.with(|queue| queue.done(number));
        self.forgetful(done);
    }

    fn forgetful(&self, written: std::io::Result<()>) {
        if let Err(error) = written {
            self.say(format!(
                "the queue of marks below stateDir cannot be written ({error}): should the agent end, the next \
                 one tells the API server again what it was told; make room there"
            ));
        }
    }

    fn say(&self, message: String) {
        say(&self.on_degraded, message);
    }
}

enum Marked {
    Is,
    /// By a status that was written just now.
    Written,
    /// Nor will it be.
    Not(String),
    /// The object is not what it was a moment ago.
    Changed,
}

#[cfg(test)]
mod tests;
