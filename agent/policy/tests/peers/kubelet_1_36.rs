//! Rows that were compared with kubelet 1.36.2 one by one. Each names the function that it follows
//! from; those of `kuberuntime_container_linux.go` were also read from the released program.

use core::time::Duration;

use podwarden_policy::{
    Bytes, Container, ContainerKind, MilliCpu, Node, Pod, QosClass,
    container::{ContainerOptions, ContainerValue, limited_swap, values},
    evict::Candidate,
    limits::{CpuMax, Limit, LimitOptions, pod_config, pod_limits, pod_requests},
    model::{Overhead, Reserved},
    name::CgroupName,
    plan::{Controllers, Snapshot},
    reserve::allocatable,
    threshold::{Amount, ThresholdConfig},
};

use crate::support::{container, pod, resources};

const SIDECAR: ContainerKind = ContainerKind::Sidecar;
const INIT: ContainerKind = ContainerKind::Init;

fn with_init(app: [&str; 4], init: &[(ContainerKind, [&str; 4])]) -> Pod {
    let mut pod = pod("a", &[app]);
    let init = init
        .iter()
        .map(|(kind, written)| container(*kind, *written));
    pod.containers.extend(init);
    pod
}

fn quota(pod: &Pod) -> Option<Option<u64>> {
    let config = pod_config(pod, &LimitOptions::default());
    config.cpu_max.map(|max: CpuMax| max.quota_us.bound())
}

fn memory_limit(pod: &Pod) -> Option<Bytes> {
    pod_config(pod, &LimitOptions::default()).memory_limit
}

/// `ResourceConfigForPod` of `pkg/kubelet/cm/helpers_linux.go` judges the sums that
/// `AggregateContainerLimits` of component-helpers hands to its `ContainerFn`.
#[test]
fn an_init_container_behind_a_sidecar_with_a_limit_is_limited() {
    let limited = ["100m", "100Mi", "200m", "200Mi"];
    let free = ["100m", "100Mi", "", ""];
    let behind = with_init(limited, &[(SIDECAR, limited), (INIT, free)]);
    assert_eq!(quota(&behind), Some(Some(40_000)));
    assert_eq!(memory_limit(&behind), Some(Bytes::mebi(400)));

    let before = with_init(limited, &[(INIT, free), (SIDECAR, limited)]);
    assert_eq!(quota(&before), None, "no sidecar is before it");
    assert_eq!(memory_limit(&before), None);

    let second = with_init(limited, &[(SIDECAR, limited), (SIDECAR, free)]);
    assert_eq!(
        memory_limit(&second),
        Some(Bytes::mebi(400)),
        "a second sidecar"
    );

    let app = with_init(free, &[(SIDECAR, limited)]);
    assert_eq!(memory_limit(&app), None, "a container counts alone");
}

/// `AggregateContainerLimits`: what an init container needs beside the sidecars before it.
#[test]
fn limits_are_cumulative() {
    let app = ["1", "100Mi", "1", "100Mi"];
    let sidecar = ["500m", "50Mi", "500m", "50Mi"];
    let init = ["3", "300Mi", "3", "300Mi"];
    let pod = with_init(app, &[(SIDECAR, sidecar), (INIT, init), (SIDECAR, sidecar)]);
    assert_eq!(pod_limits(&pod).cpu, MilliCpu(3500));
    assert_eq!(pod_limits(&pod).memory, Bytes::mebi(350));
    assert_eq!(pod_requests(&pod).memory, Bytes::mebi(350));
}

fn snapshot() -> Snapshot {
    let node = Node {
        memory_capacity: Bytes::gibi(8),
        swap_capacity: Bytes::gibi(4),
        ..Node::default()
    };
    let mut snapshot = Snapshot::new(node, CgroupName::new(["kubepods"]));
    snapshot.controllers = Controllers {
        memory_protection: true,
        ..Controllers::default()
    };
    snapshot.containers = ContainerOptions {
        throttling_factor: Some(900_000),
        limited_swap: true,
    };
    snapshot
}

/// Shares, quota in microseconds and memory limit.
fn of_runtime(pod: &Pod, container: &Container) -> (u64, Option<u64>, Option<Bytes>) {
    let (mut shares, mut quota, mut memory) = (0, None, None);
    for (value, _) in values(&snapshot(), pod, container) {
        match value {
            ContainerValue::CpuShares(found) => shares = found.0,
            ContainerValue::CpuMax(max) => quota = max.quota_us.bound(),
            ContainerValue::MemoryLimit(limit) => memory = limit.bound(),
            _ => {}
        }
    }
    (shares, quota, memory)
}

/// `getCPULimit`, `getMemoryLimit` and `calculateLinuxResources`.
#[test]
fn containers_under_pod_level_resources() {
    let pod_level = |own: [&str; 4], containers: &[[&str; 4]]| {
        let mut pod = pod("p", containers);
        pod.pod_resources = Some(resources(own));
        pod.apply_defaults();
        pod
    };
    let mut pod = pod_level(
        ["1", "1Gi", "2", "2Gi"],
        &[
            ["", "", "", ""],
            ["250m", "64Mi", "", ""],
            ["", "", "500m", "128Mi"],
            ["0", "", "", ""],
        ],
    );
    let all: Vec<_> = pod.containers.iter().map(|c| of_runtime(&pod, c)).collect();
    let (two, gib) = (Some(200_000), Some(Bytes::gibi(2)));
    let expected = [
        (2048, two, gib),
        (256, two, gib),
        (512, Some(50_000), Some(Bytes::mebi(128))),
        (2, two, gib),
    ];
    assert_eq!(all, expected);

    pod.pod_resources = Some(resources(["1", "1Gi", "", ""]));
    assert_eq!(of_runtime(&pod, &pod.containers[0]), (2, None, None));
}

/// `generateLinuxContainerResources`: the request is taken as it is written, zero included.
#[test]
fn a_cpu_request_of_zero_is_not_the_limit() {
    let pod = pod("z", &[["0", "", "2", ""], ["", "", "2", ""]]);
    let shares = |index: usize| of_runtime(&pod, &pod.containers[index]).0;
    assert_eq!((shares(0), shares(1)), (2, 2048));
}

/// The same function: `memory.high` only where request and limit differ, and zero is zero.
#[test]
fn memory_high_of_a_container_without_request_and_limit() {
    let high = |pod: &Pod| {
        let values = values(&snapshot(), pod, &pod.containers[0]);
        values.into_iter().find_map(|(value, _)| match value {
            ContainerValue::MemoryHigh(high) => Some(high),
            _ => None,
        })
    };
    let best_effort = pod("e", &[["", "", "", ""]]);
    assert_eq!(high(&best_effort), Some(Limit::Unlimited));
    let beside = pod("b", &[["1", "", "", ""]]);
    assert_eq!(high(&beside), Some(Limit::Unlimited), "Burstable by CPU");
    let request = pod("r", &[["", "1Gi", "", ""]]);
    assert!(matches!(high(&request), Some(Limit::At(_))));
}

/// `GetContainerSwapBehavior` by `IsCriticalPod` of `pkg/kubelet/types/pod_update.go`.
#[test]
fn static_pods_get_no_swap() {
    let mut pod = pod("s", &[["", "1Gi", "", ""]]);
    let node = &snapshot().node;
    assert_eq!(
        limited_swap(&pod, &pod.containers[0], node),
        Bytes::mebi(512)
    );
    pod.static_pod = true;
    assert_eq!(limited_swap(&pod, &pod.containers[0], node), Bytes::ZERO);
}

/// `GetResourceRequestQuantity` of `pkg/api/v1/resource/helpers.go`, by which `rankMemoryPressure`
/// compares.
#[test]
fn the_request_of_a_ranking() {
    let overhead = Some(Overhead {
        cpu: None,
        memory: Some(Bytes::mebi(120)),
    });
    let request = |pod: &Pod| Candidate::of(pod, None).memory_request;
    let mut absent = pod("a", &[["1", "", "", ""]]);
    absent.overhead = overhead;
    assert_eq!(request(&absent), Bytes::ZERO, "no request, no overhead");
    assert_eq!(
        pod_requests(&absent).memory,
        Bytes::mebi(120),
        "in the sums of a tier it counts"
    );
    let mut written = pod("w", &[["1", "100Mi", "", ""]]);
    written.overhead = overhead;
    assert_eq!(request(&written), Bytes::mebi(220));

    let mut own = pod("o", &[["", "100Mi", "", ""]]);
    own.pod_resources = Some(resources(["1", "", "", ""]));
    assert_eq!(request(&own), Bytes::ZERO, "the pod's own stand alone");
    own.pod_resources = Some(resources(["", "", "", ""]));
    assert_eq!(request(&own), Bytes::mebi(100), "an empty one is none");
}

/// `MachineInfo` of `pkg/kubelet/nodestatus/setters.go`; the limit of `kubepods` does not know huge pages
/// (`getNodeAllocatableInternalAbsolute`).
#[test]
fn allocatable_is_less_the_huge_pages() {
    let node = Node {
        memory_capacity: Bytes::gibi(16),
        hugepages: [
            (Bytes::mebi(2), Bytes::gibi(1)),
            (Bytes::gibi(1), Bytes::gibi(2)),
        ]
        .into(),
        system_reserved: Reserved {
            memory: Bytes::gibi(1),
            ..Reserved::default()
        },
        eviction_hard_memory: Bytes::mebi(100),
        ..Node::default()
    };
    let found = allocatable(&node);
    assert_eq!(found.kubepods_memory, Bytes::gibi(15));
    assert_eq!(found.kubepods_level, Bytes(Bytes::gibi(15).0 - (100 << 20)));
    assert_eq!(found.memory, Bytes(Bytes::gibi(12).0 - (100 << 20)));
    let all_huge = Node {
        hugepages: [(Bytes::mebi(2), Bytes::gibi(32))].into(),
        ..node
    };
    assert_eq!(allocatable(&all_huge).memory, Bytes::ZERO);
}

/// `parseThresholdStatement`, `parseMinimumReclaims` and `addAllocatableThresholds` of
/// `pkg/kubelet/eviction/helpers.go`. podwarden differs in all three; `differences.md` says why.
#[test]
fn thresholds_that_the_kubelet_reads_otherwise() {
    let one = |value: &str| [("memory.available".to_owned(), value.to_owned())].into();
    for hundred in ["100%", "100.0%", "1e2%", "0%", "0.0%"] {
        let config = ThresholdConfig {
            eviction_hard: one(hundred),
            ..ThresholdConfig::default()
        };
        assert_eq!(config.parse(), Ok(vec![]), "{hundred}");
    }
    assert!(Amount::parse_reclaim("100%").is_ok());
    assert!(Amount::parse_reclaim("150%").is_err());

    let soft = ThresholdConfig {
        eviction_soft: one("1Gi"),
        eviction_soft_grace_period: one("0s"),
        enforce_pods: true,
        ..ThresholdConfig::default()
    };
    let found = soft.parse().expect("valid");
    assert_eq!(found.len(), 1, "no threshold of what is allocatable");
    assert_eq!(found[0].grace, Some(Duration::ZERO), "due at once");
}

/// A class never depends on what is not CPU or memory.
#[test]
fn class_of_huge_pages_alone() {
    let mut pod = pod("h", &[["", "", "", ""]]);
    let pages = &mut pod.containers[0].resources.hugepages;
    pages.insert(Bytes::mebi(2), Bytes::mebi(64));
    assert_eq!(podwarden_policy::qos::classify(&pod), QosClass::BestEffort);
}
