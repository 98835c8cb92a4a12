//! Delivers eviction statuses to the API server, after the kill and without delaying it.
//!
//! ```text
//!  reactor's report ──> writer ──> queue (a directory) ──> workers ──> Event, status ──> workers ──> teardown
//!  event log, after a restart ──────┘                        └─ one for each pod, until it is done
//! ```
//!
//! | module | purpose |
//! |---|---|
//! | `budgets` | whether disruption budgets let a pod go, asked before a kill that is not urgent |
//! | `entry` | one entry of the queue |
//! | `period` | how long the node is under pressure; values only |
//! | `wording` | the texts; values only |
//! | `queue` | undelivered entries, on disk |
//! | `object` | whether the object with the pod's name is the pod |
//! | `server` | requests and answers |
//! | `steps` | what the API server is told of an evicted pod, in order |
//! | `ending` | the pod's end in the runtime |
//! | `held_back` | why no pod is evicted, about the Node |
//! | `follow` | what speeds an entry up, ends it, or repeats it |
//! | `recovery` | evictions on record that were not queued |
//! | `recent` | statuses that a kubelet may still overwrite; values only |
//! | `deliveries` | how many wait, and what became of the others |
//! | `writer` | the thread that waits for the disk |
//! | `node_part` | keeps a part of the Node object up to date; independent of the above, as are its parts: |
//! | `condition` | the agent's state as the Node's condition |
//! | `taint` | the Node's taint while memory is short |

mod budgets;
mod condition;
mod deliveries;
mod ending;
mod entry;
mod follow;
mod held_back;
mod node_part;
mod object;
mod pressure_period;
mod queue;
mod recent;
mod recovery;
mod server;
mod steps;
mod taint;
mod wording;
mod writer;

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use podwarden_policy::PodUid;
use tokio::sync::{mpsc, watch};

use self::{
    ending::Ending,
    entry::{About, Entry},
    follow::Follow,
    pressure_period::PressurePeriods,
    queue::{Queue, Shared},
    recovery::recover,
    steps::Steps,
    writer::Writer,
};
use crate::{
    api::types::{Eviction, PodRef},
    base::{clock, worker::Task},
    config::EvictionStatusConfig,
    eviction::{
        hold::Holding,
        pod_workers::{PodWorkers, Work},
    },
    pods::{Apiserver, Feed, PodSet},
    reactor::{plan::VictimFiles, report::Crossing},
};

/// Statuses written at a time: after an outage many pods may have something to do, and the API server has other
/// nodes to answer.
const MOST: usize = 4;

/// Publishes a sentence about a problem as an event.
pub type OnDegraded = Arc<dyn Fn(String) + Send + Sync>;

pub(crate) use self::{
    budgets::{Asked, Budgets, Verdict},
    condition::Condition,
    held_back::HeldBack,
    node_part::{Former, NodePart, NodePartTask, Pace, TakeBack},
    server::{MANAGER, PATCH_NODE, Server},
    taint::{FormerTaint, MemoryTaint},
};
pub use self::{
    condition::Health, deliveries::DeliveryCounts, ending::Teardown, taint::NodePressure,
    wording::Sizes,
};
pub use ending::Start;
/// What eviction statuses are made with.
pub struct Parts {
    pub how: EvictionStatusConfig,
    /// The API server; `None` without one, as with [`EvictionStatusConfig::None`].
    pub apiserver: Option<Apiserver>,
    pub node_name: String,
    /// Where the queue is kept; `None` for memory alone.
    pub state_dir: Option<PathBuf>,
    /// What there is to use.
    pub sizes: Sizes,
    /// A node that was under no pressure for this long is under pressure anew.
    pub calm: Duration,
    /// The pods, and how their sources are.
    pub feed: Feed,
    /// Evictions that agents before this one have on record and that were to be marked, each with its time.
    pub recorded: Vec<(String, Eviction)>,
    /// `None` without a container runtime.
    pub teardown: Option<Teardown>,
    /// Whether the node is short of memory, and whether the Node object says so.
    pub pressure: NodePressure,
    /// Whether the thread that holds pods dead may be SCHED_FIFO.
    pub real_time: bool,
    /// What publishes a problem.
    pub on_degraded: OnDegraded,
}

/// The reconciler's end. What waits to be written is written before it goes away; what waits to be told is
/// told by the next agent.
pub struct EvictionStatus {
    writer: Writer,
    queue: Shared,
    deliveries: Arc<DeliveryCounts>,
    sizes: Sizes,
    node_name: String,
    /// `None` without an API server.
    periods: Option<PressurePeriods>,
    /// `None` where no status is written.
    holding: Option<Holding>,
    /// `None` unless Evictions are posted.
    budgets: Option<Budgets>,
    /// Pods whose statuses agents before this one did not write, by their uids.
    unwritten: BTreeSet<String>,
    _following: Task,
    _workers: PodWorkers,
    _ending: Option<PodWorkers>,
}

impl EvictionStatus {
    /// Reads the queue and begins to deliver; `None` without an API server and a runtime.
    pub fn start(parts: Parts) -> std::io::Result<Option<Self>> {
        let tells = parts.apiserver.is_some();
        if !tells && parts.teardown.is_none() {
            return Ok(None);
        }
        let deliveries = Arc::new(DeliveryCounts::default());
        let (mut queue, problems) = Queue::open(parts.state_dir.as_deref());
        for problem in problems {
            say(&parts.on_degraded, problem);
        }
        if tells && queue.dir().is_none() {
            tracing::warn!(
                "there is no stateDir: an eviction status not delivered when the agent ends is lost"
            );
        }
        recover(&mut queue, parts.recorded, &parts.sizes);
        let waiting: Vec<_> = queue.entries().map(whose).collect();
        let unwritten = queue.entries().filter(|entry| !entry.status_written);
        let unwritten = unwritten.map(|entry| entry.key().to_owned()).collect();
        if !waiting.is_empty() {
            tracing::info!(
                waiting = waiting.len(),
                "eviction statuses of an earlier agent wait"
            );
        }
        let queue = Shared::new(queue, Arc::clone(&deliveries));
        let server = parts
            .apiserver
            .map(|apiserver| Arc::new(Server::new(apiserver)));
        let posts = parts.how == EvictionStatusConfig::EvictionApi;
        let budgets = server.as_ref().filter(|_| posts);
        let budgets = budgets.map(|server| Budgets::new(Arc::clone(server), queue.clone()));
        let (marked, written) = mpsc::unbounded_channel();
        let (ending_workers, ending) = parts
            .teardown
            .map(|teardown| {
                let job = Ending {
                    queue: queue.clone(),
                    teardown,
                    on_degraded: parts.on_degraded.clone(),
                };
                PodWorkers::start(Arc::new(job), ending::MOST)
            })
            .unzip();
        // Where something else than a status is written, or nothing, the pod may run again.
        let holds = server.is_some() && parts.how == EvictionStatusConfig::Status;
        let holding = holds.then(|| Holding::start(parts.real_time)).transpose()?;
        let holder = holding.as_ref().map(Holding::holder);
        let steps = Steps {
            queue: queue.clone(),
            server,
            how: parts.how,
            node_name: parts.node_name.clone(),
            pods: parts.feed.pods.clone(),
            pressure: parts.pressure,
            ending,
            holder: holder.clone(),
            on_degraded: parts.on_degraded.clone(),
            deliveries: Arc::clone(&deliveries),
            written: marked,
        };
        let (workers, offers) = PodWorkers::start(Arc::new(steps), MOST);
        for (key, pod) in waiting {
            offers.offer(&key, Work::Update(pod));
        }
        let following = Follow {
            feed: parts.feed,
            queue: queue.clone(),
            offers: offers.clone(),
            written,
            holder: holder.clone(),
            on_degraded: parts.on_degraded.clone(),
        };
        Ok(Some(Self {
            queue: queue.clone(),
            writer: Writer::start(queue, offers, holder, parts.on_degraded)?,
            deliveries,
            sizes: parts.sizes,
            node_name: parts.node_name,
            periods: tells.then(|| PressurePeriods::new(parts.calm)),
            holding,
            budgets,
            unwritten,
            _following: Task::spawn(following.run()),
            _workers: workers,
            _ending: ending_workers,
        }))
    }

    /// Pods together may use so much from now on, bytes.
    pub fn resized(&mut self, pods: u64) {
        self.sizes.pods = pods;
    }

    /// Whether the agents before this one evicted this pod and did not come to write its status.
    pub fn is_unwritten(&self, uid: &str) -> bool {
        self.unwritten.contains(uid)
    }

    /// What asks disruption budgets; `None` unless Evictions are posted.
    pub(crate) fn budgets(&self) -> Option<Budgets> {
        self.budgets.clone()
    }

    /// A pod was evicted: it is held dead until its kubelet has ended it, or until a time.
    pub(crate) fn hold(&mut self, uid: &str, files: Arc<VictimFiles>, until: Option<Instant>) {
        self.unwritten.remove(uid);
        if let Some(holding) = &self.holding {
            holding.holder().hold(uid, files, until);
        }
    }

    /// The pods that are held dead no longer, since the last call, and may run again.
    pub(crate) fn let_go(&mut self) -> Vec<PodUid> {
        let uids = self.holding.as_mut().map(Holding::let_go);
        uids.into_iter().flatten().map(PodUid::from).collect()
    }

    /// A pod is held from now on whose status was queued a while ago: by now it may stand.
    pub(crate) fn follow_late(&self, uid: &str) {
        if let Some(holding) = &self.holding
            && !self.queue.is_unwritten(uid)
        {
            holding.holder().written(uid);
        }
    }

    /// What waits and what was delivered.
    pub fn deliveries(&self) -> Arc<DeliveryCounts> {
        Arc::clone(&self.deliveries)
    }

    /// A pod was killed at `time`. `set` is what is known of pods. Never waits.
    pub fn evicted(&mut self, time: &str, eviction: &Eviction, set: &watch::Receiver<Arc<PodSet>>) {
        let pod = &eviction.pod;
        if let Some(periods) = &mut self.periods {
            let name = match pod.namespace.as_str() {
                // Only its cgroup is known.
                "" => pod.uid.to_string(),
                namespace => format!("{namespace}/{}", pod.name),
            };
            periods.evicted(name, Instant::now());
        }
        if pod.uid.is_empty() {
            // Its cgroup went away before anybody could say whose it was.
            return;
        }
        let object = set.borrow().object_of(&pod.uid);
        let entry = Entry::of_eviction(time, eviction, object, &self.sizes);
        self.writer.add(entry);
    }

    /// Usage was found at a level. Never waits.
    pub fn crossed(&mut self, crossing: &Crossing, now: Instant) {
        let Some(periods) = &mut self.periods else {
            return;
        };
        let time = clock::text_of(crossing.crossed);
        if let Some(untold) = periods.crossed(crossing.crossed, &time, now) {
            let message = wording::pressure(crossing, untold);
            let entry = Entry::of_pressure(time, &self.node_name, crossing.crossed, message);
            self.writer.add(entry);
        }
    }

    /// A level is reached and no pod is evicted, or few are: what tells the API server why, once in a pressure
    /// period. Never waits.
    pub(crate) fn held_back(&mut self, crossing: &Crossing, now: Instant) -> Option<HeldBack> {
        let periods = self.periods.as_mut()?;
        periods
            .held_back(now)
            .then(|| HeldBack::new(&self.writer, &self.node_name, crossing.wake))
    }

    /// The node is still short of memory, or was until now.
    pub fn pressed(&mut self, now: Instant) {
        if let Some(periods) = &mut self.periods {
            periods.lasts(now);
        }
    }

    /// How long until [`EvictionStatus::look`] has something to do; `None` while the node is under no pressure.
    pub fn due(&self, now: Instant) -> Option<Duration> {
        let due = self.periods.as_ref()?.due()?;
        Some(due.saturating_duration_since(now))
    }

    /// Tells of the pressure that is over by now. Never waits.
    pub fn look(&mut self, now: Instant) {
        let Some(periods) = &mut self.periods else {
            return;
        };
        if let Some(period) = periods.ended(now) {
            let ago = clock::nanos(period.silent);
            let time = clock::text_of(clock::monotonic().saturating_sub(ago));
            let entry = Entry::of_relief(time, &self.node_name, &period);
            self.writer.add(entry);
        }
    }
}

/// Reports a problem in the log and as an event.
fn say(on_degraded: &OnDegraded, message: String) {
    tracing::warn!("{message}");
    on_degraded(message);
}

/// Whose worker an entry is for.
fn whose(entry: &Entry) -> (String, PodRef) {
    let pod = match &entry.about {
        About::Pod { pod, .. } => pod.clone(),
        About::Node { .. } => PodRef::default(),
    };
    (entry.key().to_owned(), pod)
}
