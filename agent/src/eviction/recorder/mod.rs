//! The flight recorder: what led to an eviction or an OOM kill, kept past the agent's own end.
//!
//! ```text
//!  usage files ──> curves ─┐
//!  reactor ──> trace ──────┼──> flight ──> log (a file)  ──> history, after a restart
//!  exits, reports ─────────┘         └───> recent incidents ──> /v1/events/{id} ──> text, picture
//! ```
//!
//! Nothing here decides anything, and nothing waits for a disk but the log's own thread: what it cannot
//! take is dropped and counted.

mod curve;
mod flight_record;
mod follow;
mod incident;
pub mod log;
mod recent;
mod thread;

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc,
        mpsc::{SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

use podwarden_cgroup::Tree;
use podwarden_policy::PodUid;

pub use self::{follow::Wanted, incident::Incident, recent::RecentIncidents};
use crate::{
    api::types::{Exit, FlightRecord, PodRef},
    base::worker::Joined,
    reactor::trace::Trace,
};

/// Messages that may wait for the thread, which looks at least ten times a second.
const WAITING: usize = 1024;

/// How long after an event its curves go on.
pub const AFTER: Duration = Duration::from_secs(1);

/// Exits that are kept for events that are published later.
const RECENT: usize = 256;

#[derive(Debug)]
enum Message {
    /// These are to be followed from now on, and no others.
    Follow(Vec<Wanted>),
    Incident(Box<OpenIncident>),
    Exit(PodUid, Exit),
}

/// An event whose curves are still being drawn.
#[derive(Debug)]
struct OpenIncident {
    id: u64,
    pod: PodRef,
    incident: Incident,
    exits: Vec<Exit>,
    due: Instant,
}

/// The sender: never waits.
#[derive(Debug)]
pub struct Recorder {
    // Before the thread, which ends when this is gone.
    messages: SyncSender<Message>,
    /// Pods whose exits belong to a flight, and until when.
    watched: Vec<(PodUid, Instant)>,
    recent: VecDeque<(PodUid, Exit)>,
    _thread: Joined,
}

impl Recorder {
    /// Starts the thread, with nothing to follow. It hands each flight record with its event's id to `publish`.
    pub fn start(
        tree: Tree,
        trace: Arc<Trace>,
        publish: impl Fn(u64, FlightRecord) + Send + 'static,
    ) -> io::Result<Self> {
        let (messages, waiting) = sync_channel(WAITING);
        let run = move || thread::run(&tree, &trace, &publish, &waiting);
        Ok(Self {
            messages,
            watched: Vec::new(),
            recent: VecDeque::with_capacity(RECENT),
            _thread: Joined::spawn("recorder", run)?,
        })
    }

    /// These cgroups are followed from now on.
    pub fn follow(&self, wanted: Vec<Wanted>) {
        self.tell(Message::Follow(wanted));
    }

    /// Records event `id`; `incident` has its facts so far.
    pub fn incident(&mut self, id: u64, pod: PodRef, incident: Incident) {
        let now = Instant::now();
        self.watched.retain(|(_, until)| *until > now);
        self.watched.push((pod.uid.clone(), now + AFTER));
        let recent = self.recent.iter();
        let exits = recent
            .filter(|(uid, exit)| *uid == pod.uid && exit.at_nanos >= incident.origin)
            .map(|(_, exit)| exit.clone())
            .collect();
        self.tell(Message::Incident(Box::new(OpenIncident {
            id,
            pod,
            incident,
            exits,
            due: now + AFTER,
        })));
    }

    /// A process of a pod ended.
    pub fn exited(&mut self, uid: &PodUid, exit: Exit) {
        if self.watched.iter().any(|(of, _)| of == uid) {
            self.tell(Message::Exit(uid.clone(), exit.clone()));
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((uid.clone(), exit));
    }

    fn tell(&self, message: Message) {
        if self.messages.try_send(message).is_err() {
            tracing::debug!("the flight recorder is behind: something is missing from a curve");
        }
    }
}
