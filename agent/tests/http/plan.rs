//! What the agent planned from, recorded over its socket and replayed.

use std::{path::PathBuf, process::Output};

use podwarden::{
    api::{
        published::Figures,
        types::{NodeStats, PodRef},
    },
    hierarchy::recorded::{Recorded, Version},
};
use podwarden_cgroup::Driver;
use podwarden_policy::{
    Bytes, MilliCpu, Node, Pod,
    colocation::{
        class::Band,
        reclaimed::{Amounts, Facts, Inputs, Strategy, Workload},
    },
    name::CgroupName,
    plan::Snapshot,
};
use serde_json::Value;

use crate::support::Api;

/// A node with one BestEffort pod that has no cgroup yet.
fn planned() -> Recorded {
    planned_of(PodRef {
        name: "web".into(),
        namespace: "shop".into(),
        uid: "u1".into(),
    })
}

/// The same with a pod of that name.
pub(crate) fn planned_of(pod: PodRef) -> Recorded {
    let node = Node {
        cpu_capacity: MilliCpu(2000),
        memory_capacity: Bytes::gibi(4),
        ..Node::default()
    };
    let mut snapshot = Snapshot::new(node, CgroupName::new(["kubepods"]));
    snapshot.pods.push(Pod {
        uid: pod.uid,
        name: pod.name.to_string(),
        namespace: pod.namespace.to_string(),
        ..Pod::default()
    });
    let time = "2026-11-21T08:57:48.123456Z".to_owned();
    Recorded::new(time, Version::V1, Driver::Cgroupfs, snapshot)
}

async fn podwarden(arguments: &[&str], socket: Option<PathBuf>) -> Output {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_podwarden"));
    command.args(arguments).kill_on_drop(true);
    if let Some(socket) = socket {
        command.arg("--api-socket").arg(socket);
    }
    let output = command.output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

#[tokio::test]
async fn the_last_plan_is_recorded_and_replayed() {
    let api = Api::start().await;
    api.published.publish_planned(planned());
    let record = podwarden(&["plan", "--record"], Some(api.socket.clone())).await;
    let recorded: Value = serde_json::from_slice(&record.stdout).unwrap();
    assert_eq!(recorded, serde_json::to_value(planned()).unwrap());

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("node.json");
    std::fs::write(&file, &record.stdout).unwrap();
    let file = file.to_str().unwrap();
    let replay = podwarden(&["plan", "-o", "json", "-f", file], None).await;
    let report: Value = serde_json::from_slice(&replay.stdout).unwrap();
    assert_eq!(report["tree"][0]["file"], "cpu.shares");
    assert_eq!(report["tree"][0]["value"], "2048");
    assert_eq!(report["ranking"][0]["podRef"]["name"], "web");

    let live = podwarden(&["explain", "web"], Some(api.socket.clone())).await;
    let replayed = podwarden(&["explain", "shop/web", "-f", file], None).await;
    assert_eq!(live.stdout, replayed.stdout);
    let text = String::from_utf8(live.stdout).unwrap();
    assert!(
        text.contains("/kubepods/besteffort/podu1\n  cpu.shares = 2\n"),
        "{text}"
    );
}

#[tokio::test]
async fn plan_and_explain_show_what_the_node_offers_and_why() {
    let api = Api::start().await;
    api.published.publish_planned(planned());
    let without = podwarden(&["explain", "node"], Some(api.socket.clone())).await;
    let text = String::from_utf8(without.stdout).unwrap();
    assert!(text.contains("no reclaimed resources"), "{text}");

    let amounts = |milli: u64, mebi: u64| Amounts::new(MilliCpu(milli), Bytes::mebi(mebi));
    let prod = |used| Workload {
        band: Band::Prod,
        exclusive: false,
        request: amounts(800, 1024),
        used,
        holds_batch: Amounts::default(),
        holds_mid: Amounts::default(),
    };
    let facts = Facts {
        capacity: amounts(2000, 4096),
        reserved: amounts(100, 256),
        system: amounts(200, 256),
        used: amounts(500, 768),
        reclaimable: Some(amounts(300, 128)),
        workloads: vec![prod(Some(amounts(300, 512))), prod(None)],
    };
    let inputs = Inputs {
        facts,
        strategy: Strategy::default(),
    };
    let figures = Figures::new(NodeStats::default(), Vec::new());
    api.published
        .publish(figures.with_reclaimed(Some(inputs.into())));
    let live = podwarden(&["explain", "node"], Some(api.socket.clone())).await;
    let text = String::from_utf8(live.stdout).unwrap();
    let words = |part: &str| {
        let row = text.lines().find(|line| line.contains(part)).unwrap();
        row.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(
        words("capacity").starts_with("batch capacity 2000m 4.00Gi"),
        "{text}"
    );
    assert!(
        words("margin").starts_with("- margin 800m 1.40Gi cpuReclaim"),
        "{text}"
    );
    assert!(
        words("outside pods").starts_with("- system 200m 256Mi"),
        "{text}"
    );
    // One by its usage, the other by its request.
    let pods = words("prod and mid pods");
    assert!(
        pods.starts_with("- pods 1100m 1.50Gi 2 prod and mid pods"),
        "{text}"
    );
    assert!(pods.ends_with("1 without figures by request"), "{text}");
    // 2000 - 800 - 200 - 1100 is below zero.
    assert!(words("batch-cpu").starts_with("= offered 0m"), "{text}");
    assert!(
        words("predicted peaks").starts_with("mid reclaimable 300m 128Mi"),
        "{text}"
    );
    assert!(
        words("mid-cpu").starts_with("= offered 300m 128Mi"),
        "{text}"
    );

    let record = podwarden(&["plan", "--record"], Some(api.socket.clone())).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("node.json");
    std::fs::write(&file, &record.stdout).unwrap();
    let file = file.to_str().unwrap();
    let replayed = podwarden(&["explain", "node", "-f", file], None).await;
    assert_eq!(String::from_utf8(replayed.stdout).unwrap(), text);
    let plan = podwarden(&["plan", "-f", file], None).await;
    let plan = String::from_utf8(plan.stdout).unwrap();
    assert!(plan.contains("Reclaimed resources\nBAND"), "{plan}");
    let json = podwarden(&["plan", "-o", "json", "-f", file], None).await;
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    let offered = json["reclaimed"].as_array().unwrap().last().unwrap();
    assert_eq!(offered["cpuMilli"], 300);
}
