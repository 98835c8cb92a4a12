//! What the API server is told, in the kubelet's words where it has any
//! (`pkg/kubelet/eviction/helpers.go`, `eviction_manager.go`). Values only.

use podwarden_policy::{Bytes, signal::Signal};
use serde_json::{Value, json};

use super::{
    condition::State,
    entry::{About, Entry},
    object::{Object, READY},
    pressure_period::PressurePeriod,
};
use crate::{
    api::types::{Eviction, PodRef},
    reactor::report::Crossing,
};

/// `reason` of a pod's status and of the Event about it.
pub(super) const EVICTED: &str = "Evicted";

/// `reason` of the Event about a node that comes under pressure.
const THRESHOLD_MET: &str = "EvictionThresholdMet";

/// About a node at a level on which no pod is evicted, or few are, because none is what grows.
const HELD_BACK: &str = "EvictionHeldBack";

/// And about one that is relieved, for which the kubelet has no Event of its own.
const RELIEVED: &str = "MemoryPressureRelieved";

/// `type` of the Node's condition.
const CONDITION: &str = "PodwardenReady";

/// Who says so.
const COMPONENT: &str = "podwarden";

/// The most that the message of a status or an Event should have (`noteLengthLimit` of Kubernetes
/// `pkg/apis/core/validation/events.go`).
const LONGEST: usize = 1024;

/// What the pods and the node have in all, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    /// What pods together may use.
    pub pods: u64,
    /// The machine's memory.
    pub node: u64,
}

/// What is said of an eviction. A threshold and what is available are told as they were compared: of the working
/// set, with the headroom or the minimum reclaim where one of them decided.
pub(super) fn eviction(eviction: &Eviction, sizes: &Sizes) -> String {
    let level = eviction.level_bytes + eviction.headroom_bytes;
    let used = eviction.working_set();
    let scope = eviction.scope;
    let low = |size: u64| {
        format!(
            "The node was low on resource: memory. Threshold quantity: {}, available: {}. {}",
            Bytes(size.saturating_sub(level)),
            Bytes(size.saturating_sub(used)),
            lower(eviction, used, |level| Bytes(size.saturating_sub(level))),
        )
    };
    let why = match scope.signal() {
        Signal::AllocatableMemoryAvailable => low(sizes.pods),
        Signal::MemoryAvailable => low(sizes.node),
        Signal::MemoryPressure => {
            "The node had condition: [MemoryPressure]. Tasks waited for memory. ".to_owned()
        }
        Signal::PidAvailable => format!(
            "The node was low on resource: pids. Pods are evicted from {} on, there were {}. ",
            scope.signal().amount(level),
            scope.signal().amount(used),
        ),
        Signal::BestEffortCpu => "The node was low on resource: cpu. ".to_owned(),
        Signal::BatchMemory => "The node was low on resource: memory. ".to_owned(),
        Signal::QosReservedMemory | Signal::MemoryLimit => format!(
            "The {scope} tier was low on resource: memory. Its level is {}, it used {}. {}",
            Bytes(level),
            Bytes(used),
            lower(eviction, used, Bytes),
        ),
    };
    let mut message = format!(
        "{why}Pod was using {}, of class {}: {}. ",
        Bytes(eviction.victim_working_set()),
        eviction.qos_class,
        eviction.reason,
    );
    truncate(&mut message, LONGEST);
    message
}

/// Why a pod was evicted below the configured level, where it was. `shown` makes a level what the reader is shown.
fn lower(eviction: &Eviction, used: u64, shown: impl Fn(u64) -> Bytes) -> String {
    let level = eviction.level_bytes;
    match eviction.target_bytes {
        _ if used >= level + eviction.headroom_bytes => String::new(),
        Some(target) if used < level => format!(
            "After an eviction pods are evicted until it is {} (evictionMinimumReclaim). ",
            shown(target)
        ),
        _ => format!(
            "At {} a second pods are evicted from {} on, a headroom of {}. ",
            rate(eviction.fill_bytes_per_second),
            shown(level),
            Bytes(eviction.headroom_bytes),
        ),
    }
}

/// A rate in whole mebibytes, rounded up.
fn rate(bytes: u64) -> Bytes {
    const MIB: u64 = 1 << 20;
    Bytes(bytes.div_ceil(MIB).saturating_mul(MIB))
}

/// What is said of a node at a level, after `untold` times of which nothing was said.
pub(super) fn pressure(crossing: &Crossing, untold: u32) -> String {
    let before = match untold {
        0 => String::new(),
        n => format!(" (and {n} times before, of which nothing was said)"),
    };
    let headroom = match crossing.headroom {
        0 => String::new(),
        headroom => format!(
            ", {} below the configured one as it fills by {} a second",
            Bytes(headroom),
            rate(crossing.fill_rate)
        ),
    };
    format!(
        "Attempting to reclaim memory: {} uses {}, its level is {}{headroom}{before}",
        crossing.scope,
        Bytes(crossing.working_set),
        Bytes(crossing.level),
    )
}

/// What is said of a node that was short of memory.
pub(super) fn relief(period: &PressurePeriod) -> String {
    let PressurePeriod {
        lasted,
        crossings,
        evicted,
        names,
        ..
    } = period;
    let times = match crossings {
        1 => "a level was reached once".to_owned(),
        n => format!("a level was reached {n} times"),
    };
    let pods = match (evicted, evicted - names.len()) {
        (0, _) => "no pod was evicted".to_owned(),
        (1, _) => format!("evicted: {}", names.join(", ")),
        (n, 0) => format!("{n} pods were evicted: {}", names.join(", ")),
        (n, more) => format!(
            "{n} pods were evicted: {}, and {more} more",
            names.join(", ")
        ),
    };
    let mut message = format!(
        "Memory was short for {:.1} s: {times}, {pods}",
        lasted.as_secs_f64()
    );
    truncate(&mut message, LONGEST);
    message
}

/// The annotation with the time at which the status was written. A kubelet ends a pod whose status says that it has
/// failed when it next looks at the pod, and before that it may write its own status over ours; a change of an
/// annotation makes it look at once (`podsDifferSemantically` of `pkg/kubelet/config/config.go`).
const MARKED: &str = "podwarden.io/evicted";

/// What is written at `now` to the status of an object as it was found, and of no other.
pub(super) fn status(entry: &Entry, object: &Object, now: &str) -> Value {
    let time = seconds(&entry.time);
    let mut conditions = vec![json!({
        "type": "DisruptionTarget",
        "status": "True",
        // The reason that watchers of this condition expect.
        "reason": "TerminationByKubelet",
        "message": entry.message,
        "lastTransitionTime": time,
    })];
    // No pod is ready that has failed (`mergePodStatus` of `pkg/kubelet/status/status_manager.go`).
    let ready = READY.iter().filter(|_| object.ready);
    conditions.extend(ready.map(|kind| {
        json!({
            "type": kind,
            "status": "False",
            "reason": "PodFailed",
            "lastTransitionTime": time,
        })
    }));
    json!({
        "metadata": {
            "uid": object.uid,
            "resourceVersion": object.version,
            "annotations": {MARKED: now},
        },
        "status": {
            "phase": "Failed",
            "reason": EVICTED,
            "message": entry.message,
            "conditions": conditions,
        },
    })
}

/// The condition of the Node as it is at `time`; its status is what it is since `since`.
pub(super) fn condition(state: &State, time: &str, since: &str) -> Value {
    let mut message = state.message.clone();
    truncate(&mut message, LONGEST);
    let condition = json!({
        "type": CONDITION,
        "status": state.status,
        "reason": state.reason,
        "message": message,
        "lastHeartbeatTime": seconds(time),
        "lastTransitionTime": seconds(since),
    });
    json!({"status": {"conditions": [condition]}})
}

/// The eviction of an object of the API and of no other with its name.
pub(super) fn eviction_request(pod: &PodRef, uid: &str) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": uid}},
    })
}

/// The same as a question.
pub(super) fn eviction_question(pod: &PodRef, uid: &str) -> Value {
    let mut request = eviction_request(pod, uid);
    request["deleteOptions"]["dryRun"] = json!(["All"]);
    request
}

/// The Event for an entry, about the object `uid` of `pod`. Its name is the entry's: sent twice it is there
/// already.
pub(super) fn event(entry: &Entry, pod: &PodRef, uid: &str, node: &str) -> Value {
    let time = seconds(&entry.time);
    let (about, namespace) = match &entry.about {
        About::Pod { .. } => (
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "namespace": pod.namespace, "name": pod.name, "uid": uid,
            }),
            pod.namespace.as_str(),
        ),
        About::Node { name, .. } => (
            // The kubelet uses the node's name as uid, and clients filter a node's Events by that.
            json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": name}),
            "default",
        ),
    };
    let (reason, kind, first, count) = match &entry.about {
        About::Pod { .. } => (EVICTED, "Warning", time.clone(), 1),
        About::Node {
            held_back: true, ..
        } => (HELD_BACK, "Warning", time.clone(), 1),
        About::Node { past: None, .. } => (THRESHOLD_MET, "Warning", time.clone(), 1),
        About::Node {
            past: Some(past), ..
        } => (RELIEVED, "Normal", seconds(&past.since), past.crossings),
    };
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": event_name(&entry.id, about["name"].as_str().unwrap_or_default()),
            "namespace": namespace,
            "annotations": {"starved_resource": "memory"},
        },
        "involvedObject": about,
        "reason": reason,
        "message": entry.message,
        "type": kind,
        "source": {"component": COMPONENT, "host": node},
        "reportingComponent": COMPONENT,
        "reportingInstance": node,
        "firstTimestamp": first,
        "lastTimestamp": time,
        "count": count,
    })
}

/// A DNS subdomain, as names of Events are: at most 253 characters.
fn event_name(id: &str, whose: &str) -> String {
    let mut name = whose.to_owned();
    truncate(&mut name, 252 - id.len());
    let name = name.trim_end_matches(['.', '-']);
    format!("{name}.{id}")
}

/// `metav1.Time` has whole seconds.
pub(super) fn seconds(time: &str) -> String {
    match time.parse::<jiff::Timestamp>() {
        Ok(time) => format!("{time:.0}"),
        // An entry that was written by hand: the server's answer names the error.
        Err(_) => time.to_owned(),
    }
}

/// Cuts a message to the length that an Event may have.
pub(super) fn shorten(message: &mut String) {
    truncate(message, LONGEST);
}

fn truncate(text: &mut String, most: usize) {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
}

#[cfg(test)]
mod tests;
