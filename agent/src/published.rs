//! What the agent shows to the outside: the latest figures and the recent events.
//!
//! Written by the sampler and the event loop, read by `http`. Readers never block writers: figures
//! are swapped whole, events go to a bounded log and to whoever is subscribed.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::{Notify, broadcast};

use crate::{
    act::Tally,
    api::{Event, EventKind, NodeStats, PodRef, PodStats},
    recorded::Recorded,
};

/// How many events `/v1/events` can replay.
const EVENTS_KEPT: usize = 4096;

/// Figures of one sampling pass.
#[derive(Debug, Default)]
pub struct Figures {
    /// The node and its tiers.
    pub node: NodeStats,
    /// Every pod, in the order `/v1/pods` lists them.
    pub pods: Vec<PodStats>,
}

/// The agent's outward state; one per process, shared by `Arc`.
#[derive(Debug)]
pub struct Published {
    figures: ArcSwap<Figures>,
    planned: ArcSwapOption<Recorded>,
    done: ArcSwap<Tally>,
    events: Mutex<VecDeque<Event>>,
    next_id: AtomicU64,
    subscribers: broadcast::Sender<Event>,
    ready: AtomicBool,
    trouble: ArcSwapOption<&'static str>,
    epoch: Instant,
    last_demand_ms: AtomicU64,
    demand: Notify,
}

impl Default for Published {
    fn default() -> Self {
        Self {
            figures: ArcSwap::default(),
            planned: ArcSwapOption::empty(),
            done: ArcSwap::default(),
            events: Mutex::default(),
            next_id: AtomicU64::new(1),
            subscribers: broadcast::channel(1024).0,
            ready: AtomicBool::new(false),
            trouble: ArcSwapOption::empty(),
            epoch: Instant::now(),
            last_demand_ms: AtomicU64::new(0),
            demand: Notify::new(),
        }
    }
}

impl Published {
    /// The latest figures. Also tells the sampler that somebody is looking.
    pub fn figures(&self) -> std::sync::Arc<Figures> {
        let now = u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_demand_ms.store(now.max(1), Ordering::Relaxed);
        self.demand.notify_one();
        self.figures.load_full()
    }

    /// Replaces the figures; the sampler's call.
    pub fn publish(&self, figures: Figures) {
        self.figures.store(std::sync::Arc::new(figures));
    }

    /// What the last plan was made from; `None` before the first.
    pub fn planned(&self) -> Option<std::sync::Arc<Recorded>> {
        self.planned.load_full()
    }

    /// Replaces what the last plan was made from; the slow loop's call.
    pub fn publish_planned(&self, planned: Recorded) {
        self.planned.store(Some(std::sync::Arc::new(planned)));
    }

    /// What was done to cgroups since the agent started.
    pub fn done(&self) -> std::sync::Arc<Tally> {
        self.done.load_full()
    }

    /// Replaces what was done to cgroups; called by whoever has done something.
    pub fn publish_done(&self, done: Tally) {
        self.done.store(std::sync::Arc::new(done));
    }

    /// How long ago somebody last asked for figures; `None` if nobody has.
    pub fn since_demand(&self) -> Option<Duration> {
        match self.last_demand_ms.load(Ordering::Relaxed) {
            0 => None,
            ms => Some(
                self.epoch
                    .elapsed()
                    .saturating_sub(Duration::from_millis(ms)),
            ),
        }
    }

    /// Completes when somebody asks for figures.
    pub async fn demanded(&self) {
        self.demand.notified().await;
    }

    /// Appends an event and hands it to every subscriber; returns its id.
    pub fn event(&self, time: String, pod: Option<PodRef>, kind: EventKind) -> u64 {
        let mut log = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let event = Event {
            id,
            time,
            pod,
            kind,
        };
        if log.len() == EVENTS_KEPT {
            log.pop_front();
        }
        log.push_back(event.clone());
        // An error only says that nobody is subscribed.
        let _ = self.subscribers.send(event);
        id
    }

    /// The kept events after `id` (0 for all) and a receiver of those that follow, without a gap or
    /// a repeat between the two.
    pub fn events_after(&self, id: u64) -> (Vec<Event>, broadcast::Receiver<Event>) {
        let log = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let receiver = self.subscribers.subscribe();
        let kept = log.iter().filter(|e| e.id > id).cloned().collect();
        (kept, receiver)
    }

    /// Set once the first figures are there; `/readyz` answers 200 from then on.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }

    /// Why the agent does not do its work, for `/healthz`; `None` while it does.
    pub fn set_trouble(&self, trouble: Option<&'static str>) {
        self.trouble.store(trouble.map(std::sync::Arc::new));
    }

    /// See [`Published::set_trouble`].
    pub fn trouble(&self) -> Option<&'static str> {
        self.trouble.load().as_deref().copied()
    }

    /// See [`Published::set_ready`].
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }
}
