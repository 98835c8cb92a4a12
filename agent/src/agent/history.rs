//! The event log at the start: what is in it, and the thread that goes on with it.

use std::sync::Arc;

use crate::{
    api::{
        published::{EVENTS_KEPT, Published},
        types::{EventKind, Eviction},
    },
    config::EventLogConfig,
    eviction::recorder::log::{self, Begun, History, Log, LogFile},
};

/// What the event log gives.
#[derive(Default)]
pub(super) struct Opened {
    /// The agent's outward state with the events of agents before it.
    pub(super) published: Arc<Published>,
    /// The thread, where a log is configured.
    pub(super) log: Option<Log>,
    /// Evictions by agents before this one, each with its time.
    pub(super) evictions: Vec<(String, Eviction)>,
}

/// Opens it. Whatever is wrong with the log is said and does not keep the agent from its work.
pub(super) fn open(config: Option<&EventLogConfig>) -> Opened {
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
    // The thread lives no longer than what it tells.
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
            tell_interrupted(&published, history.interrupted);
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

/// Evictions that the agent before this one had no time to tell of are events of this one.
fn tell_interrupted(published: &Published, interrupted: Vec<Begun>) {
    for Begun { time, mut eviction } in interrupted {
        tracing::warn!(
            pod = eviction.pod.name,
            uid = eviction.pod.uid,
            "the agent before this one ended during this eviction"
        );
        eviction.interrupted = true;
        let pod = Some(eviction.pod.clone());
        published.event(time, pod, EventKind::Eviction(Box::new(eviction)));
    }
}
