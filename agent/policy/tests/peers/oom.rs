//! kubelet `pkg/kubelet/qos/policy_test.go`, `TestGetContainerOOMScoreAdjust`.

use podwarden_policy::{
    Bytes, ContainerKind, Pod,
    container::{oom_score_adj, unnamed_oom_score_adj},
};

use crate::support::{container, pod, resources};

const GB: u64 = 1_000_000_000;

fn scores(pod: &Pod, capacity: u64) -> Vec<Option<i32>> {
    let score = |c| oom_score_adj(pod, c, Bytes(capacity));
    pod.containers.iter().map(score).collect()
}

#[test]
fn by_class() {
    let cpu_limit_only = pod("a", &[["", "", "10", ""]]);
    assert_eq!(scores(&cpu_limit_only, 4 * GB), [Some(999)]);
    let zero_memory_limit = pod("b", &[["", "", "", "0"]]);
    assert_eq!(scores(&zero_memory_limit, 4 * GB), [Some(1000)]);
    let half = pod("c", &[["", "4G", "", ""]]);
    assert_eq!(scores(&half, 8 * GB), [Some(500)]);
    let guaranteed = pod("d", &[["1", "1G", "1", "1G"]]);
    assert_eq!(scores(&guaranteed, 8 * GB), [Some(-997)]);
    let everything = pod("e", &[["1", "8G", "", ""]]);
    assert_eq!(scores(&everything, 8 * GB), [Some(3)]);
}

#[test]
fn a_container_without_a_name_is_no_safer_than_any_that_it_may_be() {
    let two = pod("a", &[["", "4G", "", ""], ["", "1G", "", ""]]);
    assert_eq!(unnamed_oom_score_adj(&two, Bytes(8 * GB)), Some(875));
    let guaranteed = pod("b", &[["1", "1G", "1", "1G"]]);
    assert_eq!(unnamed_oom_score_adj(&guaranteed, Bytes(0)), Some(-997));
    assert_eq!(unnamed_oom_score_adj(&two, Bytes(0)), None);
}

#[test]
fn critical_pods() {
    let mut critical = pod("a", &[["", "", "", ""]]);
    critical.priority = 2_000_000_000;
    critical.critical = true;
    assert_eq!(scores(&critical, 4 * GB), [Some(1000)], "cluster-critical");
    critical.node_critical = true;
    assert_eq!(scores(&critical, 4 * GB), [Some(-997)], "node-critical");
}

#[test]
fn sidecars() {
    let mut smaller = pod("a", &[["", "1G", "", ""]]);
    let sidecar = container(ContainerKind::Sidecar, ["", "400M", "", ""]);
    smaller.containers.push(sidecar);
    assert_eq!(scores(&smaller, 8 * GB), [Some(875), Some(875)]);

    let mut larger = pod("b", &[["", "1G", "", ""]]);
    let sidecar = container(ContainerKind::Sidecar, ["", "2G", "", ""]);
    larger.containers.push(sidecar);
    assert_eq!(scores(&larger, 8 * GB), [Some(875), Some(750)]);
}

#[test]
fn pod_level_requests() {
    let mut even = pod("a", &[["", "1G", "", ""], ["", "1G", "", ""]]);
    even.pod_resources = Some(resources(["", "2G", "", ""]));
    assert_eq!(scores(&even, 4 * GB), [Some(750), Some(750)]);

    let mut rest = pod("b", &[["", "1G", "", ""], ["", "500M", "", ""]]);
    rest.containers
        .push(container(ContainerKind::Sidecar, ["", "200M", "", ""]));
    rest.pod_resources = Some(resources(["", "2G", "", ""]));
    assert_eq!(scores(&rest, 4 * GB), [Some(725), Some(850), Some(850)]);
}

#[test]
fn capacity_unknown() {
    assert_eq!(scores(&pod("a", &[["", "1G", "", ""]]), 0), [None]);
    assert_eq!(scores(&pod("b", &[["", "", "", ""]]), 0), [Some(1000)]);
}
