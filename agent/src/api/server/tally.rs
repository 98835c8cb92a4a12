//! Counts of events since the agent started, which the bounded log cannot tell.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use podwarden_policy::signal::{Detector, ScopeName};
use tokio::sync::broadcast::error::RecvError;

use crate::api::{
    published::Published,
    types::{Event, EventKind},
};

/// Which evictions are counted together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EvictionKey {
    pub(super) qos_class: String,
    pub(super) scope: ScopeName,
    pub(super) dry_run: bool,
}

/// The counts.
#[derive(Debug, Clone, Default)]
pub(super) struct Counts {
    pub(super) evictions: BTreeMap<EvictionKey, u64>,
    /// By scope and by what detected it.
    pub(super) crossings: BTreeMap<(ScopeName, Detector), u64>,
    /// The last event counted.
    last_id: u64,
}

/// The counts, shared between the task that follows events and the scrapes.
#[derive(Debug, Default)]
pub(super) struct Tally(Mutex<Counts>);

impl Tally {
    pub(super) fn counts(&self) -> Counts {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn count(&self, event: &Event) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // After a lag the log is read again, and holds events that were counted before.
        if event.id <= counts.last_id {
            return;
        }
        counts.last_id = event.id;
        match &event.kind {
            EventKind::Eviction(eviction) => {
                let key = EvictionKey {
                    qos_class: eviction.qos_class.clone(),
                    scope: eviction.scope,
                    dry_run: eviction.dry_run,
                };
                *counts.evictions.entry(key).or_default() += 1;
            }
            EventKind::LevelCrossed {
                scope, detected_by, ..
            } => {
                let key = (*scope, *detected_by);
                *counts.crossings.entry(key).or_default() += 1;
            }
            _ => {}
        }
    }
}

/// Counts every event until the agent ends. A burst that outruns the subscription is caught up
/// from the log, which holds four times as much.
pub(super) async fn follow(published: Arc<Published>, tally: Arc<Tally>) {
    loop {
        // What agents before this one have counted stays theirs.
        let before = published.first_id().saturating_sub(1);
        let after = tally.counts().last_id.max(before);
        let (kept, mut live) = published.events_after(after);
        kept.iter().for_each(|event| tally.count(event));
        loop {
            match live.recv().await {
                Ok(event) => tally.count(&event),
                Err(RecvError::Lagged(_)) => break,
                Err(RecvError::Closed) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::Eviction;

    fn evict(published: &Published) {
        let eviction = EventKind::Eviction(Box::default());
        published.event(String::new(), None, eviction);
    }

    fn evictions(tally: &Tally) -> u64 {
        tally.counts().evictions.values().sum()
    }

    // One thread: the follower runs only while the test yields.
    #[tokio::test(flavor = "current_thread")]
    async fn a_burst_past_the_subscription_is_caught_up_from_the_log() {
        let published = Arc::new(Published::default());
        let tally = Arc::new(Tally::default());
        evict(&published);
        let follower = tokio::spawn(follow(published.clone(), tally.clone()));
        while evictions(&tally) < 1 {
            tokio::task::yield_now().await;
        }
        for _ in 0..3000 {
            evict(&published);
        }
        while evictions(&tally) < 3001 {
            tokio::task::yield_now().await;
        }
        // Each once, not again with the next.
        evict(&published);
        while evictions(&tally) < 3002 {
            tokio::task::yield_now().await;
        }
        assert_eq!(evictions(&tally), 3002);
        follower.abort();
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_an_agent_before_has_counted_is_not_counted_again() {
        let old = Published::default();
        evict(&old);
        let published = Arc::new(Published::after(old.events_after(0).0, 1));
        let tally = Arc::new(Tally::default());
        evict(&published);
        let follower = tokio::spawn(follow(published.clone(), tally.clone()));
        while tally.counts().last_id < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(evictions(&tally), 1);
        follower.abort();
    }

    #[test]
    fn kinds_are_counted_apart() {
        let published = Published::default();
        evict(&published);
        let dry_run = Eviction {
            dry_run: true,
            ..Eviction::default()
        };
        published.event(String::new(), None, EventKind::Eviction(Box::new(dry_run)));
        published.event(String::new(), None, EventKind::KernelOom { pid: 1 });
        let tally = Tally::default();
        for event in published.events_after(0).0 {
            tally.count(&event);
            // The same event again changes nothing.
            tally.count(&event);
        }
        let counts = tally.counts().evictions;
        let by_kind: Vec<_> = counts.iter().map(|(key, n)| (key.dry_run, *n)).collect();
        assert_eq!(by_kind, [(false, 1), (true, 1)]);
    }
}
