//! What the fuzz targets of `agent/fuzz` read pods with.

use std::path::Path;

use super::{
    PodSet, Source, SourceError, SourcedPod, apiserver,
    checkpoint::{self, Checkpoint},
    mux::PodEvent,
};

/// Pods, and those that cannot be used.
pub type Read = (Vec<SourcedPod>, Vec<SourceError>);

const NODE: &str = "node-1";

/// The pods of a server's list; `None` where it is none.
pub fn list(text: &str, by: Source) -> Option<Read> {
    let list: apiserver::object::List<'_> = serde_json::from_str(text).ok()?;
    Some(list.pods(by))
}

/// The pod of a line of a watch; `None` where it has none.
pub fn watch_line(text: &str) -> Option<Read> {
    match apiserver::event(text)? {
        PodEvent::Apply(pod) => Some((vec![*pod], Vec::new())),
        PodEvent::Unusable(error) => Some((Vec::new(), vec![*error])),
        PodEvent::Replace { .. } | PodEvent::Delete(_) => None,
    }
}

/// Reads a Node object.
pub fn node(text: &str) {
    let _ = apiserver::node::advertised(text);
}

/// The checkpoint of these pods.
pub fn checkpoint(pods: Vec<SourcedPod>) -> Vec<u8> {
    let set = PodSet {
        pods,
        ..PodSet::default()
    };
    checkpoint::text(&set, NODE, "")
}

/// The pods of a checkpoint; `None` where it is not understood.
pub fn restore(text: &[u8]) -> Option<Vec<SourcedPod>> {
    Checkpoint::new(Path::new(""), NODE).parse(text).ok()
}
