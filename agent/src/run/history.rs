//! The event log at the start: what is in it, and the thread that goes on with it.

use std::sync::Arc;

use crate::{
    api::EventKind,
    config::EventLogConfig,
    published::{EVENTS_KEPT, Published},
    recorder::log::{self, Begun, History, Log, LogFile},
};

/// The agent's outward state with the events of agents before it, and the log's thread where a log is
/// configured. Whatever is wrong with the log is said and does not keep the agent from its work.
pub(super) fn open(config: Option<&EventLogConfig>) -> (Arc<Published>, Option<Log>) {
    let Some(config) = config else {
        return (Arc::default(), None);
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
    match Log::start(file, history.last_id, say) {
        Ok((log, logger)) => {
            published.set_logger(Some(logger));
            tell_interrupted(&published, history.interrupted);
            (published, Some(log))
        }
        Err(error) => {
            tracing::warn!(%error, "no thread for the event log: nothing is written to {path}");
            (published, None)
        }
    }
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
