//! `podwarden bundle` of a running API, and its replay.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use podwarden::{
    api::client::{Client, Endpoint},
    api::types::EventKind,
    cli::words::PRESENTER,
};
use serde_json::Value;

use crate::{page::fixture, plan, support::Api};

/// A replay, ended when dropped.
struct Replay(Child, Client);

impl Drop for Replay {
    fn drop(&mut self) {
        // It may have ended by itself; nothing is left to do then.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn replay(file: &std::path::Path) -> Replay {
    let mut child = Command::new(env!("CARGO_BIN_EXE_podwarden"))
        .arg("replay")
        .arg(file)
        .args(["--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let address = line
        .trim()
        .trim_start_matches("http://")
        .trim_end_matches('/');
    let client = Client::new(Endpoint::Tcp(address.parse().unwrap()));
    Replay(child, client)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replayed_bundle_shows_what_the_agent_showed() {
    let api = Api::start().await;
    api.published.set_presenter(PRESENTER);
    let victim = fixture::victim();
    api.published
        .publish_planned(plan::planned_of(victim.clone()));
    api.published.publish(fixture::figures(9, 3));
    api.published.event(
        "2026-11-21T09:00:04.000000Z".to_owned(),
        None,
        EventKind::KernelOom { pid: 7 },
    );
    let id = api.published.event(
        "2026-11-21T09:00:05.000000Z".to_owned(),
        Some(victim),
        fixture::eviction(),
    );
    api.published.publish_flight_record(id, fixture::record());

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bundle.tar");
    let config = dir.path().join("config.yaml");
    std::fs::write(
        &config,
        "mode: enforce\nstaticPodURLHeader: {Authorization: [Bearer secret-1]}\n",
    )
    .unwrap();
    let bundle = |file: std::path::PathBuf, socket: std::path::PathBuf| {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_podwarden"));
        command
            .arg("bundle")
            .arg("-O")
            .arg(file)
            .arg("--config")
            .arg(&config)
            .arg("--api-socket")
            .arg(socket);
        command
    };
    let done = bundle(file.clone(), api.socket.clone())
        .output()
        .await
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    // It overwrites nothing.
    let again = bundle(file.clone(), api.socket.clone())
        .output()
        .await
        .unwrap();
    assert_eq!(again.status.code(), Some(3), "{again:?}");
    let bytes = std::fs::read(&file).unwrap();
    assert!(!bytes.windows(8).any(|window| window == b"secret-1"));
    for part in [
        "check.json",
        "metrics.txt",
        "explain.json",
        "kernel/proc-version",
        "records/2.json",
    ] {
        assert!(
            bytes.windows(part.len()).any(|w| w == part.as_bytes()),
            "no {part}"
        );
    }

    let replayed = replay(&file);
    for path in [
        "/v1/plan",
        "/v1/pods",
        "/v1/events",
        "/v1/events/2?text=true",
        "/v1/pods/uid-0/explain",
    ] {
        let live = api.client().get_bytes(path).await.unwrap();
        assert_eq!(replayed.1.get_bytes(path).await.unwrap(), live, "{path}");
    }
    let node: Value = replayed.1.get("/v1/node").await.unwrap();
    assert_eq!(node["nodeName"], "node-1");
    let said = node["degradations"]
        .as_array()
        .unwrap()
        .last()
        .unwrap()
        .as_str()
        .unwrap();
    assert!(said.starts_with("this is a recording of 2"), "{said}");
}

#[tokio::test]
async fn without_an_agent_a_bundle_has_the_rest_and_names_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bundle.tar");
    let done = tokio::process::Command::new(env!("CARGO_BIN_EXE_podwarden"))
        .arg("bundle")
        .arg("-O")
        .arg(&file)
        .args(["--api-socket", "/nonexistent/api.sock"])
        .output()
        .await
        .unwrap();
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(
        said.contains("not in the bundle: plan.json: connect to /nonexistent/api.sock"),
        "{said}"
    );
    assert!(file.is_file());
}

#[test]
fn a_configuration_is_checked_without_a_node() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.yaml");
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let command = &mut Command::new(env!("CARGO_BIN_EXE_podwarden"));
        command
            .arg("check")
            .arg("--config")
            .arg(&file)
            .output()
            .unwrap()
    };
    let head = "apiVersion: podwarden.io/v1alpha1\nkind: AgentConfig\n";
    let good = check(&format!("{head}mode: enforce\nownership: assist\n"));
    assert!(good.status.success(), "{good:?}");
    let said = String::from_utf8_lossy(&good.stdout);
    assert!(
        said.contains("valid: mode enforce, ownership assist"),
        "{said}"
    );
    let bad = check(&format!(
        "{head}mode: enforce\nevictionHrd: {{memory.available: 1Mi}}\n"
    ));
    assert_eq!(bad.status.code(), Some(3), "{bad:?}");
    let said = String::from_utf8_lossy(&bad.stderr);
    assert!(
        said.contains("config.yaml:4") && said.contains("evictionHrd"),
        "{said}"
    );
    let lost = check(&format!(
        "{head}memorySwap: {{swapBehavior: LimitedSwap}}\n"
    ));
    assert_eq!(lost.status.code(), Some(1), "{lost:?}");
}
