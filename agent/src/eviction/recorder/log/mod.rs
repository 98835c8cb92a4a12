//! The event log: evictions and OOM kills as JSON lines, in a file and one rotated generation.
//!
//! A line is written whole and synced before the next. The last line for an id stands: an event is
//! written as it happens, and again with its curves once those are there. An eviction has a line before
//! that, at the kill: an agent that ends before the memory is free has no event of it yet.

mod file;
mod history;
mod writer;

use serde::{Deserialize, Serialize};

pub use self::{
    file::LogFile,
    history::{History, find, read},
    writer::{Log, LogState, Logger},
};
use crate::api::types::{EventKind, EventRecord, Eviction};

/// What a line holds.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    /// An event with what is known of it.
    Record(Box<EventRecord>),
    Reservation(Reservation),
    Begun(Box<Begun>),
}

/// An eviction at the moment of the kill, before it is an event. One with an event, in a later line, is
/// over; see `Begun::is`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Begun {
    /// When, as an event has it.
    pub time: String,
    /// What is known of it.
    #[serde(rename = "begun")]
    pub eviction: Eviction,
}

impl Begun {
    /// True when `event` is about the same eviction: one pod is killed once at a time.
    fn is(&self, event: &EventKind) -> bool {
        let EventKind::Eviction(other) = event else {
            return false;
        };
        let key = |eviction: &Eviction| eviction.timeline.killed_nanos;
        self.eviction.pod.uid == other.pod.uid && key(&self.eviction) == key(other)
    }
}

/// Ids up to this one may have been given out, also to events that are not kept here: the next agent
/// begins after it. The first line of every file, and again when they run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Reservation {
    ids_reserved_to: u64,
}

/// Whether events of this kind are kept: those that matter days later.
pub fn is_kept(kind: &EventKind) -> bool {
    matches!(
        kind,
        EventKind::Eviction(_)
            | EventKind::KernelOom { .. }
            | EventKind::TookOver(_)
            | EventKind::GapOpened { .. }
            | EventKind::GapClosed { .. }
    )
}

/// `path` with `.1` after it: the generation before.
fn rotated(path: &std::path::Path) -> std::path::PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}
