//! What 1,000 pods cost: prediction and figures of a pass. `cargo test -p podwarden --lib reclaimed::cost -- --nocapture`
//! prints it; a release build says what an agent pays.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    time::{Duration, Instant},
};

use nix::time::{ClockId, clock_gettime};
use podwarden_policy::{Bytes, Container, MilliCpu, Node, Pod, Resources, qos};

use super::{Reclaimer, figures::MachineUse};
use crate::{
    api::types::{MemoryStats, PodStats},
    config::ReclaimedConfig,
    pods::{Origin, PodSet, SourcedPod},
};

const PODS: u64 = 1_000;
/// A pass each 10 s, as of an agent without a reader, for so long that histograms and windows are full.
const INTERVAL_S: u64 = 10;
const WARM: u64 = 360;
const MEASURED: u64 = 60;
/// Memory of all pods, bytes.
const MOST_BYTES: i64 = 4 << 20;

thread_local! {
    /// Bytes that this thread holds.
    static HELD: Cell<i64> = const { Cell::new(0) };
}

struct Counting;

fn count(bytes: i64) {
    // A thread that ends frees after its own data are gone.
    let _ = HELD.try_with(|held| held.set(held.get() + bytes));
}

fn size(layout: Layout) -> i64 {
    i64::try_from(layout.size()).unwrap_or(i64::MAX)
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(size(layout));
        // SAFETY: the caller's contract is ours.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-size(layout));
        // SAFETY: the caller's contract is ours.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// CPU time of this thread.
fn used() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .unwrap()
        .into()
}

fn held() -> i64 {
    HELD.with(Cell::get)
}

/// Half of the pods are prod, the others best effort.
fn pod(n: u64) -> SourcedPod {
    let requests = Resources {
        cpu_request: Some(MilliCpu(50)),
        memory_request: Some(Bytes::mebi(100)),
        ..Resources::default()
    };
    let resources = if n.is_multiple_of(2) {
        requests
    } else {
        Resources::default()
    };
    let pod = Pod {
        uid: format!("3f0c{n:04}-5b7e-4c0e-9d53-0f4f7c1d2a3b").into(),
        name: format!("pod-{n}"),
        namespace: "shop".to_owned(),
        containers: vec![Container {
            name: "main".to_owned(),
            resources,
            ..Container::default()
        }],
        ..Pod::default()
    };
    let qos = qos::classify(&pod);
    SourcedPod::of_manifest(pod, qos, Origin::Kubelet)
}

/// Figures that change with time and differ between pods.
fn stats(pod: &Pod, n: u64, second: u64) -> PodStats {
    let mut stats = PodStats {
        qos_class: if n.is_multiple_of(2) {
            "Burstable"
        } else {
            "BestEffort"
        }
        .into(),
        memory: Some(MemoryStats {
            rss_bytes: (n * 7 + second * 13 % 61) << 20,
            ..MemoryStats::default()
        }),
        ..PodStats::default()
    };
    stats.pod_ref.uid = pod.uid.clone();
    let load = 1 + (n + second / 60) % 17;
    stats.cpu.usage_core_nano_seconds = second * load * 3_000_000;
    stats
}

#[test]
fn a_thousand_pods_cost_little() {
    let node = Node {
        cpu_capacity: MilliCpu(64_000),
        memory_capacity: Bytes::gibi(512),
        ..Node::default()
    };
    let set = PodSet {
        pods: (0..PODS).map(pod).collect(),
        ..PodSet::default()
    };
    let config = ReclaimedConfig {
        enable: true,
        ..ReclaimedConfig::default()
    };
    let start = Instant::now();
    let before = held();
    let mut reclaimer = Reclaimer::new(config, None, "n").unwrap();
    let mut cpu = Duration::ZERO;
    for pass in 0..WARM + MEASURED {
        let second = pass * INTERVAL_S;
        let pods: Vec<_> = (0..PODS)
            .zip(&set.pods)
            .map(|(n, pod)| stats(&pod.pod, n, second))
            .collect();
        let machine = MachineUse::of(second * 20_000_000_000, 300 << 30);
        let now = start + Duration::from_secs(second);
        let began = used();
        let figures = reclaimer.take(now, machine, &node, &set, &pods);
        if pass >= WARM {
            cpu += used() - began;
            assert!(figures.is_some());
        }
    }
    let bytes = held() - before;
    let pass = cpu / u32::try_from(MEASURED).unwrap();
    println!(
        "{PODS} pods: {pass:?} of CPU time a pass, {} KiB held",
        bytes >> 10
    );
    assert!(bytes <= MOST_BYTES, "{bytes} bytes are held");
    let percent_of_a_core = Duration::from_secs(INTERVAL_S) / 100;
    assert!(pass <= percent_of_a_core, "a pass takes {pass:?}");
}
