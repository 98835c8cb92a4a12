//! What hurries marks: the API server answers again. And what makes them moot: the pod is gone.

use std::collections::{BTreeMap, BTreeSet};

use super::{queue::Shared, whose};
use crate::{
    api::{PodRef, SourceStats},
    pods::{Feed, PodSet, Source},
    workers::{Offers, Work},
};

/// Follows the pods and their sources until those end.
pub(super) async fn follow(mut feed: Feed, queue: Shared, offers: Offers<PodRef>) {
    let mut known = uids(&feed.pods.borrow_and_update());
    let mut troubled = is_troubled(&feed.sources.borrow_and_update());
    loop {
        tokio::select! {
            changed = feed.pods.changed() => {
                if changed.is_err() {
                    return;
                }
                let set = feed.pods.borrow_and_update().clone();
                let now = uids(&set);
                if set.waiting.is_empty() {
                    let gone: BTreeSet<_> = known.difference(&now).cloned().collect();
                    end(&gone, &queue, &offers);
                    known = now;
                } else {
                    // Those that are not in it may not have been told yet.
                    known.extend(now);
                }
            }
            changed = feed.sources.changed() => {
                if changed.is_err() {
                    return;
                }
                let now = is_troubled(&feed.sources.borrow_and_update());
                if troubled && !now {
                    offers.hurry();
                }
                troubled = now;
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

/// Of the pods that are gone, those that something is to be told of.
fn end(gone: &BTreeSet<String>, queue: &Shared, offers: &Offers<PodRef>) {
    let waiting: BTreeMap<_, _> = queue.with(|queue| {
        let entries = queue.entries().filter(|entry| gone.contains(entry.key()));
        entries.map(whose).collect()
    });
    for (uid, pod) in waiting {
        offers.offer(&uid, Work::Delete(pod));
    }
}
