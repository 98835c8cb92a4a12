//! What the API server is told, in the kubelet's words where it has any
//! (`pkg/kubelet/eviction/helpers.go`, `eviction_manager.go`). Values only.

use podwarden_policy::Bytes;
use serde_json::{Value, json};

use super::{
    entry::{About, Entry},
    object::{Object, READY},
};
use crate::{
    api::{Eviction, PodRef},
    reactor::report::Crossing,
};

/// `reason` of a pod's status and of the Event about it.
pub(super) const EVICTED: &str = "Evicted";

/// `reason` of the Event about the node.
const THRESHOLD_MET: &str = "EvictionThresholdMet";

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

/// What is said of an eviction.
pub(super) fn eviction(eviction: &Eviction, sizes: &Sizes) -> String {
    let level = eviction.level_bytes + eviction.headroom_bytes;
    let (usage, scope) = (eviction.usage_bytes, eviction.scope.as_str());
    let low = |size: u64| {
        format!(
            "The node was low on resource: memory. Threshold quantity: {}, available: {}. ",
            Bytes(size.saturating_sub(level)),
            Bytes(size.saturating_sub(usage)),
        )
    };
    let why = match scope {
        "kubepods" => low(sizes.pods),
        "node" => low(sizes.node),
        "pressure" => {
            "The node had condition: [MemoryPressure]. Tasks waited for memory. ".to_owned()
        }
        tier => format!(
            "The {tier} tier was low on resource: memory. qosReserved leaves it {}, it used {}. ",
            Bytes(level),
            Bytes(usage),
        ),
    };
    let mut message = format!(
        "{why}Pod was using {}, of class {}: {}. ",
        Bytes(eviction.victim_usage_bytes),
        eviction.qos_class,
        eviction.reason,
    );
    truncate(&mut message, LONGEST);
    message
}

/// What is said of a node at a level.
pub(super) fn pressure(crossing: &Crossing) -> String {
    format!(
        "Attempting to reclaim memory: {} uses {}, its level is {}",
        crossing.scope.as_str(),
        Bytes(crossing.usage),
        Bytes(crossing.level + crossing.headroom),
    )
}

/// What is written to the status of an object as it was found, and of no other.
pub(super) fn status(entry: &Entry, object: &Object) -> Value {
    let time = seconds(&entry.time);
    let mut conditions = vec![json!({
        "type": "DisruptionTarget",
        "status": "True",
        // What watches for this condition knows this reason.
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
        "metadata": {"uid": object.uid, "resourceVersion": object.version},
        "status": {
            "phase": "Failed",
            "reason": EVICTED,
            "message": entry.message,
            "conditions": conditions,
        },
    })
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

/// The Event for an entry, about the object `uid` of `pod`. Its name is the entry's: sent twice it is there
/// already.
pub(super) fn event(entry: &Entry, pod: &PodRef, uid: &str, node: &str) -> Value {
    let (about, namespace, reason) = match &entry.about {
        About::Pod { .. } => (
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "namespace": pod.namespace, "name": pod.name, "uid": uid,
            }),
            pod.namespace.as_str(),
            EVICTED,
        ),
        About::Node { name } => (
            // The kubelet writes the node's name for its uid, and what shows a node's Events asks for that.
            json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": name}),
            "default",
            THRESHOLD_MET,
        ),
    };
    let time = seconds(&entry.time);
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
        "type": "Warning",
        "source": {"component": COMPONENT, "host": node},
        "reportingComponent": COMPONENT,
        "reportingInstance": node,
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
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
fn seconds(time: &str) -> String {
    match time.parse::<jiff::Timestamp>() {
        Ok(time) => format!("{time:.0}"),
        // An entry that somebody has written by hand: the server says what is wrong with it.
        Err(_) => time.to_owned(),
    }
}

fn truncate(text: &mut String, most: usize) {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{core::v1, policy::v1 as policy};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn an_eviction(scope: &str) -> Eviction {
        Eviction {
            pod: PodRef {
                name: "web".to_owned(),
                namespace: "shop".to_owned(),
                uid: "u1".to_owned(),
            },
            qos_class: "BestEffort".to_owned(),
            scope: scope.to_owned(),
            level_bytes: 370 * MIB,
            headroom_bytes: 14 * MIB,
            usage_bytes: 400 * MIB,
            victim_usage_bytes: 200 * MIB,
            reason: "uses more than it requests".to_owned(),
            ..Eviction::default()
        }
    }

    const SIZES: Sizes = Sizes {
        pods: 512 * MIB,
        node: 1024 * MIB,
    };

    #[test]
    fn the_message_has_the_signal_and_the_figures() {
        let tail = "Pod was using 200Mi, of class BestEffort: uses more than it requests. ";
        for (scope, why) in [
            (
                "kubepods",
                "The node was low on resource: memory. Threshold quantity: 128Mi, available: 112Mi. ",
            ),
            (
                "node",
                "The node was low on resource: memory. Threshold quantity: 640Mi, available: 624Mi. ",
            ),
            (
                "besteffort",
                "The besteffort tier was low on resource: memory. qosReserved leaves it 384Mi, it used 400Mi. ",
            ),
            (
                "pressure",
                "The node had condition: [MemoryPressure]. Tasks waited for memory. ",
            ),
        ] {
            let message = eviction(&an_eviction(scope), &SIZES);
            assert_eq!(message, format!("{why}{tail}"));
        }
        let long = Eviction {
            reason: "ä".repeat(2000),
            ..an_eviction("node")
        };
        assert!(eviction(&long, &SIZES).len() <= LONGEST);
    }

    fn entry() -> Entry {
        Entry::of_eviction(
            "2026-01-02T03:04:05.678901Z",
            &an_eviction("kubepods"),
            None,
            &SIZES,
        )
    }

    /// What the API's type makes of it: a field that it does not know is lost.
    fn typed<T: serde::de::DeserializeOwned + serde::Serialize>(value: &Value) -> T {
        let typed: T = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(serde_json::to_value(&typed).unwrap(), *value);
        typed
    }

    #[test]
    fn everything_is_what_the_api_knows() {
        let entry = entry();
        let pod = an_eviction("").pod;
        let event: v1::Event = typed(&event(&entry, &pod, "u2", "n1"));
        assert_eq!(event.metadata.namespace.as_deref(), Some("shop"));
        assert_eq!(
            (
                event.involved_object.uid.as_deref(),
                event.reason.as_deref()
            ),
            (Some("u2"), Some(EVICTED))
        );
        let request: policy::Eviction = typed(&eviction_request(&pod, "u2"));
        let options = request.delete_options.unwrap();
        assert_eq!(options.preconditions.unwrap().uid.as_deref(), Some("u2"));
        let mut object = Object {
            uid: "u2".to_owned(),
            version: "7".to_owned(),
            has_ended: false,
            ready: true,
        };
        let of = |object: &Object| {
            let status: v1::PodStatus = typed(&status(&entry, object)["status"]);
            status.conditions.unwrap()
        };
        let kinds: Vec<_> = of(&object).into_iter().map(|c| c.type_).collect();
        assert_eq!(kinds, ["DisruptionTarget", "Ready", "ContainersReady"]);
        object.ready = false;
        let conditions = of(&object);
        assert_eq!(conditions.len(), 1);
        assert_eq!(conditions[0].type_, "DisruptionTarget");
        let node = Entry::of_pressure(entry.time, "n1", 7, "short".to_owned());
        let about_node: v1::Event = typed(&super::event(&node, &PodRef::default(), "", "n1"));
        // Of an object without a namespace.
        assert_eq!(about_node.metadata.namespace.as_deref(), Some("default"));
        assert_eq!(about_node.reason.as_deref(), Some(THRESHOLD_MET));
    }

    #[test]
    fn names_of_events_are_names() {
        let id = "0123456789abcdef";
        assert_eq!(event_name(id, "web-0"), "web-0.0123456789abcdef");
        let long = format!("{}-.{}", "a".repeat(235), "b".repeat(16));
        let name = event_name(id, &long);
        assert_eq!(name, format!("{}.{id}", "a".repeat(235)));
        assert!(event_name(id, &"a".repeat(253)).len() <= 253);
    }
}
