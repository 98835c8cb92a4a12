//! kubelet `pkg/kubelet/eviction/helpers_test.go` and `memory_threshold_notifier.go`.

use core::time::Duration;

use podwarden_policy::{
    Bytes, Pod,
    evict::{Exemptions, PidRank, Ranking, grace_seconds, order},
    pressure::usage_level,
    signal::Signal,
    threshold::{Amount, ThresholdConfig},
};

use crate::support::pod;

fn names(pods: &[Pod], usage_mi: &[u64]) -> Vec<String> {
    let usage = |pod: &Pod| {
        let index = pods.iter().position(|p| p.uid == pod.uid)?;
        Some(Bytes::mebi(usage_mi[index]))
    };
    order(Ranking::Kubelet, &Exemptions::default(), pods, usage)
        .into_iter()
        .map(|ranked| ranked.pod.name.clone())
        .collect()
}

#[test]
fn by_usage_over_request() {
    let mut below = pod("below", &[["", "200Mi", "", ""]]);
    below.priority = -1;
    let mut exceeds = pod("exceeds", &[["", "100Mi", "", ""]]);
    exceeds.priority = 1;
    assert_eq!(names(&[below, exceeds], &[199, 101]), ["exceeds", "below"]);
}

#[test]
fn by_priority() {
    let pods = [("low", -134), ("medium", 1), ("high", 12_534)].map(|(name, priority)| {
        let mut pod = pod(name, &[["", "", "", ""]]);
        pod.priority = priority;
        pod
    });
    assert_eq!(names(&pods, &[0, 0, 0]), ["low", "medium", "high"]);
}

#[test]
fn by_processes() {
    let mut ranks = [
        ("high-5", 1, 5),
        ("high-20", 1, 20),
        ("low-6", -1, 6),
        ("low-20", -1, 20),
    ]
    .map(|(name, priority, processes)| (PidRank::new(priority, processes), name));
    ranks.sort_unstable();
    assert_eq!(
        ranks.map(|(_, name)| name),
        ["low-20", "low-6", "high-20", "high-5"]
    );
}

#[test]
fn memory_before_other_signals() {
    let signals = [
        Signal::MemoryPressure,
        Signal::QosReservedMemory,
        Signal::PidAvailable,
        Signal::MemoryAvailable,
    ];
    assert_eq!(signals.iter().min(), Some(&Signal::MemoryAvailable));
    assert_eq!(Signal::ALL.iter().min(), Signal::ALL.first());
}

fn one(value: &str) -> std::collections::BTreeMap<String, String> {
    [("memory.available".into(), value.into())].into()
}

#[test]
fn thresholds() {
    let config = ThresholdConfig {
        eviction_hard: one("150Mi"),
        eviction_soft: one("300Mi"),
        eviction_soft_grace_period: one("30s"),
        enforce_pods: true,
        ..ThresholdConfig::default()
    };
    let found: Vec<_> = config
        .parse()
        .expect("valid")
        .into_iter()
        .map(|t| (t.signal, t.less_than, t.grace))
        .collect();
    let mi = |n| Amount::Quantity(Bytes::mebi(n).0);
    let expected = [
        (Signal::AllocatableMemoryAvailable, mi(150), None),
        (Signal::MemoryAvailable, mi(150), None),
        (
            Signal::MemoryAvailable,
            mi(300),
            Some(Duration::from_secs(30)),
        ),
    ];
    assert_eq!(found, expected);
}

#[test]
fn thresholds_that_are_none() {
    for value in ["100%", "0%"] {
        let config = ThresholdConfig {
            eviction_hard: one(value),
            ..ThresholdConfig::default()
        };
        assert_eq!(config.parse(), Ok(vec![]), "{value}");
    }
}

#[test]
fn thresholds_that_are_wrong() {
    let wrong = [
        ThresholdConfig {
            eviction_hard: one("-150Mi"),
            ..ThresholdConfig::default()
        },
        ThresholdConfig {
            eviction_hard: one("0"),
            ..ThresholdConfig::default()
        },
        ThresholdConfig {
            eviction_hard: one("101%"),
            ..ThresholdConfig::default()
        },
        ThresholdConfig {
            eviction_soft: one("150Mi"),
            ..ThresholdConfig::default()
        },
        ThresholdConfig {
            eviction_soft: one("150Mi"),
            eviction_soft_grace_period: one("-30s"),
            ..ThresholdConfig::default()
        },
        ThresholdConfig {
            eviction_hard: one("150Mi"),
            eviction_minimum_reclaim: one("-300Mi"),
            ..ThresholdConfig::default()
        },
        ThresholdConfig {
            eviction_hard: [("mem.available".into(), "150Mi".into())].into(),
            ..ThresholdConfig::default()
        },
    ];
    for config in wrong {
        assert!(config.parse().is_err(), "{config:?}");
    }
}

#[test]
fn usage_level_of_a_threshold() {
    let capacity = Bytes(17_179_869_184);
    let inactive_file = Bytes(15_032_385_536 - 12_884_901_888);
    let level = usage_level(capacity, Bytes(104_857_600), inactive_file);
    assert_eq!(level, Bytes(19_222_495_232));
}

/// `calculateEffectiveGracePeriod` of `pkg/kubelet/pod_workers.go`: what the pod asks for, less where the override is
/// less, at least a second.
#[test]
fn grace_period() {
    for (asked, most, seconds) in [
        (None, None, 30),
        (Some(60), None, 60),
        (Some(0), None, 1),
        (Some(60), Some(20), 20),
        (Some(20), Some(60), 20),
        (None, Some(20), 20),
        (None, Some(60), 30),
        (Some(60), Some(0), 1),
    ] {
        let pod = Pod {
            grace_seconds: asked,
            ..Pod::default()
        };
        assert_eq!(grace_seconds(&pod, most), seconds, "{asked:?} {most:?}");
    }
}
