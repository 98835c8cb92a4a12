//! Follows an eviction status once it is queued: an API server that answers again hurries it, a pod that is gone
//! ends it, and one that a kubelet wrote over is queued again.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::mpsc;

use super::{
    OnDegraded,
    entry::Entry,
    queue::Shared,
    recent::{Back, Recent, State},
    say, whose,
};
use crate::{
    api::types::{PodRef, SourceStats},
    base::clock,
    eviction::{
        hold::Holder,
        pod_workers::{Offers, Work},
    },
    pods::{Feed, Phase, PodSet, Source, SourcedPod},
};

pub(super) struct Follow {
    pub(super) feed: Feed,
    pub(super) queue: Shared,
    pub(super) offers: Offers<PodRef>,
    /// Eviction statuses written just now.
    pub(super) written: mpsc::UnboundedReceiver<Entry>,
    /// `None` where no status is written.
    pub(super) holder: Option<Holder>,
    pub(super) on_degraded: OnDegraded,
}

impl Follow {
    /// Follows the pods and their sources until those end.
    pub(super) async fn run(mut self) {
        let mut known = uids(&self.feed.pods.borrow_and_update());
        let mut troubled = is_troubled(&self.feed.sources.borrow_and_update());
        let mut recent = Recent::default();
        loop {
            // While the source is away it says what was so before.
            let due = recent.due().filter(|_| !troubled);
            tokio::select! {
                changed = self.feed.pods.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.feed.pods.mark_unchanged();
                    known = self.gone(known);
                    if !troubled {
                        self.look(&mut recent);
                    }
                }
                changed = self.feed.sources.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let now = is_troubled(&self.feed.sources.borrow_and_update());
                    if troubled && !now {
                        self.offers.hurry();
                        recent.resumed(clock::of_timers());
                    }
                    troubled = now;
                }
                Some(entry) = self.written.recv() => {
                    recent.written(entry, clock::of_timers());
                    if !troubled {
                        self.look(&mut recent);
                    }
                }
                () = clock::until(due) => self.look(&mut recent),
            }
        }
    }

    /// Ends the entries of `known` pods that are gone; returns the pods that are known now.
    fn gone(&self, mut known: BTreeSet<String>) -> BTreeSet<String> {
        let set = self.feed.pods.borrow().clone();
        let now = uids(&set);
        if !set.waiting.is_empty() {
            // Missing pods may not have been listed yet.
            known.extend(now);
            return known;
        }
        let gone: BTreeSet<_> = known.difference(&now).map(String::as_str).collect();
        let waiting: BTreeMap<_, _> = self.queue.with(|queue| {
            let entries = queue.entries();
            let entries = entries.filter(|entry| gone.contains(entry.key()));
            entries.map(whose).collect()
        });
        for (uid, pod) in waiting {
            self.offers.offer(&uid, Work::Delete(pod));
        }
        now
    }

    /// Queues the eviction statuses again that were written over.
    fn look(&self, recent: &mut Recent) {
        let set = self.feed.pods.borrow().clone();
        let is = |uid: &str| {
            let named = |known: &SourcedPod| known.pod.uid.as_str() == uid;
            match (
                set.pods.iter().any(named),
                set.ended.iter().find(|known| named(known)),
            ) {
                (true, _) => State::Runs,
                (_, Some(ended)) if ended.phase == Some(Phase::Failed) && !ended.has_reason => {
                    State::Unexplained
                }
                (_, Some(_)) => State::Ended,
                (false, None) => State::Gone,
            }
        };
        for back in recent.look(clock::of_timers(), is) {
            match back {
                Back::Again(entry) => {
                    let (key, pod) = whose(&entry);
                    if let Some(holder) = &self.holder
                        && is(&key) == State::Runs
                    {
                        holder.contested(&key);
                    }
                    tracing::warn!(
                        uid = key,
                        "a kubelet that had not seen the eviction status of this pod wrote over it: it is \
                         written again"
                    );
                    if let Err(error) = self.queue.with(|queue| queue.again(*entry)) {
                        tracing::warn!(%error, "the eviction status queue below stateDir cannot be written");
                    }
                    self.offers.offer(&key, Work::Update(pod));
                    // Its Event may be refused, which it pauses for.
                    self.offers.hurry();
                }
                Back::Enough(entry) => {
                    if let Some(holder) = &self.holder {
                        holder.release(entry.key());
                    }
                    say(
                        &self.on_degraded,
                        format!(
                            "the status of the evicted pod {} is written over again and again, and left as it is \
                             now: something else than its kubelet insists that it runs",
                            entry.key()
                        ),
                    );
                }
            }
        }
    }
}

fn uids(set: &PodSet) -> BTreeSet<String> {
    let all = set.pods.iter().chain(&set.ended);
    all.map(|known| known.pod.uid.to_string()).collect()
}

fn is_troubled(sources: &[SourceStats]) -> bool {
    let mut sources = sources.iter();
    sources.any(|source| source.name == Source::Apiserver.as_str() && source.problem.is_some())
}
