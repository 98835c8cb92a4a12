//! Published state: the latest figures and the recent events.
//!
//! Written by the sampler and the reconciler, read by `http`. Readers never block writers: figures
//! are swapped whole, events go to a bounded log and to the subscribers.

pub(crate) mod compressed;
mod counts;
mod demand;
mod events;
mod figures;
mod peaks;
mod presenter;
mod rows;
mod settings;
mod standing;

use std::{
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use jiff::Timestamp;
use tokio::sync::{broadcast, watch};

pub(crate) use self::counts::{CROSSING_TO_KILL, KILL_TO_FREED, NOT_FREED, OVERSHOOT};
use self::{counts::count, demand::Demand, events::Rings, standing::Standing};
pub use self::{
    events::EVENTS_KEPT, figures::Figures, presenter::Presenter, settings::ConfigState,
};
use crate::{
    api::types::{
        Event, EventKind, EventLogStats, EventRecord, Eviction, EvictionStatusStats, FlightRecord,
        PodRef, PodStats, SourceStats,
    },
    base::clock,
    config::Live,
    eviction::{
        recorder::{
            RecentIncidents,
            log::{self, Begun, Logger},
        },
        status::{DeliveryCounts, Health, NodePressure},
    },
    hierarchy::{
        act::{Counters, Tally},
        recorded::Recorded,
    },
};

/// The agent's outward state; one per process, shared by `Arc`.
#[derive(Debug, Default)]
pub struct Published {
    figures: ArcSwap<Figures>,
    passes: watch::Sender<()>,
    peaks: peaks::Peaks,
    presenter: OnceLock<Presenter>,
    live: ArcSwapOption<Live>,
    config_state: ArcSwapOption<ConfigState>,
    recorded: AtomicBool,
    planned: ArcSwapOption<Recorded>,
    done: OnceLock<Arc<Counters>>,
    events: Mutex<Rings>,
    last_id: AtomicU64,
    /// The last id of agents before this one.
    before: u64,
    recent: RecentIncidents,
    logger: Mutex<Option<Logger>>,
    subscribers: Subscribers,
    ready: AtomicBool,
    eviction_status: OnceLock<Arc<DeliveryCounts>>,
    sources: OnceLock<watch::Receiver<Arc<Vec<SourceStats>>>>,
    trouble: ArcSwapOption<&'static str>,
    standing: Standing,
    reactor_down: AtomicBool,
    pressure: NodePressure,
    demand: Demand,
}

#[derive(Debug)]
struct Subscribers(broadcast::Sender<Arc<Event>>);

impl Default for Subscribers {
    fn default() -> Self {
        Self(broadcast::channel(1024).0)
    }
}

impl Published {
    /// Begins with the events of agents before this one; ids go on after `last_id`.
    pub fn after(history: Vec<Event>, last_id: u64) -> Self {
        // A file may say what it likes: there is always one more.
        let before = last_id.min(u64::MAX - 1);
        Self {
            events: Mutex::new(Rings::of(history)),
            last_id: AtomicU64::new(before),
            before,
            ..Self::default()
        }
    }

    /// The id of the first event of this agent.
    pub fn first_id(&self) -> u64 {
        self.before + 1
    }

    /// Sets the log that kept events go to; `None` ends that.
    pub fn set_logger(&self, logger: Option<Logger>) {
        *self.logger.lock().unwrap_or_else(PoisonError::into_inner) = logger;
    }

    fn with_logger(&self, act: impl FnOnce(&Logger)) {
        let logger = self.logger.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(logger) = &*logger {
            act(logger);
        }
    }

    /// The event log; `None` where there is none.
    pub fn event_log(&self) -> Option<EventLogStats> {
        let mut stats = None;
        self.with_logger(|logger| stats = Some(logger.state().stats()));
        stats
    }

    /// Adds to event `id` what the flight recorder has of it; the recorder's call.
    pub fn publish_flight_record(&self, id: u64, flight: FlightRecord) {
        // So many others came since that it is forgotten: its line in the log stays as it is.
        let Some(event) = self.kept(id) else { return };
        let record = EventRecord {
            event,
            flight_record: Some(flight),
        };
        self.with_logger(|logger| logger.write(&record));
        self.recent.put(record);
    }

    fn kept(&self, id: u64) -> Option<Event> {
        let kept = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(id).map(|event| Event::clone(event))
    }

    /// One event with what the flight recorder has of it, as far as that is in memory.
    pub fn record(&self, id: u64) -> Option<EventRecord> {
        self.recent.get(id).or_else(|| {
            let event = self.kept(id)?;
            Some(EventRecord {
                event,
                flight_record: None,
            })
        })
    }

    /// The latest figures. Also wakes the sampler: a client reads figures.
    pub fn figures(&self) -> Arc<Figures> {
        self.demand.figures();
        self.latest()
    }

    /// The same for a client that reads [`Figures::listed`].
    pub fn figures_to_list(&self) -> Arc<Figures> {
        self.demand.list();
        self.figures()
    }

    /// The same without waking the sampler.
    pub fn latest(&self) -> Arc<Figures> {
        self.figures.load_full()
    }

    /// The same pods with the highest memory usage of each since `time`.
    pub fn with_peaks(&self, mut pods: Vec<PodStats>, time: Timestamp) -> Vec<PodStats> {
        self.peaks.put(time, &mut pods);
        pods
    }

    /// Replaces the figures; the sampler's call.
    pub fn publish(&self, figures: Figures) {
        self.peaks.note(&figures.pods);
        self.figures.store(Arc::new(figures));
        self.passes.send_replace(());
    }

    /// What the last plan was made from; `None` before the first.
    pub fn planned(&self) -> Option<Arc<Recorded>> {
        self.planned.load_full()
    }

    /// Replaces what the last plan was made from; the reconciler's call.
    pub fn publish_planned(&self, planned: Recorded) {
        self.planned.store(Some(Arc::new(planned)));
    }

    /// What was done to cgroups since the agent started.
    pub fn done(&self) -> Tally {
        let done = self.done.get();
        done.map(|counters| counters.now()).unwrap_or_default()
    }

    /// Where what is done to cgroups is counted; only the first call counts.
    pub fn set_counters(&self, counters: Arc<Counters>) {
        let _ = self.done.set(counters);
    }

    /// Figures were asked for lately: sampling goes on at its full pace.
    pub fn has_reader(&self) -> bool {
        self.demand.is_for_figures()
    }

    /// The list of pods was asked for lately.
    pub fn has_list_reader(&self) -> bool {
        self.demand.is_for_list()
    }

    /// Completes at a request for figures.
    pub async fn demanded(&self) {
        self.demand.notified().await;
    }

    /// Appends an event and hands it to every subscriber; returns its id. Exits of a pod have a rate: one
    /// beyond it gets no event and the id of the event before it.
    pub fn event(&self, time: String, pod: Option<PodRef>, kind: EventKind) -> u64 {
        let mut kept = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let admitted = kept.admit(pod.as_ref(), &kind, Instant::now());
        self.publish_admitted(&mut kept, admitted, || (time, pod, kind))
            .unwrap_or_else(|| self.last_id())
    }

    fn publish_event(
        &self,
        kept: &mut Rings,
        time: String,
        pod: Option<PodRef>,
        kind: EventKind,
    ) -> u64 {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        count(&kind);
        let event = Arc::new(Event {
            id,
            time,
            pod,
            kind,
        });
        kept.push(Arc::clone(&event));
        self.with_logger(|logger| {
            logger.given_out(id);
            if log::is_kept(&event.kind) {
                logger.write(&EventRecord {
                    event: Event::clone(&event),
                    flight_record: None,
                });
            }
        });
        // An error only means that there is no subscriber.
        let _ = self.subscribers.0.send(event);
        id
    }

    /// Appends the event that something is worse than it should be.
    pub fn degraded(&self, message: String) {
        self.event(clock::now_text(), None, EventKind::Degraded { message });
    }

    /// Writes an eviction to the event log whose end is not known yet: should the agent end now, its
    /// next agent publishes it. [`Published::event`] publishes it once the end is known.
    pub fn begun(&self, time: String, eviction: Eviction) {
        self.with_logger(|logger| logger.write(&Begun { time, eviction }));
    }

    /// The id of the last event so far.
    pub fn last_id(&self) -> u64 {
        self.last_id.load(Ordering::Relaxed)
    }

    /// Where marks are counted; only the first call counts.
    pub fn set_eviction_status(&self, tally: Arc<DeliveryCounts>) {
        let _ = self.eviction_status.set(tally);
    }

    /// Delivery counts of eviction statuses; `None` without an API server.
    pub fn eviction_status(&self) -> Option<EvictionStatusStats> {
        self.eviction_status.get().map(|tally| tally.stats())
    }

    /// Where the pods come from; once.
    pub fn set_sources(&self, sources: watch::Receiver<Arc<Vec<SourceStats>>>) {
        // A second one would be another agent in the same process: there is none.
        let _ = self.sources.set(sources);
    }

    /// How each source of pods is doing, now.
    pub fn sources(&self) -> Arc<Vec<SourceStats>> {
        let sources = self.sources.get();
        sources.map(|s| Arc::clone(&s.borrow())).unwrap_or_default()
    }

    /// Set once the first figures are there; `/readyz` answers 200 from then on, if every source of pods
    /// has delivered its list.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }

    pub fn has_figures(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Whether the thread that evicts is at work.
    pub fn set_reactor_up(&self, up: bool) {
        self.reactor_down.store(!up, Ordering::Release);
    }

    /// See [`Published::set_reactor_up`].
    pub fn is_reactor_up(&self) -> bool {
        !self.reactor_down.load(Ordering::Acquire)
    }

    /// Why the agent does not do its work, for `/healthz`; `None` while it does.
    pub fn set_trouble(&self, trouble: Option<&'static str>) {
        self.trouble.store(trouble.map(Arc::new));
    }

    /// See [`Published::set_trouble`].
    pub fn trouble(&self) -> Option<&'static str> {
        self.trouble.load().as_deref().copied()
    }

    /// Whether the node is short of memory, for its taint.
    pub fn pressure(&self) -> &NodePressure {
        &self.pressure
    }

    /// What the Node's condition is made from.
    pub fn health(&self) -> Health {
        let node = &self.latest().node;
        Health {
            trouble: self.trouble(),
            ready: self.ready(),
            mode: node.mode.clone(),
            profile: node.profile.clone(),
            degradations: node.degradations.clone(),
        }
    }

    /// See [`Published::set_ready`]; the error says what is missing.
    pub fn ready(&self) -> Result<(), String> {
        if !self.ready.load(Ordering::Acquire) {
            return Err("not ready: the first figures have not been read yet".to_owned());
        }
        let sources = self.sources();
        let waiting = sources.iter().filter(|source| !source.reported);
        let waiting: Vec<_> = waiting
            .map(|source| match &source.problem {
                None => source.name.clone(),
                Some(problem) => format!("{} ({problem})", source.name),
            })
            .collect();
        if waiting.is_empty() {
            return Ok(());
        }
        Err(format!(
            "not ready: waiting to be told of this node's pods by {}",
            waiting.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests;
