//! Statuses as kubelet 1.36 writes them after a `patch pods --subresource resize`.

use podwarden_policy::{Bytes, MilliCpu, QosClass};
use serde_json::{Value, json};

use crate::pods::{Source, SourcedPod, apiserver::object};

fn read(value: &Value) -> SourcedPod {
    let raw = serde_json::value::to_raw_value(value).unwrap();
    object::pod(&raw, Source::Apiserver).unwrap()
}

fn resources(requests: &[&str; 2], limits: &[&str; 2]) -> Value {
    let list = |[cpu, memory]: &[&str; 2]| {
        let mut list = json!({});
        for (name, text) in [("cpu", cpu), ("memory", memory)] {
            if !text.is_empty() {
                list[name] = (*text).into();
            }
        }
        list
    };
    json!({"requests": list(requests), "limits": list(limits)})
}

/// A pod whose spec asks for `asked`, and whose container was granted `granted`.
fn resized(asked: &Value, granted: &Value, reason: Option<&str>) -> Value {
    let conditions = reason
        .map(|reason| json!([{"type": "PodResizePending", "status": "True", "reason": reason}]));
    json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "u1", "generation": 2},
        "spec": {"nodeName": "n", "containers": [{"name": "app", "resources": asked}]},
        "status": {
            "phase": "Running",
            "observedGeneration": 2,
            "conditions": conditions,
            "containerStatuses": [{
                "name": "app",
                "containerID": "containerd://1",
                "allocatedResources": granted["requests"],
                "resources": granted,
            }],
        },
    })
}

fn memory(pod: &SourcedPod) -> (Option<Bytes>, Option<Bytes>) {
    let resources = &pod.pod.containers[0].resources;
    (resources.memory_request, resources.memory_limit)
}

const NONE: [&str; 2] = ["", ""];

#[test]
fn a_resize_that_is_not_granted_does_not_count() {
    let granted = resources(&["100m", "77Mi"], &["", "128Mi"]);
    let before = Bytes::mebi(77);
    for reason in [Some("Deferred"), Some("Infeasible"), None] {
        let asked = resources(&["100m", "21Gi"], &["", "22Gi"]);
        let pod = read(&resized(&asked, &granted, reason));
        assert_eq!(
            memory(&pod),
            (Some(before), Some(Bytes::mebi(128))),
            "{reason:?}"
        );
        assert_eq!(pod.qos, QosClass::Burstable);
        assert!(pod.resizing, "{reason:?}");
    }
}

#[test]
fn a_resize_that_is_granted_counts_at_once() {
    let asked = resources(&["200m", "256Mi"], &["", "512Mi"]);
    let mut value = resized(&asked, &asked, None);
    // The runtime still has the limit of before.
    value["status"]["containerStatuses"][0]["resources"]["limits"]["memory"] = "128Mi".into();
    value["status"]["conditions"] = json!([{"type": "PodResizeInProgress", "status": "True"}]);
    let pod = read(&value);
    assert_eq!(
        memory(&pod),
        (Some(Bytes::mebi(256)), Some(Bytes::mebi(512)))
    );
    let cpu = pod.pod.containers[0].resources.cpu_request;
    assert_eq!(cpu, Some(MilliCpu(200)));
    assert!(pod.resizing, "the kubelet writes it now");
    assert!(!read(&resized(&asked, &asked, None)).resizing);
}

#[test]
fn limits_alone_wait_for_the_kubelet_too() {
    let granted = resources(&["100m", "64Mi"], &["", "128Mi"]);
    let asked = resources(&["100m", "64Mi"], &["", "1Gi"]);
    let pending = read(&resized(&asked, &granted, Some("Deferred")));
    assert_eq!(memory(&pending).1, Some(Bytes::mebi(128)));
    // The kubelet has not looked at it yet, so there is no condition.
    let mut unseen = resized(&asked, &granted, None);
    unseen["status"]["observedGeneration"] = 1.into();
    assert_eq!(memory(&read(&unseen)).1, Some(Bytes::mebi(128)));
    assert!(read(&unseen).resizing);
    let seen = read(&resized(&asked, &granted, None));
    assert_eq!(memory(&seen).1, Some(Bytes::gibi(1)));
}

#[test]
fn a_guaranteed_pod_stays_one_at_every_moment() {
    let asked = resources(&["2", "2Gi"], &["2", "2Gi"]);
    let mut granted = resources(&["1", "1Gi"], &["1", "1Gi"]);
    // The runtime is on its way from the resize before.
    granted["limits"]["memory"] = "512Mi".into();
    for reason in [Some("Deferred"), Some("Infeasible"), None] {
        let pod = read(&resized(&asked, &granted, reason));
        assert_eq!(pod.qos, QosClass::Guaranteed, "{reason:?}");
        assert_eq!(memory(&pod), (Some(Bytes::gibi(1)), Some(Bytes::gibi(1))));
    }
}

#[test]
fn figures_of_two_moments_do_not_change_the_class() {
    // What was granted and what is in force happen to be equal.
    let asked = resources(&["1", "2Gi"], &["2", "4Gi"]);
    let granted = resources(&["1", "1Gi"], &["1", "1Gi"]);
    let pod = read(&resized(&asked, &granted, Some("Deferred")));
    assert_eq!(pod.qos, QosClass::Burstable);
    assert_eq!(
        memory(&pod),
        (Some(Bytes::gibi(1)), Some(Bytes::gibi(4))),
        "the spec's limits with what was granted"
    );
}

#[test]
fn a_status_without_allocated_resources_leaves_the_spec() {
    let asked = resources(&["100m", "64Mi"], &["", "128Mi"]);
    let mut value = resized(&asked, &resources(&NONE, &NONE), None);
    value["status"]["containerStatuses"][0] = json!({"name": "app", "containerID": "c://1"});
    assert_eq!(
        memory(&read(&value)),
        (Some(Bytes::mebi(64)), Some(Bytes::mebi(128)))
    );
    value["status"] = json!({});
    assert_eq!(memory(&read(&value)).0, Some(Bytes::mebi(64)));
}

#[test]
fn sidecars_count_and_a_container_that_waits_has_its_spec() {
    let mut value = resized(
        &resources(&["100m", "64Mi"], &NONE),
        &resources(&["100m", "64Mi"], &NONE),
        Some("Deferred"),
    );
    value["spec"]["initContainers"] = json!([
        {"name": "proxy", "restartPolicy": "Always", "resources": {"requests": {"memory": "8Gi"}}},
        {"name": "late", "restartPolicy": "Always", "resources": {"requests": {"memory": "16Mi"}}},
    ]);
    value["status"]["initContainerStatuses"] = json!([
        {"name": "proxy", "containerID": "c://2", "allocatedResources": {"memory": "32Mi"}},
        {"name": "late", "state": {"waiting": {}}},
    ]);
    let pod = read(&value);
    let requests: Vec<_> = (pod.pod.containers.iter())
        .map(|c| c.resources.memory_request)
        .collect();
    assert_eq!(
        requests,
        [
            Some(Bytes::mebi(32)),
            Some(Bytes::mebi(16)),
            Some(Bytes::mebi(64))
        ]
    );
}

#[test]
fn pod_level_resources_without_the_overhead() {
    let mut value = resized(&json!({}), &json!({}), Some("Deferred"));
    value["spec"]["resources"] = resources(&["1", "8Gi"], &["", "16Gi"]);
    value["spec"]["overhead"] = json!({"memory": "120Mi"});
    value["status"]["allocatedResources"] = json!({"cpu": "1", "memory": "1144Mi"});
    value["status"]["resources"] = resources(&["1", "1144Mi"], &["", "2168Mi"]);
    let pod = read(&value);
    let own = pod.pod.pod_resources.unwrap();
    assert_eq!(own.memory_request, Some(Bytes::gibi(1)));
    assert_eq!(own.memory_limit, Some(Bytes::gibi(2)));
}
