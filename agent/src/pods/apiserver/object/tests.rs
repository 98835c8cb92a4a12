use serde_json::json;

use super::*;

fn read(value: &serde_json::Value) -> Result<SourcedPod, Box<SourceError>> {
    pod(
        &serde_json::value::to_raw_value(value).unwrap(),
        Source::Apiserver,
    )
}

fn web() -> serde_json::Value {
    json!({
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": "web",
            "namespace": "shop",
            "uid": "11111111-2222-3333-4444-555555555555",
            "resourceVersion": "42",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}],
        },
        "spec": {
            "nodeName": "node-1",
            "priority": 7,
            "containers": [{"name": "app", "image": "app", "resources": {
                "requests": {"cpu": "500m", "memory": "64Mi"},
                "limits": {"cpu": "500m", "memory": "64Mi"},
            }}],
        },
        "status": {"phase": "Running", "qosClass": "Guaranteed"},
    })
}

#[test]
fn a_pod_of_the_api() {
    let pod = read(&web()).unwrap();
    assert_eq!(pod.pod.uid.as_str(), "11111111-2222-3333-4444-555555555555");
    assert_eq!(
        (pod.pod.namespace.as_str(), pod.pod.name.as_str()),
        ("shop", "web")
    );
    assert_eq!(pod.qos.as_str(), "Guaranteed");
    assert_eq!((pod.phase, pod.deleting), (Some(Phase::Running), false));
    assert_eq!(pod.pod.priority, 7);
    assert!(!pod.pod.static_pod && !pod.pod.critical && !pod.is_mirror());
}

#[test]
fn labels_that_colocation_goes_by() {
    let mut web = web();
    web["metadata"]["labels"] = json!({"app": "web", "koordinator.sh/qosClass": "LSR"});
    let labels = read(&web).unwrap().pod.colocation;
    assert_eq!(labels.qos_class.as_deref(), Some("LSR"));
    assert_eq!(labels.priority_class, None);
}

#[test]
fn phase_and_end() {
    let mut web = web();
    web["status"]["phase"] = "Failed".into();
    web["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z".into();
    let pod = read(&web).unwrap();
    assert!(pod.has_ended() && pod.deleting);
    // The node was not heard of for a while: it runs for all that.
    web["status"]["phase"] = "Unknown".into();
    assert_eq!(read(&web).unwrap().phase, None);
    web["status"] = serde_json::Value::Null;
    assert_eq!(read(&web).unwrap().phase, None);
}

#[test]
fn containers_are_named_by_their_status() {
    let mut web = web();
    assert_eq!(read(&web).unwrap().containers, BTreeMap::new());
    web["status"] = json!({
        "initContainerStatuses": [{"name": "migrate", "containerID": "containerd://0a1", "ready": true}],
        "containerStatuses": [
            {"name": "app", "containerID": "cri-o://2b3"},
            {"name": "starting", "containerID": ""},
            {"name": "waiting", "state": {"waiting": {"reason": "ContainerCreating"}}},
        ],
        "ephemeralContainerStatuses": null,
    });
    let named = [("0a1", "migrate"), ("2b3", "app")].map(|(id, name)| (id.into(), name.into()));
    assert_eq!(read(&web).unwrap().containers, BTreeMap::from(named));
}

#[test]
fn a_mirror_has_the_uid_of_its_static_pod() {
    let mut web = web();
    web["metadata"]["annotations"] = json!({
        "kubernetes.io/config.hash": "0123456789abcdef0123456789abcdef",
        "kubernetes.io/config.mirror": "0123456789abcdef0123456789abcdef",
        "kubernetes.io/config.seen": "2026-01-01T00:00:00Z",
        "kubernetes.io/config.source": "file",
    });
    web["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "n", "controller": true}]);
    let pod = read(&web).unwrap();
    assert_eq!(pod.pod.uid.as_str(), "0123456789abcdef0123456789abcdef");
    assert_eq!(pod.key(), "11111111-2222-3333-4444-555555555555");
    assert!(pod.is_mirror() && pod.pod.static_pod && pod.pod.is_critical());
}

#[test]
fn annotations_that_anyone_may_write_make_no_static_pod() {
    let mut web = web();
    web["metadata"]["annotations"] = json!({
        "kubernetes.io/config.mirror": "0123456789abcdef0123456789abcdef",
        "kubernetes.io/config.source": "file",
    });
    let owner = |kind: &str, name: &str| json!([{"apiVersion": "v1", "kind": kind, "name": name}]);
    for owners in [
        json!(null),
        owner("ReplicaSet", "node-1"),
        owner("Node", "node-2"),
    ] {
        web["metadata"]["ownerReferences"] = owners;
        let pod = read(&web).unwrap();
        assert_eq!(
            pod.pod.uid.as_str(),
            "11111111-2222-3333-4444-555555555555",
            "its cgroup has its own uid"
        );
        assert!(!pod.pod.static_pod && !pod.pod.is_critical() && !pod.is_mirror());
    }
    // On no node yet, and of a node without a name.
    web["spec"]["nodeName"] = json!(null);
    web["metadata"]["ownerReferences"] = owner("Node", "");
    assert!(!read(&web).unwrap().is_mirror());
}

#[test]
fn a_pod_that_the_server_accepts_is_always_a_pod() {
    let mut web = web();
    let container = &mut web["spec"]["containers"][0]["resources"];
    *container = json!({
        "requests": {"cpu": "9223372036854775807", "memory": "8Ei"},
        "limits": {"memory": "1Gi", "later.resource": "1", "later": "1"},
    });
    web["spec"]["overhead"] = json!({"memory": "1e30", "gpu": "1"});
    web["spec"]["resources"] = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "500m"}});
    let pod = read(&web).unwrap().pod;
    let most = i64::MAX as u64;
    let resources = &pod.containers[0].resources;
    assert_eq!(resources.cpu_request.unwrap().0, most);
    assert_eq!(resources.memory_request.unwrap().0, most);
    assert_eq!(pod.overhead.unwrap().memory.unwrap().0, most);
    // A decision can be made of it.
    let requests = podwarden_policy::limits::pod_requests(&pod);
    assert!(requests.memory.0 >= most);
}

#[test]
fn fields_of_later_versions_and_large_annotations_are_no_trouble() {
    let mut web = web();
    web["metadata"]["annotations"] = json!({"note": "x".repeat(1 << 20), "n": 1});
    web["spec"]["brandNew"] = json!({"deep": [1, 2, {"er": null}]});
    web["spec"]["containers"][0]["also"] = json!(["new"]);
    web["status"]["conditions"] = json!([{"odd": true}]);
    read(&web).unwrap();
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    for (place, value, expected) in [
        ("/metadata/uid", json!(""), "metadata.uid is missing"),
        ("/metadata/uid", json!("../etc"), "metadata.uid is `../etc`"),
        ("/metadata/name", json!(null), "metadata.name is missing"),
        ("/spec", json!(null), "spec is missing"),
        (
            "/spec/containers",
            json!(null),
            "spec.containers is missing",
        ),
        (
            "/spec/containers/0/name",
            json!(5),
            "spec.containers[0].name: ",
        ),
        (
            "/spec/containers/0/resources/limits/memory",
            json!("64Mib"),
            "spec.containers[0].resources.limits.memory is `64Mib`",
        ),
        (
            "/metadata/annotations",
            json!({MIRROR: 5}),
            "metadata.annotations.",
        ),
    ] {
        let mut web = web();
        web["metadata"]["annotations"] = json!({});
        *web.pointer_mut(place).unwrap() = value;
        let error = read(&web).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(expected), "{place}: {text}");
        if !place.ends_with("uid") {
            // What was known of it before can be found.
            assert_eq!(
                error.key(),
                Some("11111111-2222-3333-4444-555555555555"),
                "{text}"
            );
        }
    }
}

#[test]
fn a_list_tells_of_every_pod_on_its_own() {
    let mut bad = web();
    bad["metadata"]["uid"] = "bad".into();
    bad["spec"]["containers"] = json!("none");
    let text = json!({
        "kind": "PodList",
        "apiVersion": "v1",
        "metadata": {"resourceVersion": "99", "continue": "token"},
        "items": [web(), bad],
    })
    .to_string();
    let list: List<'_> = serde_json::from_str(&text).unwrap();
    let (pods, errors) = list.pods(Source::Apiserver);
    assert_eq!((pods.len(), errors.len()), (1, 1));
    assert_eq!(errors[0].key(), Some("bad"));
    assert_eq!(
        (
            list.metadata.resource_version.as_deref(),
            list.metadata.more.as_str()
        ),
        (Some("99"), "token")
    );
    // As Go writes an empty list.
    let empty: List<'_> =
        serde_json::from_str(r#"{"metadata":{"resourceVersion":"1"},"items":null}"#).unwrap();
    assert_eq!(empty.pods(Source::Apiserver), (Vec::new(), Vec::new()));
}

#[test]
fn a_list_of_a_kubelet_has_no_version_and_static_pods_themselves() {
    let mut etcd = web();
    etcd["metadata"]["uid"] = "0123456789abcdef0123456789abcdef".into();
    etcd["metadata"]["annotations"] = json!({
        "kubernetes.io/config.hash": "0123456789abcdef0123456789abcdef",
        "kubernetes.io/config.source": "file",
    });
    let mut bad = web();
    bad["metadata"]["uid"] = "bad".into();
    bad["spec"] = json!(null);
    let text = json!({
        "kind": "PodList",
        "apiVersion": "v1",
        "metadata": {},
        "items": [web(), etcd, bad],
    });
    let text = text.to_string();
    let list: List<'_> = serde_json::from_str(&text).unwrap();
    let (pods, errors) = list.pods(Source::Kubelet);
    assert!(pods.iter().all(|pod| pod.origin == Origin::Kubelet));
    assert!(!pods[0].pod.static_pod && !pods[0].pod.is_critical());
    assert!(pods[1].pod.static_pod && pods[1].pod.is_critical());
    assert_eq!(pods[1].key(), "0123456789abcdef0123456789abcdef");
    assert!(
        errors[0].to_string().contains("of the kubelet"),
        "{}",
        errors[0]
    );
    assert!(list.metadata.resource_version.is_none());
}

#[test]
fn lines_of_a_watch() {
    let text = |kind: &str, object: &serde_json::Value| {
        json!({"type": kind, "object": object}).to_string()
    };
    for kind in ["ADDED", "MODIFIED"] {
        let Line::Pod {
            event: PodEvent::Apply(pod),
            version,
        } = line(&text(kind, &web())).unwrap()
        else {
            panic!("{kind}")
        };
        assert_eq!((pod.pod.name.as_str(), version.as_str()), ("web", "42"));
    }
    let uid = "11111111-2222-3333-4444-555555555555".to_owned();
    let deleted = line(&text("DELETED", &web())).unwrap();
    assert_eq!(
        deleted,
        Line::Pod {
            event: PodEvent::Delete(uid),
            version: "42".to_owned()
        }
    );
    let bookmark = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": "50", "creationTimestamp": null}});
    let found = line(&text("BOOKMARK", &bookmark)).unwrap();
    assert_eq!(
        found,
        Line::Bookmark {
            version: "50".to_owned()
        }
    );
    let status = json!({"kind": "Status", "status": "Failure", "message": "too old resource version: 1 (50)", "reason": "Expired", "code": 410});
    let Line::Refused(status) = line(&text("ERROR", &status)).unwrap() else {
        panic!()
    };
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
    for wrong in [
        text("RENAMED", &web()),
        text("BOOKMARK", &json!({})),
        "{".to_owned(),
    ] {
        line(&wrong).unwrap_err();
    }
}

#[test]
fn an_unusable_pod_in_a_watch_still_moves_it_on() {
    let mut bad = web();
    bad["spec"]["containers"] = json!([]);
    let text = json!({"type": "MODIFIED", "object": bad}).to_string();
    let Line::Pod {
        event: PodEvent::Unusable(error),
        version,
    } = line(&text).unwrap()
    else {
        panic!()
    };
    assert_eq!(version, "42");
    assert!(error.to_string().contains("shop/web"), "{error}");
}
