//! What the agent planned from, recorded over its socket and replayed.

use std::{path::PathBuf, process::Output};

use podwarden::{
    api::types::PodRef,
    hierarchy::recorded::{Recorded, Version},
};
use podwarden_cgroup::Driver;
use podwarden_policy::{Bytes, MilliCpu, Node, Pod, name::CgroupName, plan::Snapshot};
use serde_json::Value;

use crate::support::Api;

/// A node with one BestEffort pod that has no cgroup yet.
fn planned() -> Recorded {
    planned_of(PodRef {
        name: "web".to_owned(),
        namespace: "shop".to_owned(),
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
        name: pod.name,
        namespace: pod.namespace,
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
