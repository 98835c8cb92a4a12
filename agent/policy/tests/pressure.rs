//! Who may be evicted, and when.

#[path = "support/pods.rs"]
mod support;

use std::time::Duration;

use podwarden_policy::{
    Bytes, QosClass,
    evict::{Candidate, Excess, Exemptions, Group, Ranking, rank},
    pressure::{Observation, Watch},
    signal::Signal,
    threshold::{ThresholdConfig, parse_duration},
};
use support::pod;

#[test]
fn a_pod_whose_usage_is_unknown() {
    let unknown = Candidate {
        qos: QosClass::BestEffort,
        priority: 0,
        memory_request: Bytes(0),
        working_set: None,
    };
    let known = Candidate {
        working_set: Some(Bytes(1)),
        ..unknown
    };
    let candidate = |ranking| (rank(ranking, &unknown), rank(ranking, &known));
    let (a, b) = candidate(Ranking::Kubelet);
    assert!(a < b && a.excess == Excess::UnknownFirst && a.group == Group::Any);
    let (a, b) = candidate(Ranking::QosFirst);
    assert!(a > b && a.excess == Excess::UnknownLast && a.group == Group::BestEffort);
}

#[test]
fn protected_pods() {
    let mut static_pod = pod("s", &[["", "", "", ""]]);
    static_pod.static_pod = true;
    let mut allowed = Exemptions::default();
    assert!(allowed.of(&static_pod).is_some());
    allowed.evict_static_pods = true;
    assert_eq!(allowed.of(&static_pod), None);
    allowed.own_pod = Some("s".into());
    assert!(allowed.of(&static_pod).is_some());
    let mut system = pod("p", &[["", "", "", ""]]);
    system.priority = 2_000_000_000;
    assert!(Exemptions::default().of(&system).is_some());
}

#[test]
fn soft_thresholds_wait_and_minimum_reclaim_holds() {
    let map = |value: &str| [("memory.available".to_owned(), value.to_owned())].into();
    let config = ThresholdConfig {
        eviction_hard: map("5%"),
        eviction_soft: map("1Gi"),
        eviction_soft_grace_period: map("1m30s"),
        eviction_minimum_reclaim: map("200Mi"),
        ..ThresholdConfig::default()
    };
    let thresholds = config.parse().expect("valid");
    let mut watch = Watch::default();
    let mut due = |seconds, available_mi: u64| -> Vec<String> {
        let reading = Observation {
            available: available_mi << 20,
            capacity: 10_000 << 20,
        };
        watch
            .observe(
                Duration::from_secs(seconds),
                &thresholds,
                &[(Signal::MemoryAvailable, reading)].into(),
            )
            .iter()
            .map(ToString::to_string)
            .collect()
    };
    const SOFT: &str = "memory.available<1Gi";
    const HARD: &str = "memory.available<5%";
    let starts = |found: &[String], expected: &[&str]| {
        assert_eq!(found.len(), expected.len(), "{found:?}");
        assert!(
            found.iter().zip(expected).all(|(f, e)| f.starts_with(e)),
            "{found:?}"
        );
    };
    starts(&due(0, 2000), &[]);
    // The minimum reclaim does not count before the grace is over.
    starts(&due(5, 1000), &[]);
    starts(&due(6, 1100), &[]);
    starts(&due(10, 1000), &[]);
    starts(&due(99, 1000), &[]);
    starts(&due(100, 1000), &[SOFT]);
    // Above the threshold, not yet by the minimum reclaim.
    starts(&due(101, 1200), &[SOFT]);
    starts(&due(102, 1224), &[]);
    // The grace starts anew.
    starts(&due(103, 1000), &[]);
    // 5 % of 10,000 Mi is 500 Mi; a hard threshold does not wait, nor for the minimum reclaim.
    starts(&due(104, 500), &[]);
    starts(&due(105, 499), &[HARD]);
    starts(&due(106, 699), &[HARD]);
    starts(&due(107, 700), &[]);
    starts(&due(193, 499), &[HARD, SOFT]);
}

#[test]
fn durations_as_go_writes_them() {
    let rows = [
        ("0", Some(Duration::ZERO)),
        ("30s", Some(Duration::from_secs(30))),
        ("1m30s", Some(Duration::from_secs(90))),
        ("1.5h", Some(Duration::from_secs(5400))),
        ("300ms", Some(Duration::from_millis(300))),
        ("+2us", Some(Duration::from_micros(2))),
        ("2\u{b5}s", Some(Duration::from_micros(2))),
        ("", None),
        ("30", None),
        ("s", None),
        ("-30s", None),
        ("1d", None),
        ("1 s", None),
        ("9999999999h", None),
    ];
    for (text, expected) in rows {
        assert_eq!(parse_duration(text), expected, "{text}");
    }
}

#[test]
fn pods_that_leave_too_little_below_their_limit() {
    let node = podwarden_policy::Node {
        memory_capacity: Bytes::gibi(4),
        kube_reserved: podwarden_policy::model::Reserved {
            memory: Bytes::gibi(1),
            ..Default::default()
        },
        eviction_hard_memory: Bytes::mebi(100),
        ..podwarden_policy::Node::default()
    };
    let of = |used| podwarden_policy::pressure::crossed_by_pods(&node, used);
    assert_eq!(of(None), None);
    assert_eq!(
        of(Some(Bytes::mebi(2972))),
        None,
        "exactly the threshold is left"
    );
    let crossing = of(Some(Bytes(Bytes::mebi(2972).0 + 1))).expect("crossed");
    assert_eq!(
        crossing.to_string(),
        "allocatableMemory.available<100Mi: 104857599 left of 100Mi"
    );
    assert_eq!(of(Some(Bytes::gibi(9))).map(|c| c.available), Some(0));
    let none = podwarden_policy::Node {
        eviction_hard_memory: Bytes::ZERO,
        ..node
    };
    assert_eq!(
        podwarden_policy::pressure::crossed_by_pods(&none, Some(Bytes::gibi(9))),
        None
    );
}
