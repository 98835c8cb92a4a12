//! A node with five pods at any second, and what happened on it.

use super::super::{
    figures::{Sample, SortKey},
    state::State,
};
use crate::api::types::{
    ContainerStats, CpuStats, DiskStats, DropStats, Event, EventKind, Eviction, EvictionTimeline,
    ExitStats, InterfaceStats, LatencyStats, MemoryStats, NetworkStats, NodeStats, PodRef,
    PodStats, StallStats, ThrottlingStats, TierStats,
};

pub(super) const MI: u64 = 1 << 20;
const START: &str = "2026-11-21T08:00:00.000000Z";

/// At `second`; the busy figures grow with it.
pub(super) fn time(second: u64) -> String {
    format!("2026-11-21T08:57:{second:02}.000000Z")
}

fn memory(usage: u64, limit: Option<u64>) -> Option<MemoryStats> {
    Some(MemoryStats {
        time: time(0).into(),
        usage_bytes: usage,
        working_set_bytes: usage - usage / 8,
        rss_bytes: usage / 2,
        shared_bytes: usage / 4,
        limit_bytes: limit,
        ..MemoryStats::default()
    })
}

fn network(host_network: bool, second: u64) -> NetworkStats {
    let interface = |name: &str, bytes| InterfaceStats {
        name: name.to_owned(),
        rx_bytes: bytes,
        tx_bytes: bytes / 4,
        ..InterfaceStats::default()
    };
    let interfaces = [
        interface("eth0", MI * second),
        interface("net1", 1024 * second),
    ];
    NetworkStats {
        time: time(second).into(),
        host_network,
        interfaces: if host_network {
            Vec::new()
        } else {
            interfaces.into()
        },
        ..NetworkStats::default()
    }
}

struct Load {
    millicores: u64,
    wait_ms: u64,
    stall_ms: u64,
}

fn pod(name: &str, qos: &str, second: u64, load: &Load) -> PodStats {
    let mut histogram = vec![0; 24];
    histogram[4] = 1000 * second;
    histogram[13] = 5 * second * u64::from(load.wait_ms > 0);
    PodStats {
        pod_ref: PodRef {
            name: name.into(),
            namespace: "default".into(),
            uid: format!("uid-{name}").into(),
        },
        qos_class: qos.into(),
        source: "manifest".into(),
        phase: "Running".into(),
        cgroup: format!("/kubepods/poduid-{name}").into(),
        cpu: CpuStats {
            time: time(second).into(),
            usage_core_nano_seconds: load.millicores * 1_000_000 * second,
            usage_nano_cores: None,
            run_queue_wait_nano_seconds: load.wait_ms * 1_000_000 * second,
            run_queue_wait_histogram: histogram,
            context_switches: 150 * second,
            throttling: (name == "web").then_some(ThrottlingStats {
                periods: 10 * second,
                throttled_periods: second,
                throttled_nano_seconds: 20_000_000 * second,
            }),
        },
        memory: memory(256 * MI, Some(512 * MI)),
        stall: StallStats {
            direct_reclaim_nano_seconds: load.stall_ms * 500_000 * second,
            memcg_reclaim_nano_seconds: load.stall_ms * 500_000 * second,
        },
        exits: ExitStats::default(),
        disk: Some(DiskStats {
            read_bytes: 3 * MI * second,
            written_bytes: MI / 2 * second,
            read_latency: Some(LatencyStats {
                total_nano_seconds: 500_000 * second,
                histogram: vec![0, 0, 0, 99 * second],
            }),
            // The first was done in the eleventh second.
            write_latency: (second > 10).then(|| LatencyStats {
                total_nano_seconds: 900_000 * second,
                histogram: vec![0, 0, 0, 0, 0, 4 * (second - 10)],
            }),
            ..DiskStats::default()
        }),
        network: (name != "cache").then(|| network(name == "hog", second)),
        pressure: None,
        tasks: None,
        refused_forks: None,
        proactive_reclaim: None,
        containers: vec![ContainerStats::default()],
    }
}

pub(super) fn sample(second: u64) -> Sample {
    let load = |millicores, wait_ms, stall_ms| Load {
        millicores,
        wait_ms,
        stall_ms,
    };
    let mut hog = pod("hog", "BestEffort", second, &load(990, 400, 250));
    hog.memory = memory(700 * MI, None);
    hog.phase = "Evicted".into();
    hog.exits = ExitStats {
        total: 3,
        failed: 0,
        signaled: 3,
        oom_killed: 0,
    };
    let mut cache = pod("cache", "Burstable", second, &load(120, 2, 0));
    cache.memory = memory(500 * MI, Some(480 * MI));
    let mut found = pod("found", "BestEffort", second, &load(5, 0, 0));
    found.pod_ref.namespace = "".into();
    found.pod_ref.name = "0b6a2bd2-6f5e-4c19-9be0-6f3bb8d6a1c5".into();
    found.memory = None;
    found.exits = ExitStats {
        total: 10_000,
        failed: 12,
        signaled: 0,
        oom_killed: 0,
    };
    let tier = |name: &str, usage, armed| TierStats {
        name: name.to_owned(),
        cgroup: format!("/kubepods/{name}"),
        memory: memory(usage, None),
        armed_level_bytes: armed,
        ..TierStats::default()
    };
    Sample {
        node: NodeStats {
            node_name: "node-1".to_owned(),
            mode: "enforce".to_owned(),
            profile: "standard".to_owned(),
            cgroup_version: "hybrid".to_owned(),
            cgroup_driver: "cgroupfs".to_owned(),
            degradations: vec!["fentry is refused (lockdown)".to_owned()],
            start_time: START.to_owned(),
            time: time(second),
            cpus: 2,
            allocatable_memory_bytes: 2048 * MI,
            tiers: vec![
                tier("kubepods", 1456 * MI, Some(1536 * MI)),
                tier("burstable", 500 * MI, None),
                tier("besteffort", 700 * MI, Some(1024 * MI)),
            ],
            kernel_drops: DropStats::default(),
            ..NodeStats::default()
        },
        pods: vec![
            pod("web", "Guaranteed", second, &load(1250, 30, 0)),
            pod(
                "api-with-a-name-that-is-longer-than-the-column",
                "Burstable",
                second,
                &load(80, 0, 0),
            ),
            cache,
            hog,
            found,
        ],
    }
}

fn events() -> Vec<Event> {
    let event = |id, kind| Event {
        id,
        time: format!("2026-11-21T08:57:48.{id:03}456Z"),
        pod: Some(PodRef {
            name: "hog".into(),
            namespace: "default".into(),
            uid: "uid-hog".into(),
        }),
        kind,
    };
    let exit = EventKind::ProcessExit {
        pid: 1,
        command: "true".to_owned(),
        exit_code: Some(0),
        signal: None,
        oom_killed: false,
        run_time_nanos: 1,
        max_rss_bytes: 1,
    };
    let eviction = Eviction {
        pod: PodRef {
            name: "hog".into(),
            namespace: "default".into(),
            uid: "uid-hog".into(),
        },
        qos_class: "BestEffort".to_owned(),
        scope: podwarden_policy::signal::ScopeName::Kubepods,
        level_bytes: 1536 * MI,
        detected_by: Some(podwarden_policy::signal::Detector::Switch),
        usage_bytes: 1540 * MI,
        victim_usage_bytes: 700 * MI,
        processes: 3,
        reason: "lowest class".to_owned(),
        timeline: EvictionTimeline {
            crossing_nanos: 1_000_000,
            crossing_source: "kernel".to_owned(),
            wake_nanos: 1_080_000,
            verified_nanos: 1_100_000,
            killed_nanos: Some(2_200_000),
            freed_nanos: None,
        },
        ..Eviction::default()
    };
    vec![
        event(
            1,
            EventKind::PodAdded {
                qos_class: "BestEffort".to_owned(),
            },
        ),
        event(2, exit),
        event(3, EventKind::Eviction(Box::new(eviction))),
    ]
}

pub(super) fn state() -> State {
    let mut state = State::new(SortKey::Cpu, false, true);
    state.take(sample(10));
    state.take(sample(12));
    state.take_events(events());
    state
}
