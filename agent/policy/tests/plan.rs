//! Whole plans: the worked example of the kubelet's design document, ownership, eviction.
//!
//! More than 400 lines: whole trees, written out.

#[path = "support/pods.rs"]
mod support;

use std::collections::BTreeMap;

use podwarden_policy::{
    Bytes, CpuShares, MilliCpu, Node, Pod,
    evict::Ranking,
    limits::{CpuMax, Limit},
    model::Reserved,
    name::CgroupName,
    plan::{Action, Ownership, Snapshot, plan},
    pressure::Crossing,
    reason::Reason,
    settings::{CpuShare, Observed, Setting},
    signal::Signal,
    threshold::{Amount, Threshold},
};
use support::pod;

const GI: u64 = 1 << 30;

fn node(memory: u64) -> Node {
    Node {
        cpu_capacity: MilliCpu(2000),
        memory_capacity: Bytes(memory),
        ..Node::default()
    }
}

fn snapshot(node: Node, pods: Vec<Pod>) -> Snapshot {
    let mut snapshot = Snapshot::new(node, CgroupName::new(["kubepods"]));
    snapshot.pods = pods;
    snapshot
}

/// Every value written, by cgroup.
fn values(actions: &[Action]) -> BTreeMap<String, Vec<String>> {
    let mut values = BTreeMap::<_, Vec<_>>::new();
    for action in actions {
        match action {
            Action::EnsureCgroup { cgroup, .. } => {
                values.entry(cgroup.to_string()).or_default();
            }
            Action::Write {
                cgroup, setting, ..
            } => values
                .entry(cgroup.to_string())
                .or_default()
                .push(setting.to_string()),
            other => panic!("not in this test: {other:?}"),
        }
    }
    values
}

fn expect(found: &BTreeMap<String, Vec<String>>, rows: &[(&str, &[&str])]) {
    let expected: BTreeMap<_, Vec<_>> = rows
        .iter()
        .map(|(name, values)| {
            let values = values.iter().map(ToString::to_string).collect();
            ((*name).to_owned(), values)
        })
        .collect();
    assert_eq!(*found, expected);
}

/// "Kubelet pod level resource management", section Examples, on a node with 20 GiB allocatable.
fn example() -> Vec<Pod> {
    vec![
        pod("1", &[["", "", "10m", "1Gi"], ["", "", "100m", "2Gi"]]),
        pod("2", &[["", "", "20m", "2Gi"]]),
        pod(
            "3",
            &[["20m", "1Gi", "50m", "2Gi"], ["", "", "100m", "1Gi"]],
        ),
        pod("4", &[["10m", "1Gi", "20m", "2Gi"]]),
        pod("5", &[["", "", "", ""], ["", "", "", ""]]),
    ]
}

fn example_node() -> Node {
    Node {
        qos_reserved_memory_percent: Some(100),
        ..node(20 * GI)
    }
}

#[test]
fn worked_example_as_the_document_counts() {
    // The document takes the requests of a Guaranteed pod from its limits, and those of the
    // container of Pod3 that has only limits as zero.
    let mut pods = example();
    for pod in &mut pods[..2] {
        pod.apply_defaults();
    }
    expect(
        &values(&plan(&snapshot(example_node(), pods))),
        &[
            ("/kubepods", &["cpu shares 2048", "memory limit 20Gi"]),
            (
                "/kubepods/pod1",
                &[
                    "cpu shares 112",
                    "cpu quota 11000 of 100000 us",
                    "memory limit 3Gi",
                ],
            ),
            (
                "/kubepods/pod2",
                &[
                    "cpu shares 20",
                    "cpu quota 2000 of 100000 us",
                    "memory limit 2Gi",
                ],
            ),
            // 30m; allocatable - 5Gi.
            (
                "/kubepods/burstable",
                &["cpu shares 30", "memory limit 15Gi"],
            ),
            (
                "/kubepods/burstable/pod3",
                &[
                    "cpu shares 20",
                    "cpu quota 15000 of 100000 us",
                    "memory limit 3Gi",
                ],
            ),
            (
                "/kubepods/burstable/pod4",
                &[
                    "cpu shares 10",
                    "cpu quota 2000 of 100000 us",
                    "memory limit 2Gi",
                ],
            ),
            // 2; allocatable - 7Gi; no quota.
            (
                "/kubepods/besteffort",
                &["cpu shares 2", "memory limit 13Gi"],
            ),
            ("/kubepods/besteffort/pod5", &["cpu shares 2"]),
        ],
    );
}

#[test]
fn worked_example_as_the_api_server_defaults() {
    let mut pods = example();
    for pod in &mut pods {
        pod.apply_defaults();
    }
    let found = values(&plan(&snapshot(example_node(), pods)));
    // 20m + 100m; 20m + 100m + 10m; allocatable - (5 + 3)Gi.
    let pod3 = [
        "cpu shares 122",
        "cpu quota 15000 of 100000 us",
        "memory limit 3Gi",
    ];
    assert_eq!(found["/kubepods/burstable/pod3"], pod3);
    assert_eq!(
        found["/kubepods/burstable"],
        ["cpu shares 133", "memory limit 15Gi"]
    );
    assert_eq!(
        found["/kubepods/besteffort"],
        ["cpu shares 2", "memory limit 12Gi"]
    );
}

#[test]
fn reserves_come_off_the_node() {
    let node = Node {
        kube_reserved: Reserved {
            cpu: MilliCpu(200),
            memory: Bytes(GI),
            ..Reserved::default()
        },
        system_reserved: Reserved {
            cpu: MilliCpu(300),
            memory: Bytes(GI),
            ..Reserved::default()
        },
        eviction_hard_memory: Bytes(GI),
        ..node(8 * GI)
    };
    let found = values(&plan(&snapshot(node, vec![])));
    assert_eq!(found["/kubepods"], ["cpu shares 1536", "memory limit 6Gi"]);
}

#[test]
fn reasons_have_the_numbers() {
    let pods = vec![pod("p", &[["250m", "64Mi", "500m", "128Mi"]])];
    let reasons: Vec<_> = plan(&snapshot(example_node(), pods))
        .into_iter()
        .filter_map(|action| match action {
            Action::Write { cgroup, reason, .. } => Some(format!("{cgroup}: {reason}")),
            _ => None,
        })
        .collect();
    assert_eq!(
        reasons,
        [
            "/kubepods: capacity 2000m - kubeReserved 0m - systemReserved 0m = 2000m; \
             2000m * 1024 / 1000, within 2..=262144 = 2048",
            "/kubepods: capacity 20Gi - kubeReserved 0 - systemReserved 0 = 20Gi",
            "/kubepods/burstable: cpu requests 250m * 1024 / 1000, within 2..=262144 = 256",
            "/kubepods/burstable: allocatable 20Gi - 100% of Guaranteed requests 0 = 20Gi",
            "/kubepods/besteffort: BestEffort gets the least, 2",
            "/kubepods/besteffort: allocatable 20Gi - 100% of Guaranteed requests 0 \
             - 100% of Burstable requests 64Mi = 20416Mi",
            "/kubepods/burstable/podp: cpu requests 250m * 1024 / 1000, within 2..=262144 = 256",
            "/kubepods/burstable/podp: cpu limits 500m * 100000 us / 1000, at least 1000 us = 50000",
            "/kubepods/burstable/podp: memory limits = 128Mi",
        ]
    );
}

/// The tree that a plan for `pods` makes, as read back on v1.
fn settled(node: Node, pods: Vec<Pod>) -> Snapshot {
    let mut snapshot = snapshot(node, pods);
    for action in plan(&snapshot) {
        match action {
            Action::EnsureCgroup { cgroup, .. } => {
                let fresh = Observed {
                    ours: true,
                    cpu: Some(CpuShare::Shares(CpuShares(1024))),
                    cpu_max: Some(CpuMax {
                        quota_us: Limit::Unlimited,
                        period_us: 100_000,
                    }),
                    memory_limit: Some(Limit::Unlimited),
                    pids_limit: Some(Limit::Unlimited),
                    memory_usage: Some(Bytes(0)),
                    memory_working_set: Some(Bytes(0)),
                    ..Observed::default()
                };
                snapshot.cgroups.insert(cgroup, fresh);
            }
            Action::Write {
                cgroup, setting, ..
            } => {
                let cgroup = snapshot.cgroups.get_mut(&cgroup).expect("made");
                match setting {
                    Setting::CpuShares(shares) => cgroup.cpu = Some(CpuShare::Shares(shares)),
                    Setting::CpuMax(max) => cgroup.cpu_max = Some(max),
                    Setting::MemoryLimit(limit) => cgroup.memory_limit = Some(limit),
                    other => panic!("not in this test: {other:?}"),
                }
            }
            other => panic!("not in this test: {other:?}"),
        }
    }
    assert_eq!(plan(&snapshot), []);
    snapshot
}

fn cgroup<'a>(snapshot: &'a mut Snapshot, path: &str) -> &'a mut Observed {
    let name = CgroupName::parse_cgroupfs(path);
    snapshot.cgroups.get_mut(&name).expect(path)
}

#[test]
fn one_change_makes_one_write() {
    let pods = (0..50).map(|i| pod(&format!("p{i:02}"), &[["100m", "64Mi", "1", "128Mi"]]));
    let mut snapshot = settled(node(20 * GI), pods.collect());
    // A foreign write.
    cgroup(&mut snapshot, "/kubepods/burstable/podp07").cpu = Some(CpuShare::Shares(CpuShares(9)));
    let actions = plan(&snapshot);
    let [
        Action::Write {
            cgroup, setting, ..
        },
    ] = &actions[..]
    else {
        panic!("{actions:?}");
    };
    assert_eq!(cgroup.to_cgroupfs(), "/kubepods/burstable/podp07");
    assert_eq!(*setting, Setting::CpuShares(CpuShares(102)));
}

#[test]
fn a_pod_that_is_gone_is_removed_if_it_is_ours() {
    let pods = vec![pod("a", &[["", "", "", ""]]), pod("b", &[["", "", "", ""]])];
    let mut snapshot = settled(node(20 * GI), pods);
    snapshot.pods.clear();
    cgroup(&mut snapshot, "/kubepods/besteffort/podb").ours = false;
    let expected = Action::RemoveCgroup {
        cgroup: CgroupName::new(["kubepods", "besteffort", "poda"]),
        reason: Reason::PodGone,
    };
    assert_eq!(plan(&snapshot), [expected]);
}

#[test]
fn while_pods_are_missing_nothing_that_depends_on_them_changes() {
    let mut node = example_node();
    node.qos_reserved_memory_percent = Some(100);
    let mut snapshot = settled(node, example());
    snapshot.incomplete = true;
    // All that is known is a new pod: those that run are not told of yet.
    snapshot.pods = vec![pod("new", &[["", "", "10m", "1Gi"]])];
    let cgroup = |action: &Action| match action {
        Action::EnsureCgroup { cgroup, .. } | Action::Write { cgroup, .. } => cgroup.to_string(),
        other => panic!("{other:?}"),
    };
    let actions = plan(&snapshot);
    assert!(!actions.is_empty());
    for action in &actions {
        assert!(cgroup(action).ends_with("podnew"), "{action:?}");
    }
    // Told that there are no others, the same snapshot has the rest removed and the tiers changed.
    snapshot.incomplete = false;
    let actions = plan(&snapshot);
    let removed = |a: &&Action| matches!(a, Action::RemoveCgroup { .. });
    assert_eq!(actions.iter().filter(removed).count(), example().len());
    let burstable = CgroupName::new(["kubepods", "burstable"]);
    let tier = |a: &Action| matches!(a, Action::Write { cgroup, .. } if *cgroup == burstable);
    assert!(actions.iter().any(tier));
}

#[test]
fn a_reserve_switched_off_leaves_no_limit() {
    let pods = vec![pod("a", &[["1", "1Gi", "1", "1Gi"]])];
    let mut snapshot = settled(example_node(), pods);
    snapshot.node.qos_reserved_memory_percent = None;
    let found = values(&plan(&snapshot));
    expect(
        &found,
        &[
            ("/kubepods/burstable", &["memory limit max"]),
            ("/kubepods/besteffort", &["memory limit max"]),
        ],
    );
}

#[test]
fn beside_a_kubelet_only_the_reserve_is_written() {
    let mut snapshot = settled(node(20 * GI), vec![pod("g", &[["1", "1Gi", "1", "1Gi"]])]);
    snapshot.ownership = Ownership::Assist;
    snapshot.pods.push(pod("new", &[["", "", "", ""]]));
    cgroup(&mut snapshot, "/kubepods/podg").cpu = Some(CpuShare::Shares(CpuShares(9)));
    cgroup(&mut snapshot, "/kubepods/burstable").memory_limit = Some(Limit::At(Bytes(GI)));
    assert_eq!(plan(&snapshot), [], "nothing is configured");
    snapshot.node.qos_reserved_memory_percent = Some(50);
    // 20Gi - 1Gi * 50 / 100.
    expect(
        &values(&plan(&snapshot)),
        &[
            ("/kubepods/burstable", &["memory limit 19968Mi"]),
            ("/kubepods/besteffort", &["memory limit 19968Mi"]),
        ],
    );
}

#[test]
fn a_snapshot_needs_little() {
    let text = r#"{
        "node": {"cpuCapacity": 2000, "memoryCapacity": 1073741824},
        "kubepods": "/kubepods",
        "pods": [{
            "uid": "a", "name": "a", "namespace": "default",
            "containers": [{"name": "c", "resources": {"cpuRequest": 500}}]
        }]
    }"#;
    let snapshot: Snapshot = serde_json::from_str(text).expect("enough");
    let found = values(&plan(&snapshot));
    assert_eq!(found["/kubepods/burstable/poda"], ["cpu shares 512"]);
}

fn crossing() -> Crossing {
    Crossing {
        threshold: Threshold {
            signal: Signal::MemoryAvailable,
            grace: None,
            less_than: Amount::Quantity(500 << 20),
            min_reclaim: None,
        },
        needed: 500 << 20,
        available: 100 << 20,
    }
}

#[test]
fn pressure_evicts_one_pod_and_says_why() {
    let mut critical = pod("critical", &[["", "", "", ""]]);
    critical.critical = true;
    let pods = vec![
        critical,
        pod("small", &[["", "", "", ""]]),
        pod("large", &[["", "", "", ""]]),
        pod("burst", &[["", "1Mi", "", ""]]),
    ];
    let mut snapshot = settled(node(20 * GI), pods);
    for (path, mi) in [
        ("/kubepods/besteffort/podcritical", 900),
        ("/kubepods/besteffort/podsmall", 10),
        ("/kubepods/besteffort/podlarge", 512),
        ("/kubepods/burstable/podburst", 800),
    ] {
        cgroup(&mut snapshot, path).memory_working_set = Some(Bytes::mebi(mi));
    }
    snapshot.crossing = Some(crossing());
    let actions = plan(&snapshot);
    let [
        Action::Evict {
            pod,
            cgroup,
            reason,
        },
    ] = &actions[..]
    else {
        panic!("{actions:?}");
    };
    assert_eq!(pod.as_str(), "large");
    assert_eq!(cgroup.to_cgroupfs(), "/kubepods/besteffort/podlarge");
    assert_eq!(
        reason.to_string(),
        "memory.available<500Mi: 100Mi left of 500Mi; \
         first of 3: BestEffort, 512Mi over its memory request, priority 0"
    );
    // The kubelet's order does not look at the class.
    snapshot.ranking = Ranking::Kubelet;
    let Some(Action::Evict { pod, .. }) = plan(&snapshot).into_iter().next() else {
        panic!("no pod was evicted");
    };
    assert_eq!(pod.as_str(), "burst");
}
