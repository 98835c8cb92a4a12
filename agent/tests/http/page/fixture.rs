//! A node with pods of every class, an eviction and its flight record.

use podwarden::api::{
    published::Figures,
    types::{
        Curve, EventKind, Eviction, EvictionTimeline, FlightRecord, Level, MemoryStats, NodeStats,
        PodRef, PodStats, Ranked, TierStats,
    },
};
use podwarden_policy::signal::{ScopeName, Signal};

const GIB: u64 = 1 << 30;
/// A pod's author chooses its name; the API server would refuse this one.
const HOSTILE: &str = "<img src=x onerror=document.title='caught'>";

pub(crate) fn pod(i: usize, pass: u64) -> PodStats {
    let mut pod = crate::support::pod(i);
    pod.qos_class = ["BestEffort", "Burstable", "Guaranteed"][i % 3].into();
    if i == 4 {
        pod.pod_ref.name = HOSTILE.into();
    }
    let i = i as u64;
    pod.cpu.usage_nano_cores = Some((i * 37 + pass * 91) % 900 * 1_000_000);
    pod.cpu.run_queue_wait_nano_seconds = pass * (i % 7) * 3_000_000;
    pod.stall.direct_reclaim_nano_seconds = pass * (i % 5) * 1_000_000;
    pod.memory = Some(MemoryStats {
        usage_bytes: (i % 40 + 1) * (8 << 20) + pass * (i % 9) * (1 << 20),
        working_set_bytes: (i % 40 + 1) * (6 << 20),
        ..MemoryStats::default()
    });
    pod
}

pub(crate) fn figures(pods: usize, pass: u64) -> Figures {
    let tier = |name: &str, used: u64| TierStats {
        name: name.to_owned(),
        armed_level_bytes: (name == "kubepods").then_some(15 * GIB),
        memory: Some(MemoryStats {
            usage_bytes: used + pass * (64 << 20),
            working_set_bytes: used * 3 / 4,
            limit_bytes: (name != "besteffort").then_some(16 * GIB),
            ..MemoryStats::default()
        }),
        ..TierStats::default()
    };
    let node = NodeStats {
        degradations: vec!["no kernel program sees charges: lockdown is on".to_owned()],
        start_time: "2026-11-21T08:00:00.000000Z".to_owned(),
        time: format!("2026-11-21T09:{:02}:{:02}.000000Z", pass / 60, pass % 60),
        cpus: 8,
        allocatable_memory_bytes: 16 * GIB,
        tiers: vec![
            tier("kubepods", 9 * GIB),
            tier("burstable", 5 * GIB),
            tier("besteffort", 3 * GIB),
        ],
        ..crate::support::node()
    };
    Figures::new(node, (0..pods).map(|i| pod(i, pass)).collect())
}

pub(crate) fn victim() -> PodRef {
    pod(0, 0).pod_ref
}

pub(crate) fn eviction() -> EventKind {
    EventKind::Eviction(Box::new(Eviction {
        pod: victim(),
        // All tests of this process share one recorder, and another one counts BestEffort.
        qos_class: "Burstable".to_owned(),
        scope: ScopeName::Kubepods,
        level_bytes: 15 * GIB,
        usage_bytes: 15 * GIB + (1 << 20),
        victim_usage_bytes: 2 * GIB,
        processes: 3,
        reason: "BestEffort pods go first".to_owned(),
        timeline: EvictionTimeline {
            crossing_nanos: 1_000_000_000,
            crossing_source: "kernel".to_owned(),
            wake_nanos: 1_000_090_000,
            verified_nanos: 1_000_300_000,
            killed_nanos: Some(1_001_000_000),
            freed_nanos: Some(1_120_000_000),
        },
        ..Eviction::default()
    }))
}

pub(crate) fn record() -> FlightRecord {
    let curve = |scope, pod, bytes: [u64; 4]| Curve {
        scope,
        pod,
        offset_nanos: vec![-900_000_000, 0, 60_000_000, 900_000_000],
        usage_bytes: bytes.to_vec(),
    };
    FlightRecord {
        signal: Signal::MemoryAvailable,
        origin_nanos: 1_000_000_000,
        levels: vec![Level {
            scope: ScopeName::Kubepods,
            level_bytes: 15 * GIB,
            target_bytes: 14 * GIB,
        }],
        ranking: vec![Ranked {
            pod: victim(),
            usage_bytes: 2 * GIB,
            working_set_bytes: None,
            reason: "BestEffort pods go first".to_owned(),
        }],
        candidates: 90,
        curves: vec![
            curve(
                Some(ScopeName::Kubepods),
                None,
                [13 * GIB, 15 * GIB, 14 * GIB, 13 * GIB],
            ),
            curve(None, Some(victim()), [GIB, 2 * GIB, GIB, 0]),
        ],
        ..FlightRecord::default()
    }
}
