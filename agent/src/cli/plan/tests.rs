use std::collections::BTreeMap;

use podwarden_cgroup::Driver;
use podwarden_policy::{
    Bytes, CpuShares, Pod, QosClass,
    limits::{CpuMax, Limit},
    plan::{self, Snapshot},
    settings::{CpuShare, Observed},
    threshold::{Amount, Threshold},
};

use super::{
    input::{Input, NodeArgs},
    report::Report,
};
use crate::{
    config::Config,
    hierarchy::recorded::{Recorded, Version},
};

const HEAD: &str = "apiVersion: podwarden.io/v1alpha1\nkind: Snapshot\n";

fn parse(text: &str) -> anyhow::Result<Input> {
    Input::parse("test.yaml", text, &NodeArgs::default())
}

fn written(rest: &str) -> Input {
    parse(&format!("{HEAD}node: {{cpu: 2, memory: 4Gi}}\n{rest}")).unwrap()
}

/// Every field set, and the keys that JSON can only write as text.
fn recorded() -> Snapshot {
    let mut snapshot = written(include_str!("pods.part.yaml")).snapshot;
    snapshot.node.hugepages = [(Bytes::mebi(2), Bytes::gibi(1))].into();
    snapshot.limits.pod_pids_limit = Some(100);
    snapshot.exemptions.own_pod = Some("a".into());
    snapshot.pods[0].static_pod = false;
    snapshot.crossing = Some(podwarden_policy::pressure::Crossing {
        threshold: Threshold {
            signal: podwarden_policy::signal::Signal::MemoryAvailable,
            grace: Some(std::time::Duration::from_secs(1)),
            less_than: Amount::Percent(5_000_000),
            min_reclaim: Some(Amount::Quantity(1)),
        },
        needed: 2,
        available: 1,
    });
    let name = snapshot.kubepods.pod(QosClass::BestEffort, &"b".into());
    let observed = Observed {
        ours: true,
        cpu: Some(CpuShare::Shares(CpuShares(2))),
        cpu_max: Some(CpuMax {
            quota_us: Limit::At(1000),
            period_us: 100_000,
        }),
        memory_limit: Some(Limit::Unlimited),
        hugetlb: BTreeMap::from([(Bytes::mebi(2), Limit::At(Bytes(7)))]),
        memory_working_set: Some(Bytes(u64::MAX)),
        ..Observed::default()
    };
    snapshot.cgroups.insert(name, observed);
    snapshot
}

#[test]
fn a_recorded_snapshot_replays_exactly() {
    let snapshot = recorded();
    let time = "2026-01-01T00:00:00Z".to_owned();
    let recorded = Recorded::new(time, Version::V1, Driver::Systemd, snapshot.clone());
    for text in [
        serde_json::to_string(&recorded).unwrap(),
        serde_json::to_string_pretty(&recorded).unwrap(),
    ] {
        let input = parse(&text).unwrap();
        assert_eq!(input.snapshot, snapshot);
        assert_eq!(input.version, Version::V1);
        assert_eq!(input.layout.driver, Driver::Systemd);
        assert_eq!(plan::plan(&input.snapshot), plan::plan(&snapshot));
    }
}

#[test]
fn recorded_stands_alone() {
    let recorded = serde_json::to_value(recorded()).unwrap();
    let text = format!("{HEAD}node: {{cpu: 1}}\nrecorded: {recorded}\n");
    let error = parse(&text).unwrap_err().to_string();
    assert!(error.contains("remove the keys beside it"), "{error}");
}

#[test]
fn manifests_are_a_snapshot_of_this_machine() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c}]}\n";
    let input = parse(text).unwrap();
    assert_eq!(input.snapshot.pods.len(), 1);
    assert!(!input.snapshot.node.memory_capacity.is_zero());
    let defaults = Config::load(None, crate::config::Overrides::default()).unwrap();
    assert_eq!(input.snapshot.ranking, defaults.ranking);
    assert_eq!(
        Report::of(&input).ranking.len(),
        1,
        "all, where none is known to run"
    );
}

#[test]
fn a_node_has_process_ids_where_the_snapshot_says_so() {
    let rows = |node: &str| {
        let input = parse(&format!("{HEAD}node: {{{node}}}\n")).unwrap();
        let tree = Report::of(&input).tree;
        let of_tasks = tree.into_iter().filter(|row| row.file.name == "pids.max");
        of_tasks
            .map(|row| (row.path, row.file.value))
            .collect::<Vec<_>>()
    };
    let limited = ("/kubepods".to_owned(), "58599".to_owned());
    assert_eq!(rows("cpu: 2, memory: 4Gi, pids: 58599"), [limited]);
    assert_eq!(rows("cpu: 2, memory: 4Gi"), []);
}

#[test]
fn pods_that_have_ended_count_no_more() {
    let text = r#"{"apiVersion": "v1", "kind": "PodList", "items": [
        {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c"}]}, "status": {"phase": "Running"}},
        {"metadata": {"name": "b"}, "spec": {"containers": [{"name": "c"}]}, "status": {"phase": "Succeeded"}}
    ]}"#;
    let names: Vec<_> = parse(text).unwrap().snapshot.pods;
    let names: Vec<_> = names.iter().map(|pod: &Pod| pod.name.as_str()).collect();
    assert_eq!(names, ["a"]);
}

#[test]
fn usage_is_put_where_the_cgroups_are() {
    let input = written(concat!(
        include_str!("pods.part.yaml"),
        "usage: {default/one: {memory: 1Gi}, two: {memory: 1Mi}, three: {memory: 1}}\n",
        "config: {evictionHard: {memory.available: 10%}}\nmemoryAvailable: 300Mi\n",
    ));
    assert_eq!(input.errors.len(), 1, "{:?}", input.errors);
    assert!(input.errors[0].contains("`three` among 2"));
    let snapshot = &input.snapshot;
    let usage = |class| snapshot.cgroups[&snapshot.kubepods.tier(class)].memory_usage;
    assert_eq!(usage(QosClass::Guaranteed), Some(Bytes::mebi(1025)));
    assert_eq!(usage(QosClass::BestEffort), Some(Bytes::mebi(1)));
    let crossing = snapshot.crossing.unwrap();
    assert_eq!(crossing.available, 300 << 20);
    let report = Report::of(&input);
    assert_eq!(report.ranking[0].pod_ref.name, "two");
    assert_eq!(report.actions[0].action, "evict");
    // Enough is left.
    let calm = written("config: {evictionHard: {memory.available: 5%}}\nmemoryAvailable: 300Mi\n");
    assert_eq!(calm.snapshot.crossing, None);
}

#[test]
fn nothing_to_plan_is_an_error_with_its_place() {
    let cases = [
        ("", "holds no document"),
        ("kind: Deployment", "(no apiVersion)"),
        (
            &format!("{HEAD}node: {{cpu: x}}"),
            "test.yaml:3: node.cpu is `x`",
        ),
        (
            &format!("{HEAD}node: {{hugepages: {{2Mo: 1Gi}}}}"),
            "node.hugepages.2Mo",
        ),
        (
            &format!("{HEAD}config:\n  kubeReserved: {{memory: lots}}"),
            "test.yaml:4: config.kubeReserved.memory is `lots`",
        ),
        (&format!("{HEAD}nodes: {{}}"), "unknown field `nodes`"),
        (
            &format!("{HEAD}recorded: {{node: {{cpuCapacity: a}}}}"),
            "recorded.node.cpuCapacity",
        ),
        (
            "apiVersion: v1\nkind: Snapshot",
            "test.yaml:1: apiVersion is `v1`",
        ),
    ];
    for (text, part) in cases {
        let error = format!("{:#}", parse(text).unwrap_err());
        assert!(
            error.contains(part),
            "{text:?}: {part:?} is not in {error:?}"
        );
    }
}

fn uids(text: &str) -> Vec<(String, bool)> {
    let input = parse(text).unwrap();
    let pods = input.snapshot.pods.iter();
    pods.map(|pod| (pod.uid.to_string(), pod.static_pod))
        .collect()
}

/// A pod as `kubectl get -o json` prints it.
fn object(uid: &str, node: &str) -> serde_json::Value {
    serde_json::json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("name-{uid}"), "namespace": "a", "uid": uid, "resourceVersion": "7"},
        "spec": {"nodeName": node, "containers": [
            {"name": "c", "resources": {"requests": {"memory": "21Gi"}}},
        ]},
        "status": {"phase": "Running", "containerStatuses": [
            {"name": "c", "containerID": "c://1", "allocatedResources": {"memory": "77Mi"}},
        ]},
    })
}

#[test]
fn a_mirror_is_planned_under_its_static_pods_uid() {
    let mut mirror = object("mirror", "node-1");
    mirror["metadata"]["annotations"] = serde_json::json!({
        "kubernetes.io/config.mirror": "0123456789abcdef0123456789abcdef",
        "kubernetes.io/config.source": "file",
    });
    mirror["metadata"]["ownerReferences"] =
        serde_json::json!([{"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "n"}]);
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": [
        mirror, object("plain", "node-1"),
    ]});
    let expected = [
        ("0123456789abcdef0123456789abcdef".to_owned(), true),
        ("plain".to_owned(), false),
    ];
    assert_eq!(uids(&list.to_string()), expected);
    assert_eq!(uids(&mirror.to_string()), expected[..1]);
}

#[test]
fn a_pod_of_the_api_without_a_node_is_on_none_and_a_manifest_without_one_is_planned() {
    let list = serde_json::json!({"apiVersion": "v1", "kind": "PodList", "items": [
        object("pending", ""), object("plain", "node-1"),
    ]});
    assert_eq!(uids(&list.to_string()), [("plain".to_owned(), false)]);
    let mut manifest = object("manifest", "");
    let metadata = manifest["metadata"].as_object_mut().unwrap();
    metadata.remove("resourceVersion");
    assert_eq!(uids(&manifest.to_string()), [("manifest".to_owned(), true)]);
}

#[test]
fn what_was_granted_of_a_resize_is_planned() {
    let input = parse(&object("resized", "node-1").to_string()).unwrap();
    let resources = &input.snapshot.pods[0].containers[0].resources;
    assert_eq!(resources.memory_request, Some(Bytes::mebi(77)));
}
