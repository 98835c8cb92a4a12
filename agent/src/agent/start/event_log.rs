//! The event log at the start: what agents before this one recorded, and the thread that writes on.

use std::sync::Arc;

use crate::{
    api::{
        published::{EVENTS_KEPT, Published},
        types::{EventKind, Eviction},
    },
    config::EventLogConfig,
    eviction::recorder::log::{self, Begun, History, Log, LogFile},
};

/// What is known once the log is open.
#[derive(Default)]
pub(in crate::agent) struct Opened {
    /// The agent's outward state with the events of agents before it.
    pub(in crate::agent) published: Arc<Published>,
    /// The thread, where a log is configured.
    pub(in crate::agent) log: Option<Log>,
    /// Evictions by agents before this one, each with its time.
    pub(in crate::agent) evictions: Vec<(String, Eviction)>,
}

/// Opens the log. A problem with it is reported and does not keep the agent from its work.
pub(in crate::agent) fn open(config: Option<&EventLogConfig>) -> Opened {
    let Some(config) = config else {
        return Opened::default();
    };
    let path = config.path.display();
    let history = log::read(&config.path, EVENTS_KEPT).unwrap_or_else(|error| {
        tracing::warn!(%error, "the event log {path} cannot be read: events begin anew");
        History::default()
    });
    if history.skipped > 0 {
        tracing::warn!(
            lines = history.skipped,
            "lines of the event log {path} were skipped: torn by a crash, or written by another version"
        );
    }
    tracing::info!(events = history.events.len(), "read the event log {path}");
    let evictions = evictions(&history);
    let published = Arc::new(Published::after(history.events, history.last_id));
    let file = LogFile::new(config.path.clone(), config.max_size.as_u64());
    // The thread does not keep the published state alive.
    let weak = Arc::downgrade(&published);
    let say = move |message: String| {
        tracing::warn!("{message}");
        if let Some(published) = weak.upgrade() {
            published.degraded(message);
        }
    };
    let log = match Log::start(file, history.last_id, say) {
        Ok((log, logger)) => {
            published.set_logger(Some(logger));
            publish_interrupted(&published, history.interrupted);
            Some(log)
        }
        Err(error) => {
            tracing::warn!(%error, "no thread for the event log: nothing is written to {path}");
            None
        }
    };
    Opened {
        published,
        log,
        evictions,
    }
}

fn evictions(history: &History) -> Vec<(String, Eviction)> {
    let whole = history.events.iter().filter_map(|event| match &event.kind {
        EventKind::Eviction(eviction) => Some((&event.time, &**eviction)),
        _ => None,
    });
    let interrupted = history.interrupted.iter();
    let interrupted = interrupted.map(|begun| (&begun.time, &begun.eviction));
    whole
        .chain(interrupted)
        .filter(|(_, eviction)| !eviction.dry_run)
        .map(|(time, eviction)| (time.clone(), eviction.clone()))
        .collect()
}

/// Evictions during which the agent before this one ended become events of this one.
fn publish_interrupted(published: &Published, interrupted: Vec<Begun>) {
    for Begun { time, mut eviction } in interrupted {
        tracing::warn!(
            pod = eviction.pod.name.as_str(),
            uid = %eviction.pod.uid,
            "the agent before this one ended during this eviction"
        );
        eviction.interrupted = true;
        let pod = Some(eviction.pod.clone());
        published.event(time, pod, EventKind::Eviction(Box::new(eviction)));
    }
}
