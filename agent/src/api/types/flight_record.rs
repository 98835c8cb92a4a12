//! The flight record of an eviction or an OOM kill: `GET /v1/events/{id}`, and a line of the
//! event log.

use podwarden_policy::signal::{ScopeName, Signal};
use serde::{Deserialize, Serialize};

use super::{Event, PodRef};

/// An event with what the flight recorder has of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRecord {
    /// The event, as `/v1/events` has it.
    #[serde(flatten)]
    pub event: Event,
    /// Absent for events that are not recorded, and for the first second after one that is.
    /// Event logs of version 0.1.0 call it `flight`.
    #[serde(
        rename = "flightRecord",
        alias = "flight",
        skip_serializing_if = "Option::is_none"
    )]
    pub flight_record: Option<FlightRecord>,
}

/// What led to an event and what came of it. Times are `CLOCK_MONOTONIC` nanoseconds, as in the
/// eviction's timeline, unless they are offsets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlightRecord {
    /// What was in short supply: `memory.available`, `qosReserved.memory`, or `memory.limit` for an
    /// OOM kill.
    pub signal: Signal,
    /// The moment that the curves' offsets count from: the crossing, or the kernel's choice.
    pub origin_nanos: u64,
    /// The levels that were armed.
    pub levels: Vec<Level>,
    /// Who was to be evicted in which order, the first first; of many the first few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranking: Vec<Ranked>,
    /// How many pods were ranked in all.
    #[serde(default)]
    pub candidates: u32,
    /// Processes of the pod that ended since, in order; of many the first few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exits: Vec<Exit>,
    /// Usage before and after: the scopes, the pod, and who else used the most.
    pub curves: Vec<Curve>,
}

/// An armed level.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Level {
    /// `kubepods`, `burstable` or `besteffort`.
    pub scope: ScopeName,
    /// Working set at which the reactor acts, bytes.
    pub level_bytes: u64,
    /// Once it acts it goes on until the working set is below this, bytes.
    pub target_bytes: u64,
}

/// One pod's place in the order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ranked {
    pub pod: PodRef,
    /// Its usage when the victim was chosen, bytes.
    pub usage_bytes: u64,
    /// Its working set; absent where usage alone showed that others go first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_set_bytes: Option<u64>,
    /// Why it stands here.
    pub reason: String,
}

/// A process that ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Exit {
    pub at_nanos: u64,
    /// Its process id in the agent's namespace.
    pub pid: u32,
    /// `comm`.
    pub command: String,
    /// What ended it, where a signal did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
}

/// Usage over time, as two columns of the same length. Between two points nothing is known; where usage
/// stood still only the ends of that time have one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Curve {
    /// `kubepods`, `burstable` or `besteffort`; absent for a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<ScopeName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
    /// When, nanoseconds since [`FlightRecord::origin_nanos`]; negative before it. Ascending.
    pub offset_nanos: Vec<i64>,
    /// Memory charged then, bytes.
    pub usage_bytes: Vec<u64>,
}

/// The event log on disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventLogStats {
    /// The file; the generation before it has `.1` after its name.
    pub path: String,
    /// Size of that file, bytes; 0 while it cannot be opened.
    pub size_bytes: u64,
    /// Lines written since the agent started.
    pub written: u64,
    /// Lines that could not be written, or that the disk was too slow for.
    pub dropped: u64,
    /// Why the last line could not be written; absent when it could.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
}
