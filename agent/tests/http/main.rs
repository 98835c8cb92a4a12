//! The API over real sockets, with made-up figures.

use std::{
    io::{ErrorKind, Write as _},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use podwarden::{
    api::{
        client::{Client, ClientError, Endpoint},
        published::{Figures, Published},
        types::{ErrorBody, EventKind, Eviction, NodeStats, PodList, PodStats},
    },
    hierarchy::act::{Counters, Operation, Outcome},
};

use support::{Api, node, pod};

mod bundle;
mod chromium;
mod events;
mod limits;
mod listen;
mod monitoring;
mod page;
mod plan;
mod support;

fn error_of(body: &str) -> String {
    serde_json::from_str::<ErrorBody>(body).unwrap().error
}

#[tokio::test]
async fn figures_come_as_published_over_both_listeners() {
    let api = Api::start().await;
    api.publish(1000);
    for client in [api.client(), Client::new(Endpoint::Tcp(api.tcp))] {
        assert_eq!(client.get::<NodeStats>("/v1/node").await.unwrap(), node());
        let list: PodList = client.get("/v1/pods").await.unwrap();
        assert_eq!(list.pods, (0..1000).map(pod).collect::<Vec<_>>());
        let one: PodStats = client.get("/v1/pods/uid-7").await.unwrap();
        assert_eq!(one, pod(7));
    }
}

#[tokio::test]
async fn what_is_not_there_is_named() {
    let api = Api::start().await;
    for (method, path, expected, named) in [
        ("GET", "/v1/pods/uid-9", 404, "uid-9"),
        ("GET", "/v2/pods", 404, "/v2/pods"),
        ("POST", "/v1/pods", 405, "POST"),
        ("DELETE", "/v1/pods/uid-9", 405, "read-only"),
        ("GET", "/v1/events?after=x", 400, "after"),
        ("GET", "/v1/events?afer=1", 400, "afer"),
        ("GET", "/readyz", 503, "not ready"),
        ("GET", "/v1/plan", 503, "planned"),
    ] {
        let (status, body) = api.status(method, path).await;
        assert_eq!(status, expected, "{method} {path}");
        let error = error_of(&body);
        assert!(error.contains(named), "{method} {path}: {error}");
    }
    let (status, _, body) = api
        .raw("GET /v1/events?follow=true HTTP/1.0\r\nLast-Event-ID: x\r\n\r\n")
        .await;
    assert_eq!(status, 400);
    assert!(error_of(&body).contains("Last-Event-ID"));
}

#[tokio::test]
async fn health_is_at_once_and_readiness_when_it_is_set() {
    let api = Api::start().await;
    assert_eq!(api.status("GET", "/healthz").await.0, 200);
    assert_eq!(api.status("GET", "/readyz").await.0, 503);
    api.published.set_ready(true);
    assert_eq!(api.status("GET", "/readyz").await, (200, "ok\n".to_owned()));
    api.published.set_trouble(Some("the reactor is stuck"));
    let (status, text) = api.status("GET", "/healthz").await;
    assert_eq!(status, 503);
    assert!(text.contains("the reactor is stuck"), "{text}");
    api.published.set_trouble(None);
    assert_eq!(api.status("GET", "/healthz").await.0, 200);
}

/// A probe asks as the process starts: before there is a socket, and before the agent is ready.
#[tokio::test]
async fn a_probe_may_wait_for_the_answer() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("api.sock");
    let ask = |wait: &str| {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_podwarden"));
        command.args(["health", "--ready", "--wait", wait, "--api-socket"]);
        command.arg(&socket).kill_on_drop(true).output()
    };
    assert_eq!(ask("0.3").await.unwrap().status.code(), Some(3));
    let asked = tokio::spawn(ask("60"));
    tokio::time::sleep(Duration::from_millis(300)).await;
    let listening = socket.clone();
    let api = Api::with(Published::default(), |listen| listen.unix = Some(listening)).await;
    assert_eq!(ask("0").await.unwrap().status.code(), Some(1));
    assert!(!asked.is_finished());
    api.published.set_ready(true);
    let answer = asked.await.unwrap().unwrap();
    assert_eq!(answer.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&answer.stdout), "ok\n");
}

#[tokio::test]
async fn metrics_say_what_the_figures_say() {
    let api = Api::start().await;
    let mut named = pod(0);
    named.pod_ref.name = "a\"b\\c".into();
    let pods = vec![named, pod(1)];
    api.published.publish(Figures::new(node(), pods));
    let eviction = EventKind::Eviction(Box::new(Eviction {
        qos_class: "BestEffort".to_owned(),
        scope: podwarden_policy::signal::ScopeName::Kubepods,
        ..Eviction::default()
    }));
    api.published.event(String::new(), None, eviction);
    let done = Arc::new(Counters::default());
    let took = Duration::from_micros(3);
    done.count(Operation::Update, Outcome::Done, took);
    done.count(Operation::Update, Outcome::Failed, 2 * took);
    api.published.set_counters(done);
    let shown: NodeStats = api.client().get("/v1/node").await.unwrap();
    let writes = shown.cgroup_writes;
    assert_eq!((writes.updated, writes.failed, shown.reconciles), (1, 1, 0));
    assert_eq!(shown.last_reconcile, None);
    let text = api.metrics().await;
    let labels = r#"namespace="default",pod="web-1",uid="uid-1",qos_class="Burstable""#;
    for line in [
        format!("podwarden_pod_cpu_usage_seconds_total{{{labels}}} 1.5"),
        format!("podwarden_pod_memory_usage_bytes{{{labels}}} 4096"),
        format!("podwarden_pod_memory_shared_bytes{{{labels}}} 1024"),
        format!("podwarden_pod_run_queue_wait_seconds_bucket{{{labels},le=\"0.000002\"}} 2"),
        format!("podwarden_pod_run_queue_wait_seconds_bucket{{{labels},le=\"0.000004\"}} 3"),
        format!("podwarden_pod_run_queue_wait_seconds_bucket{{{labels},le=\"+Inf\"}} 4"),
        format!("podwarden_pod_run_queue_wait_seconds_count{{{labels}}} 4"),
        r#"podwarden_tier_armed_level_bytes{tier="kubepods"} 1073741824"#.to_owned(),
        r#"podwarden_tier_memory_target_bytes{tier="kubepods"} 536870912"#.to_owned(),
        r#"podwarden_tier_memory_gap_bytes{tier="kubepods"} 4096"#.to_owned(),
        r#"podwarden_tier_convergence_steps_total{tier="kubepods",file="reclaim"} 3"#.to_owned(),
        r#"podwarden_tier_reclaimed_bytes_total{tier="kubepods"} 8192"#.to_owned(),
        r#"podwarden_evictions_total{qos_class="BestEffort",scope="kubepods",dry_run="false"} 1"#
            .to_owned(),
        "# TYPE podwarden_pod_cpu_usage_seconds_total counter".to_owned(),
        r#"podwarden_cgroup_operations_total{operation="update",result="done"} 1"#.to_owned(),
        r#"podwarden_cgroup_operations_total{operation="update",result="failed"} 1"#.to_owned(),
        r#"podwarden_cgroup_operations_total{operation="delete",result="failed"} 0"#.to_owned(),
        r#"podwarden_cgroup_operation_duration_seconds_bucket{operation="update",le="0.000004"} 1"#
            .to_owned(),
        r#"podwarden_cgroup_operation_duration_seconds_count{operation="update"} 2"#.to_owned(),
        r#"podwarden_cgroup_operation_duration_seconds_sum{operation="update"} 0.000009"#
            .to_owned(),
        "podwarden_reconciles_total 0".to_owned(),
    ] {
        assert!(text.lines().any(|l| l == line), "no {line} in\n{text}");
    }
    assert!(text.contains(r#"pod="a\"b\\c""#), "{text}");
    // Unknown is not zero.
    assert!(
        !text.contains("podwarden_pod_memory_limit_bytes{"),
        "{text}"
    );

    api.publish(1);
    let text = api.metrics().await;
    assert!(text.contains("uid-0") && !text.contains("uid-1"), "{text}");
}

/// `promtool` is of the Debian package `prometheus`.
#[tokio::test]
async fn a_scrape_passes_promtool() {
    let api = Api::start().await;
    api.publish(3);
    let text = api.metrics().await;
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut promtool = match promtool {
        Ok(promtool) => promtool,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("skipped: there is no promtool (Debian package prometheus)");
            return;
        }
        Err(error) => panic!("promtool: {error}"),
    };
    let mut stdin = promtool.stdin.take().unwrap();
    stdin.write_all(text.as_bytes()).unwrap();
    drop(stdin);
    let done = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.is_empty(), "{said}\n{text}");
}

#[tokio::test]
async fn the_client_says_what_is_wrong_and_what_to_do() {
    let api = Api::start().await;
    let missing = api
        .client()
        .get::<PodStats>("/v1/pods/uid-5")
        .await
        .unwrap_err();
    assert!(
        matches!(&missing, ClientError::Refused { status: 404, message, .. } if message.contains("uid-5")),
        "{missing}"
    );
    let shape = api.client().get::<Vec<u8>>("/v1/node").await.unwrap_err();
    assert!(matches!(shape, ClientError::Decode { .. }), "{shape}");
    let path = api.client().get::<PodStats>("/v1 /x").await.unwrap_err();
    assert!(matches!(path, ClientError::Path { .. }), "{path}");

    let client = api.client();
    let socket = api.stop().await;
    let gone = client.get::<NodeStats>("/v1/node").await.unwrap_err();
    assert!(matches!(gone, ClientError::Connect { .. }));
    let text = gone.to_string();
    assert!(text.contains(socket.to_str().unwrap()), "{text}");
    assert!(
        text.contains("podwarden run") && text.contains("--api-socket"),
        "{text}"
    );
}
