//! What a container's runtime is asked for.

#[path = "support/pods.rs"]
mod support;

use podwarden_policy::{
    Bytes, Node, Pod,
    container::{self, ContainerOptions},
    name::CgroupName,
    plan::{Controllers, Snapshot},
};
use support::pod;

fn snapshot() -> Snapshot {
    let node = Node {
        memory_capacity: Bytes::gibi(8),
        swap_capacity: Bytes::gibi(4),
        eviction_hard_memory: Bytes::mebi(100),
        ..Node::default()
    };
    let mut snapshot = Snapshot::new(node, CgroupName::new(["kubepods"]));
    snapshot.controllers = Controllers {
        memory_protection: true,
        ..Controllers::default()
    };
    snapshot.limits.memory_reservation = true;
    snapshot.containers = ContainerOptions {
        throttling_factor: Some(900_000),
        limited_swap: true,
    };
    snapshot
}

/// `value: reason` of the pod's first container.
fn values(snapshot: &Snapshot, pod: &Pod) -> Vec<String> {
    container::values(snapshot, pod, &pod.containers[0])
        .into_iter()
        .map(|(value, reason)| format!("{value}: {reason}"))
        .collect()
}

#[test]
fn of_a_burstable_pod() {
    let pod = pod("b", &[["250m", "256Mi", "500m", "1Gi"]]);
    assert_eq!(
        values(&snapshot(), &pod),
        [
            "cpu shares 256: cpu requests 250m * 1024 / 1000, within 2..=262144 = 256",
            "cpu quota 50000 of 100000 us: cpu limits 500m * 100000 us / 1000, at least 1000 us = 50000",
            "memory limit 1Gi: memory limits = 1Gi",
            "memory min 0: nothing limits it",
            "memory low 256Mi: memory requests = 256Mi, kept from reclaim",
            // 268435456 + 0.9 * 805306368 = 993211187.2
            "memory high 969932Ki: request 256Mi + 0.9 * (limit 1Gi - request), \
             in whole pages of 4Ki = 969932Ki",
            "swap limit 128Mi: memory request 256Mi / memory 8Gi * swap 4Gi = 128Mi",
            "oom_score_adj 969: 1000 - 1000 * (memory request 256Mi) / capacity 8Gi, within 3..=999 \
             = 969",
        ]
    );
}

#[test]
fn of_a_guaranteed_pod() {
    let pod = pod("g", &[["1", "1Gi", "1", "1Gi"]]);
    let found = values(&snapshot(), &pod);
    assert_eq!(
        found[3..],
        [
            "memory min 1Gi: memory requests = 1Gi, kept from reclaim",
            "memory low 0: nothing limits it",
            "memory high max: nothing between its request and its limit",
            "swap limit 0: LimitedSwap gives swap to Burstable pods that are not critical, in \
             proportion to a memory request that is not the limit",
            "oom_score_adj -997: the same for every Guaranteed pod",
        ]
    );
}

#[test]
fn of_a_best_effort_pod() {
    let pod = pod("e", &[["", "", "", ""]]);
    let found = values(&snapshot(), &pod);
    assert_eq!(
        found[..3],
        [
            "cpu shares 2: cpu requests 0m * 1024 / 1000, within 2..=262144 = 2",
            "cpu quota max of 100000 us: nothing limits it",
            "memory limit max: nothing limits it",
        ]
    );
    // Request and limit are equal, both zero: kubelet 1.36.2 writes no memory.high.
    assert_eq!(
        found[5],
        "memory high max: nothing between its request and its limit"
    );
}

#[test]
fn without_a_limit_throttling_begins_below_what_is_allocatable() {
    let pod = pod("b", &[["", "1Gi", "", ""]]);
    let found = values(&snapshot(), &pod);
    // 0.9 of 8Gi, without the threshold of eviction: what kubepods is limited to.
    assert!(
        found[5].starts_with("memory high 7654604Ki: request 1Gi + 0.9 * (allocatable 8Gi"),
        "{}",
        found[5]
    );
}

#[test]
fn a_score_says_what_it_was_computed_from() {
    let mut own = pod("p", &[["1", "1Gi", "", ""]]);
    own.pod_resources = Some(support::resources(["2", "3Gi", "", ""]));
    let score = |snapshot: &Snapshot, pod: &Pod| values(snapshot, pod).pop();
    assert_eq!(
        score(&snapshot(), &own).as_deref(),
        Some(
            "oom_score_adj 625: 1000 - 1000 * (memory request 1Gi + 2Gi, its part of the pod's own) \
             / capacity 8Gi, within 3..=999 = 625"
        )
    );
    let kind = podwarden_policy::ContainerKind::Sidecar;
    let mut sidecar = pod("s", &[["1", "1Gi", "", ""]]);
    sidecar
        .containers
        .insert(0, support::container(kind, ["", "1Mi", "", ""]));
    assert_eq!(
        score(&snapshot(), &sidecar).as_deref(),
        Some(
            "oom_score_adj 875: 1000 - 1000 * (memory request 1Gi of the smallest container it \
             serves) / capacity 8Gi, within 3..=999 = 875"
        )
    );
}

#[test]
fn a_limit_alone_makes_shares_and_a_request_of_zero_makes_none() {
    let limit = pod("l", &[["", "", "2", ""]]);
    assert!(values(&snapshot(), &limit)[0].starts_with("cpu shares 2048"));
    let zero = pod("z", &[["0", "", "2", ""]]);
    assert!(values(&snapshot(), &zero)[0].starts_with("cpu shares 2:"));
}

#[test]
fn what_is_not_configured_or_not_there_is_left_out() {
    let pod = pod("b", &[["250m", "256Mi", "500m", "1Gi"]]);
    let mut plain = snapshot();
    plain.containers = ContainerOptions::default();
    plain.limits.memory_reservation = false;
    let found = values(&plain, &pod);
    assert!(
        !found.iter().any(|v| v.starts_with("memory high")),
        "{found:?}"
    );
    assert!(found.contains(&"memory low 0: nothing limits it".to_owned()));
    assert!(found.contains(&"swap limit 0: swapBehavior is NoSwap".to_owned()));
    plain.controllers.memory_protection = false;
    assert_eq!(values(&plain, &pod).len(), 4, "cgroup v1");
    plain.limits.enforce_cpu_limits = false;
    assert!(values(&plain, &pod)[1].ends_with("max of 100000 us: cpuCFSQuota is off"));
}
