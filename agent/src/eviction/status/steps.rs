//! What the API server is told after an eviction, in this order: the Event and the status. The pod's end in the
//! container runtime follows (`ending`), or the kubelet would start again what the runtime has stopped. A pod whose
//! memory comes back with its end is ended at once, beside them, where it is held dead: an API server that is away must
//! not cost the next pod its life.
//!
//! Every step bears being repeated: the Event's name is the entry's, a status is written only to the
//! object that was looked at just before, in the version that it had then, and not if it says already that
//! the pod has ended.

use std::{sync::Arc, time::Duration};

use tokio::sync::{mpsc, watch};

use super::{
    OnDegraded,
    deliveries::DeliveryCounts,
    entry::{About, Entry, NODE_KEY},
    object::{Found, Object},
    queue::Shared,
    say,
    server::{EVICT, PATCH, Refusal, Server, TELL},
    taint::NodePressure,
    wording,
};
use crate::{
    api::types::PodRef,
    base::clock,
    config::EvictionStatusConfig,
    eviction::{
        hold::Holder,
        pod_workers::{Job, JobError, Offers, Work},
    },
    pods::{PodSet, Source},
};

/// For so long an object that changes between two requests is looked at again within one try.
const CHANGES: Duration = Duration::from_secs(10);

/// Between two such looks.
const PAUSE: Duration = Duration::from_millis(20);

pub(super) struct Steps {
    pub(super) queue: Shared,
    /// `None` without an API server.
    pub(super) server: Option<Arc<Server>>,
    pub(super) how: EvictionStatusConfig,
    pub(super) node_name: String,
    pub(super) pods: watch::Receiver<Arc<PodSet>>,
    /// What a status waits for.
    pub(super) pressure: NodePressure,
    /// Who ends the pods in the runtime; `None` without one.
    pub(super) ending: Option<Offers<PodRef>>,
    /// Who holds the pods dead; `None` where their status is not written.
    pub(super) holder: Option<Holder>,
    pub(super) on_degraded: OnDegraded,
    pub(super) deliveries: Arc<DeliveryCounts>,
    /// Delivery of eviction statuses that were written.
    pub(super) written: mpsc::UnboundedSender<Entry>,
}

/// What became of an entry.
enum Delivery {
    /// Everything was said.
    All,
    /// Everything but the Event, which is refused yet.
    WithoutEvent(JobError),
    /// It has no object any more, as the sentence says.
    Moot(String),
    /// The status never will be written, as the sentence says.
    Refused(String),
}

impl Job for Steps {
    type Update = PodRef;

    async fn run(&self, uid: &str, work: Work<PodRef>) -> Result<(), JobError> {
        if self.is_ended_first(uid)
            && let Some(ending) = &self.ending
        {
            ending.offer(uid, work.clone());
        }
        let told = match &work {
            Work::Update(_) => self.deliver_all(uid).await,
            Work::Delete(_) => {
                while let Some((number, entry)) = self.next(uid, 0) {
                    self.over(number, entry, Some("the pod is gone"));
                }
                Ok(())
            }
        };
        // What is refused yet does not keep a marked pod from its end.
        let own = self.queue.with(|queue| queue.of(uid));
        if own.iter().all(|(_, entry)| entry.status_written) {
            match &self.ending {
                Some(ending) if uid != NODE_KEY => ending.offer(uid, work),
                _ => {
                    let whole = own.into_iter().filter(|(_, entry)| entry.is_whole());
                    whole.for_each(|(number, _)| self.done(number));
                }
            }
        }
        told
    }

    fn failed(&self, uid: &str, problem: &str) {
        let what = match uid {
            NODE_KEY => "the node's pressure".to_owned(),
            uid => format!("the eviction of pod {uid}"),
        };
        self.say(format!("delivery for {what} waits: {problem}"));
    }
}

impl Steps {
    /// The oldest entry after that number of which something is to be said.
    fn next(&self, uid: &str, after: u64) -> Option<(u64, Entry)> {
        let own = self.queue.with(|queue| queue.of(uid));
        let mut later = own.into_iter().filter(|(number, _)| *number > after);
        later.find(|(_, entry)| !entry.is_whole())
    }

    /// Whether the pod's end waits for no status.
    fn is_ended_first(&self, uid: &str) -> bool {
        let own = self.queue.with(|queue| queue.of(uid));
        let waits = |(_, entry): &(u64, Entry)| {
            entry.frees_by_teardown && entry.grace_seconds == 0 && !entry.status_written
        };
        self.holder.is_some() && own.iter().any(waits)
    }

    /// Until one fails. Where only its Event is refused yet, no status of a later one waits for that.
    async fn deliver_all(&self, uid: &str) -> Result<(), JobError> {
        let (mut delivered, mut last) = (Ok(()), 0);
        while let Some((number, entry)) = self.next(uid, last) {
            if let Some(refused) = self.deliver(number, entry).await? {
                delivered = Err(refused);
            }
            last = number;
        }
        delivered
    }

    /// Gives back why the Event is refused, where all else is said.
    async fn deliver(&self, number: u64, mut entry: Entry) -> Result<Option<JobError>, JobError> {
        let Some(server) = &self.server else {
            self.over(number, entry, None);
            return Ok(None);
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
            About::Node { .. } => match self.tell(server, &entry, &PodRef::default(), "").await? {
                None => Delivery::All,
                Some(refusal) => return Err(refusal.failure(TELL)),
            },
        };
        match told {
            Delivery::All => self.over(number, entry, None),
            Delivery::WithoutEvent(refused) => return Ok(Some(refused)),
            Delivery::Moot(why) => self.over(number, entry, Some(&why)),
            Delivery::Refused(why) => {
                self.over(number, entry, Some(&why));
                // Its kubelet starts the pod again: that one is not torn down for this eviction.
                self.done(number);
            }
        }
        Ok(None)
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
            name: known.pod.name.as_str().into(),
            namespace: known.pod.namespace.as_str().into(),
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
        let until = clock::of_timers() + CHANGES;
        loop {
            let object = match found {
                Found::Is(object) => object,
                Found::Gone => return Ok(Delivery::Moot("the pod is gone".to_owned())),
                Found::Another => {
                    return Ok(Delivery::Moot(
                        "another pod has its name now, and is left alone".to_owned(),
                    ));
                }
            };
            let mut refusal = None;
            if !entry.event_sent {
                refusal = self.tell(server, entry, pod, &object.uid).await?;
                if refusal.is_none() {
                    entry.event_sent = true;
                    self.keep(number, entry);
                }
            }
            if !entry.status_written {
                match self.mark(server, entry, pod, &object).await? {
                    Marked::Is => self.stands(number, entry, false),
                    // A kubelet heeds nothing that is written to a mirror, and writes over it.
                    Marked::Written => self.stands(number, entry, *object.uid == *pod.uid),
                    Marked::Not(why) => return Ok(Delivery::Refused(why)),
                    Marked::Changed if clock::of_timers() < until => {
                        tokio::time::sleep(PAUSE).await;
                        found = server.find(pod, Some(&object.uid)).await?;
                        continue;
                    }
                    Marked::Changed => return Err(JobError::new("the pod changes all the time")),
                }
            }
            return Ok(refusal.map_or(Delivery::All, |refusal| {
                Delivery::WithoutEvent(refusal.failure(TELL))
            }));
        }
    }

    /// The status says that the pod has failed, by what was written now or before.
    fn stands(&self, number: u64, entry: &mut Entry, written: bool) {
        entry.status_written = true;
        self.keep(number, entry);
        if let Some(holder) = &self.holder {
            holder.written(entry.key());
        }
        if written {
            // An error says that the agent ends.
            let _ = self.written.send(entry.clone());
        }
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
            // It is not started again.
            EvictionStatusConfig::EvictionApi if object.has_ended => return Ok(Marked::Is),
            // A reason is another's word, or this one's of before. A failure without one is what the kubelet saw of the
            // kill, where it starts no container again, or what it wrote over this status.
            _ if object.has_succeeded
                || object.has_ended
                    && (object.has_reason || entry.grace_seconds > 0 && !entry.written_over) =>
            {
                return Ok(Marked::Is);
            }
            EvictionStatusConfig::Status => {
                // Nothing takes the place of one that has ended on account of this status.
                if !object.has_ended {
                    self.pressure.settled().await;
                }
                let patch = wording::status(entry, object, &clock::now_text());
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

    /// Sends the Event; gives back the refusal where the server refuses it for now. One that can never be sent counts as
    /// sent.
    async fn tell(
        &self,
        server: &Server,
        entry: &Entry,
        pod: &PodRef,
        uid: &str,
    ) -> Result<Option<Refusal>, JobError> {
        let event = wording::event(entry, pod, uid, &self.node_name);
        let namespace = event["metadata"]["namespace"].as_str().unwrap_or_default();
        let refusal: Refusal = match server.tell(namespace, &event).await? {
            Ok(_) => return Ok(None),
            Err(refusal) if refusal.already_exists() => return Ok(None),
            Err(refusal) => refusal,
        };
        match refusal.code {
            _ if refusal.for_good() => {}
            404 | 409 => {}
            // Rights may be granted, and the eviction status does not wait for them.
            403 => return Ok(Some(refusal)),
            _ => return Err(refusal.failure(TELL)),
        }
        self.say(refusal.sentence(TELL));
        Ok(None)
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
        if let (Some(holder), Some(_)) = (&self.holder, moot) {
            holder.release(entry.key());
        }
        (entry.event_sent, entry.status_written) = (true, true);
        self.keep(number, &entry);
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
            self.say(forgetful(&error));
        }
    }

    fn say(&self, message: String) {
        say(&self.on_degraded, message);
    }
}

/// What is said where the queue does not keep what is done.
pub(super) fn forgetful(error: &std::io::Error) -> String {
    format!(
        "the eviction status queue below stateDir cannot be written ({error}): should the agent end, the next one \
         tells the API server again what it was told; make room there"
    )
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
