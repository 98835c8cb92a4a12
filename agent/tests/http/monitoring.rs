//! What `/metrics` promises, and the boards and alerts that are made of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{ErrorKind, Read as _},
    path::Path,
    process::Command,
    time::Duration,
};

use podwarden::{
    api::{
        published::{Figures, Published},
        types::{
            DiskStats, EventKind, Eviction, EvictionTimeline, InterfaceStats, LatencyStats,
            MemoryStats, NetworkStats, NodeStats, PodStats, PressureStats, ReclaimedStats,
            RuntimeStats, SourceStats, ThrottlingStats, TierConvergence, TierStats, WaitedStats,
        },
    },
    config::{Live, PodSeries},
};
use podwarden_policy::signal::ScopeName;
use serde_json::Value;

use crate::support::{Api, node, pod};

const RULES: &str = include_str!("../../../deploy/monitoring/rules.yaml");
const RULES_TEST: &str = include_str!("../../../deploy/monitoring/rules-test.yaml");
const CADVISOR: &str = include_str!("../../../deploy/monitoring/cadvisor.yaml");
const CADVISOR_TEST: &str = include_str!("../../../deploy/monitoring/cadvisor-test.yaml");
const BOARDS: [&str; 2] = [
    include_str!("../../../deploy/monitoring/node.json"),
    include_str!("../../../deploy/monitoring/fleet.json"),
];
const RUNBOOK: &str = include_str!("../../../deploy/docs/runbook.md");

/// A node where every figure is known.
fn whole(pods: usize) -> Figures {
    let memory = || {
        Some(MemoryStats {
            limit_bytes: Some(1 << 30),
            ..MemoryStats::default()
        })
    };
    let tier = |name: &str| TierStats {
        name: name.to_owned(),
        memory: memory(),
        armed_level_bytes: Some(1),
        convergence: Some(TierConvergence {
            target_bytes: Some(1),
            ..TierConvergence::default()
        }),
        ..TierStats::default()
    };
    let node = NodeStats {
        start_time: "2026-11-21T08:00:00.000000Z".to_owned(),
        tiers: ["kubepods", "burstable", "besteffort"].map(tier).to_vec(),
        reclaimed: Some(ReclaimedStats::default()),
        runtime: Some(RuntimeStats::default()),
        ..node()
    };
    let pod = |i| {
        let mut pod = PodStats {
            memory: memory(),
            ..pod(i)
        };
        pod.cpu.throttling = Some(ThrottlingStats::default());
        pod.cpu.run_queue_wait_histogram = vec![1; 24];
        let histogram = vec![1; 20];
        let latency = LatencyStats {
            total_nano_seconds: 1,
            histogram,
        };
        pod.disk = Some(DiskStats {
            read_latency: Some(latency.clone()),
            write_latency: Some(latency),
            ..DiskStats::default()
        });
        let waited = WaitedStats {
            some_nano_seconds: 0,
            full_nano_seconds: Some(0),
        };
        pod.pressure = Some(PressureStats {
            cpu: waited,
            memory: waited,
            io: waited,
        });
        pod.network = Some(NetworkStats {
            interfaces: vec![InterfaceStats::default()],
            tcp_retransmitted_segments: Some(0),
            ..NetworkStats::default()
        });
        pod
    };
    Figures::new(node, (0..pods).map(pod).collect())
}

/// Series names, without the suffixes of histograms, as `/metrics` declares them.
async fn declared(api: &Api) -> BTreeSet<String> {
    let (sources, receiver) =
        tokio::sync::watch::channel(std::sync::Arc::new(vec![SourceStats::default()]));
    api.published.set_sources(receiver);
    let text = api.metrics().await;
    drop(sources);
    let declared = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let mut names: BTreeSet<String> = declared
        .map(|rest| rest.split(' ').next().unwrap().to_owned())
        .collect();
    // There only with an event log, an API server, or a foreign write: their places count them.
    for name in [
        "podwarden_event_log_lines_total",
        "podwarden_eviction_status_waiting",
        "podwarden_foreign_writes_total",
    ] {
        names.insert(name.to_owned());
    }
    names
}

/// Names of metrics in an expression: Prometheus's own and ours.
fn used(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = words.filter(|word| word.starts_with("podwarden_") || word.starts_with("process_"));
    let bare = |word: &str| {
        let histogram = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|suffix| word.strip_suffix(suffix));
        histogram.unwrap_or(word).to_owned()
    };
    ours.map(bare).collect()
}

fn strings<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(map) => {
            found.extend(map.get(key).and_then(Value::as_str));
            map.values().for_each(|value| strings(value, key, found));
        }
        Value::Array(all) => all.iter().for_each(|value| strings(value, key, found)),
        _ => {}
    }
}

#[tokio::test]
async fn every_query_of_a_board_or_alert_names_a_metric_that_there_is() {
    let api = Api::start().await;
    api.published.publish(whole(2));
    let names = declared(&api).await;
    let rules: Value = serde_saphyr::from_str(RULES).unwrap();
    let boards = BOARDS.map(|board| serde_json::from_str::<Value>(board).unwrap());
    let mut queries = 0;
    for document in boards.iter().chain([&rules]) {
        let mut expressions = Vec::new();
        strings(document, "expr", &mut expressions);
        for expression in expressions {
            queries += 1;
            for name in used(expression) {
                assert!(
                    names.contains(&name),
                    "no metric {name}: {expression}\n{names:?}"
                );
            }
        }
    }
    assert!(queries > 50, "{queries}");
    for board in &boards {
        let panels = board["panels"].as_array().unwrap();
        let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
        assert_eq!(
            ids.len(),
            panels.len(),
            "each panel has a number of its own"
        );
    }
}

#[test]
fn every_alert_has_its_page_in_the_runbook() {
    let rules: Value = serde_saphyr::from_str(RULES).unwrap();
    let rules = rules["spec"]["groups"][0]["rules"].as_array().unwrap();
    let headings: BTreeSet<_> = RUNBOOK
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .collect();
    let mut alerts = BTreeSet::new();
    for rule in rules {
        let alert = rule["alert"].as_str().unwrap();
        alerts.insert(alert);
        let page = format!("/deploy/docs/runbook.md#{}", alert.to_lowercase());
        let url = rule["annotations"]["runbook_url"].as_str().unwrap();
        assert!(url.ends_with(&page), "{alert}: {url}");
        assert!(
            ["critical", "warning", "info"].contains(&rule["labels"]["severity"].as_str().unwrap())
        );
    }
    assert_eq!(alerts, headings, "one page for each alert");
    // The rules' test counts them.
    let tests: Value = serde_saphyr::from_str(RULES_TEST).unwrap();
    let counted = &tests["tests"][1]["promql_expr_test"][1]["exp_samples"][0]["value"];
    assert_eq!(counted.as_u64(), Some(alerts.len() as u64));
}

#[test]
fn every_alert_fires_with_its_fault_and_not_without() {
    test_rules(RULES, RULES_TEST);
}

#[tokio::test]
async fn a_dashboard_of_cadvisor_has_podwarden_s_series() {
    let api = Api::start().await;
    set_series(&api.published, PodSeries::Full);
    api.published.publish(whole(1));
    let names = declared(&api).await;
    let rules: Value = serde_saphyr::from_str(CADVISOR).unwrap();
    let mut expressions = Vec::new();
    strings(&rules, "expr", &mut expressions);
    assert!(expressions.len() > 20, "{expressions:?}");
    for expression in expressions {
        for name in used(expression) {
            assert!(names.contains(&name), "no metric {name}\n{names:?}");
        }
    }
    test_rules(CADVISOR, CADVISOR_TEST);
}

/// `promtool test rules`, on the groups of a PrometheusRule.
fn test_rules(rules: &str, tests: &str) {
    let dir = tempfile::tempdir().unwrap();
    let rules: Value = serde_saphyr::from_str(rules).unwrap();
    // JSON is YAML.
    fs::write(dir.path().join("groups.yaml"), rules["spec"].to_string()).unwrap();
    fs::write(dir.path().join("rules-test.yaml"), tests).unwrap();
    for arguments in [
        ["check", "rules", "groups.yaml"],
        ["test", "rules", "rules-test.yaml"],
    ] {
        let Some(done) = run("promtool", &arguments, dir.path()) else {
            println!("skipped: there is no promtool (Debian package prometheus)");
            return;
        };
        assert!(done.0, "{}", done.1);
    }
}

/// Whether it went well, and what it said; `None` where there is no such program.
fn run(program: &str, arguments: &[&str], dir: &Path) -> Option<(bool, String)> {
    let mut command = Command::new(program);
    match command.args(arguments).current_dir(dir).output() {
        Ok(done) => {
            let said =
                String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
            Some((done.status.success(), said.into_owned()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => panic!("{program}: {error}"),
    }
}

fn set_series(published: &Published, pod_series: PodSeries) {
    published.set_live(Live {
        sampling_interval: Duration::from_secs(1),
        pod_series,
    });
}

#[tokio::test]
async fn a_pod_has_as_many_series_as_configured() {
    for (detail, most) in [
        (PodSeries::None, 0),
        (PodSeries::Basic, 12),
        (PodSeries::Full, 86),
    ] {
        let api = Api::start().await;
        set_series(&api.published, detail);
        api.published.publish(whole(3));
        let text = api.metrics().await;
        let mut series: BTreeMap<&str, usize> = BTreeMap::new();
        for line in text
            .lines()
            .filter(|line| line.starts_with("podwarden_pod_"))
        {
            if let Some(uid) = line.split("uid=\"").nth(1) {
                *series.entry(uid.split('"').next().unwrap()).or_default() += 1;
            }
        }
        let found = series.get("uid-1").copied().unwrap_or_default();
        assert!(
            found <= most && (detail != PodSeries::Full || found > 12),
            "{detail:?}: {found}"
        );
        assert_eq!(series.is_empty(), detail == PodSeries::None);
    }
}

/// 1,000 pods with twelve series each are under 1 MiB for a scraper that takes gzip, and say the same.
#[tokio::test]
async fn a_scraper_that_takes_gzip_gets_the_same_in_a_tenth() {
    let api = Api::start().await;
    set_series(&api.published, PodSeries::Basic);
    api.published.publish(whole(1000));
    let plain = api.metrics().await;
    let request = "GET /metrics HTTP/1.0\r\naccept-encoding: gzip\r\n\r\n";
    let (head, body) = api.raw_bytes(request).await;
    assert!(head.contains("content-encoding: gzip"), "{head}");
    assert!(head.contains("vary: accept-encoding"), "{head}");
    println!(
        "1,000 pods, basic: {} bytes, {} compressed",
        plain.len(),
        body.len()
    );
    assert!(
        body.len() < 1 << 20 && body.len() < plain.len() / 5,
        "{}",
        body.len()
    );
    let mut text = String::new();
    flate2::read::GzDecoder::new(&body[..])
        .read_to_string(&mut text)
        .unwrap();
    let pods = |text: &str| {
        text.lines()
            .filter(|l| l.contains("uid="))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(pods(&text), pods(&plain));
}

#[tokio::test]
async fn pods_are_written_once_for_a_pass() {
    let api = Api::start().await;
    set_series(&api.published, PodSeries::Basic);
    api.published.publish(whole(1000));
    let first = api.metrics().await;
    println!("1,000 pods, basic: {} bytes", first.len());
    let figures = api.published.latest();
    let again = api.metrics().await;
    assert!(std::sync::Arc::ptr_eq(&figures, &api.published.latest()));
    let pods = |text: &str| {
        text.lines()
            .filter(|l| l.contains("uid="))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(pods(&first), pods(&again));
    api.published.publish(whole(1));
    assert!(!api.metrics().await.contains("uid-7"));
}

#[tokio::test]
async fn evictions_are_timed_and_every_label_set_begins_at_zero() {
    let api = Api::start().await;
    let text = api.metrics().await;
    for line in [
        // Other tests of this process count pressure and pids nowhere.
        r#"podwarden_evictions_total{qos_class="Guaranteed",scope="pids",dry_run="true"} 0"#,
        r#"podwarden_level_crossings_total{scope="pids",detected_by="psi-full"} 0"#,
        r#"podwarden_eviction_crossing_to_kill_seconds_bucket{scope="pressure",le="0.001"} 0"#,
        r#"podwarden_eviction_kill_to_freed_seconds_count{scope="pressure"} 0"#,
        r#"podwarden_eviction_overshoot_bytes_bucket{scope="pressure",le="+Inf"} 0"#,
    ] {
        assert!(text.lines().any(|l| l == line), "no {line} in\n{text}");
    }
    let mut eviction = Eviction {
        qos_class: "BestEffort".to_owned(),
        scope: ScopeName::BestEffort,
        level_bytes: 100 << 20,
        headroom_bytes: 10 << 20,
        usage_bytes: 113 << 20,
        timeline: EvictionTimeline {
            crossing_nanos: 1_000_000_000,
            killed_nanos: Some(1_000_800_000),
            freed_nanos: Some(1_200_800_000),
            ..EvictionTimeline::default()
        },
        ..Eviction::default()
    };
    let publish = |eviction: &Eviction| {
        let kind = EventKind::Eviction(Box::new(eviction.clone()));
        api.published.event(String::new(), None, kind);
    };
    publish(&eviction);
    // The agent before this one has counted it.
    eviction.interrupted = true;
    publish(&eviction);
    let text = api.metrics().await;
    for line in [
        r#"podwarden_eviction_crossing_to_kill_seconds_bucket{scope="besteffort",le="0.0005"} 0"#,
        r#"podwarden_eviction_crossing_to_kill_seconds_bucket{scope="besteffort",le="0.001"} 1"#,
        r#"podwarden_eviction_kill_to_freed_seconds_bucket{scope="besteffort",le="0.1"} 0"#,
        r#"podwarden_eviction_kill_to_freed_seconds_bucket{scope="besteffort",le="0.25"} 1"#,
        r#"podwarden_eviction_overshoot_bytes_bucket{scope="besteffort",le="1048576"} 0"#,
        r#"podwarden_eviction_overshoot_bytes_bucket{scope="besteffort",le="4194304"} 1"#,
        r#"podwarden_eviction_overshoot_bytes_count{scope="besteffort"} 1"#,
    ] {
        assert!(text.lines().any(|l| l == line), "no {line} in\n{text}");
    }
    assert!(text.contains("\nprocess_resident_memory_bytes "), "{text}");
}
