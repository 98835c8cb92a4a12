//! QoS classes and the sums of a pod's containers.

#[path = "support/pods.rs"]
mod support;

use podwarden_policy::{
    Bytes, ContainerKind, MilliCpu, Node, QosClass, limits, qos,
    reserve::{self, ReserveError},
    validate::validate,
};
use support::{container, pod, resources};

#[test]
fn classes() {
    let with = |kind, written| {
        let mut pod = pod("p", &[["1", "1Gi", "1", "1Gi"]]);
        pod.containers.push(container(kind, written));
        qos::classify(&pod)
    };
    use ContainerKind::{Init, Sidecar};
    use QosClass::{BestEffort, Burstable, Guaranteed};
    assert_eq!(with(Init, ["1", "1Gi", "1", "1Gi"]), Guaranteed);
    assert_eq!(with(Init, ["", "", "", ""]), Burstable);
    assert_eq!(with(Sidecar, ["1", "1Gi", "2", "1Gi"]), Burstable);

    let zero = pod("p", &[["0", "0", "0", "0"]]);
    assert_eq!(qos::classify(&zero), BestEffort);
    let cpu_only = pod("p", &[["1", "", "1", ""]]);
    assert_eq!(qos::classify(&cpu_only), Burstable);
    let not_defaulted = pod("p", &[["", "", "1", "1Gi"]]);
    assert_eq!(qos::classify(&not_defaulted), Burstable);

    // The sums count, not each container.
    let uneven = pod("p", &[["1", "1Gi", "2", "2Gi"], ["2", "2Gi", "1", "1Gi"]]);
    assert_eq!(qos::classify(&uneven), Guaranteed);

    let mut pod_level = pod("p", &[["1", "1Gi", "2", "2Gi"]]);
    pod_level.pod_resources = Some(resources(["2", "2Gi", "2", "2Gi"]));
    assert_eq!(qos::classify(&pod_level), Guaranteed);
    pod_level.pod_resources = Some(resources(["", "", "2", ""]));
    assert_eq!(qos::classify(&pod_level), Burstable);

    pod_level.pod_resources = Some(resources(["", "", "", ""]));
    assert_eq!(
        qos::classify(&pod_level),
        BestEffort,
        "empty spec.resources"
    );

    let mut huge = pod("p", &[["", "", "", ""]]);
    let page = Bytes::mebi(2);
    huge.containers[0].resources.hugepages.insert(page, page);
    assert_eq!(
        qos::classify(&huge),
        BestEffort,
        "only CPU and memory count"
    );
}

#[test]
fn init_containers_and_sidecars_add_up() {
    let mut pod = pod("p", &[["1", "1Gi", "", ""]]);
    pod.containers.extend([
        container(ContainerKind::Init, ["1500m", "", "", ""]),
        container(ContainerKind::Sidecar, ["300m", "100Mi", "", ""]),
        container(ContainerKind::Init, ["1200m", "3Gi", "", ""]),
    ]);
    let total = limits::pod_requests(&pod);
    // CPU: max(1000 + 300, 1500, 1200 + 300); memory: max(1Gi + 100Mi, 3Gi + 100Mi).
    assert_eq!(total.cpu, MilliCpu(1500));
    assert_eq!(total.memory, Bytes((3 << 30) + (100 << 20)));
}

#[test]
fn pod_level_defaults() {
    let mut asks = pod("p", &[["250m", "", "", ""]]);
    asks.pod_resources = Some(resources(["", "", "1", "1Gi"]));
    asks.apply_defaults();
    // What the containers ask for, or else the limit.
    assert_eq!(
        asks.pod_resources,
        Some(resources(["250m", "1Gi", "1", "1Gi"]))
    );
}

#[test]
fn what_an_api_server_would_refuse() {
    let messages = |pod: &podwarden_policy::Pod| -> Vec<String> {
        validate(pod).iter().map(ToString::to_string).collect()
    };
    let fine = pod("p", &[["1", "1Gi", "1", "1Gi"], ["", "", "", ""]]);
    assert!(messages(&fine).is_empty());
    assert_eq!(messages(&pod("p", &[])), ["containers: there is none"]);

    let below = pod("p", &[["2", "1Gi", "1500m", "512Mi"]]);
    assert_eq!(
        messages(&below),
        [
            "containers[c].resources.limits.cpu: 1500m is below the request of 2000m",
            "containers[c].resources.limits.memory: 512Mi is below the request of 1Gi",
        ]
    );

    let mut pod_level = pod("p", &[["1", "", "", "2Gi"], ["1", "", "", ""]]);
    pod_level.pod_resources = Some(resources(["1500m", "2Gi", "", "1Gi"]));
    assert_eq!(
        messages(&pod_level),
        [
            "containers[c].resources.limits.memory: 2Gi is above the pod's limit of 1Gi",
            "resources.limits.memory: 1Gi is below the request of 2Gi",
            "resources.requests.cpu: 1500m is below the containers' 2000m",
        ]
    );
}

#[test]
fn reserves_that_leave_nothing() {
    let mut node = Node {
        cpu_capacity: MilliCpu(2000),
        memory_capacity: Bytes::gibi(1),
        ..Node::default()
    };
    assert_eq!(reserve::validate(&node), Ok(()));
    node.eviction_hard_memory = Bytes::gibi(1);
    let taken = ReserveError::Memory {
        reserved: Bytes::gibi(1),
        capacity: Bytes::gibi(1),
    };
    assert_eq!(reserve::validate(&node), Err(taken));
    node.kube_reserved.cpu = MilliCpu(2001);
    assert!(matches!(
        reserve::validate(&node),
        Err(ReserveError::Cpu { .. })
    ));
}
