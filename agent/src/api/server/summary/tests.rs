use podwarden_policy::PodUid;
use serde_json::json;

use super::*;
use crate::api::types::{NodeMemory, PodRef, TierStats};

fn used(cpu: u64, working_set: u64, limit: Option<u64>) -> (CpuStats, Option<MemoryStats>) {
    let cpu = CpuStats {
        time: "t1".into(),
        usage_core_nano_seconds: cpu,
        usage_nano_cores: Some(cpu / 10),
        ..CpuStats::default()
    };
    let memory = MemoryStats {
        time: "t2".into(),
        usage_bytes: working_set + 1,
        working_set_bytes: working_set,
        rss_bytes: working_set - 1,
        limit_bytes: limit,
        page_faults: Some(8),
        major_page_faults: Some(9),
        ..MemoryStats::default()
    };
    (cpu, Some(memory))
}

fn pressure(some: u64) -> Option<PressureStats> {
    let waited = |some| WaitedStats {
        some_nano_seconds: some,
        full_nano_seconds: Some(some / 2),
    };
    Some(PressureStats {
        cpu: waited(some),
        memory: waited(some * 10),
        io: waited(some * 100),
    })
}

fn figures() -> Figures {
    let one = |name: &str, sandbox| {
        let (cpu, memory) = used(20, 50, None);
        ContainerStats {
            name: name.into(),
            sandbox,
            cpu,
            memory,
            pressure: pressure(4_999),
            ..ContainerStats::default()
        }
    };
    let eth0 = InterfaceStats {
        name: "eth0".to_owned(),
        rx_bytes: 1,
        rx_errors: 2,
        tx_bytes: 3,
        tx_errors: 4,
        ..InterfaceStats::default()
    };
    let (cpu, memory) = used(100, 70, Some(90));
    let pod = PodStats {
        pod_ref: PodRef {
            name: "web".into(),
            namespace: "shop".into(),
            uid: PodUid::from("a1"),
        },
        cpu,
        memory,
        network: Some(NetworkStats {
            time: "t3".into(),
            default: Some(eth0.clone()),
            interfaces: vec![eth0],
            ..NetworkStats::default()
        }),
        pressure: pressure(8_000),
        tasks: Some(7),
        containers: vec![one("main", false), one("POD", true)],
        ..PodStats::default()
    };
    let (cpu, memory) = used(1000, 700, None);
    let tier = |name: &str| TierStats {
        name: name.to_owned(),
        cpu: cpu.clone(),
        memory: memory.clone(),
        ..TierStats::default()
    };
    let node = NodeStats {
        node_name: "n1".to_owned(),
        usage: Some(NodeUsageStats {
            time: "t4".to_owned(),
            usage_nano_cores: None,
            usage_core_nano_seconds: 5000,
            memory: NodeMemory {
                capacity_bytes: 9000,
                usage_bytes: 3000,
                working_set_bytes: 2000,
                rss_bytes: 1000,
            },
        }),
        tiers: vec![tier("kubepods"), tier("burstable")],
        ..NodeStats::default()
    };
    Figures::new(node, vec![pod])
}

/// Names as in `k8s.io/kubelet/pkg/apis/stats/v1alpha1/types.go`.
#[test]
fn the_answer_has_the_kubelets_names() {
    let memory = |time: &str, working_set: u64| {
        json!({
            "time": time, "usageBytes": working_set + 1, "workingSetBytes": working_set,
            "rssBytes": working_set - 1, "pageFaults": 8, "majorPageFaults": 9,
        })
    };
    let cpu = |used: u64| json!({"time": "t1", "usageNanoCores": used / 10, "usageCoreNanoSeconds": used});
    let eth0 = json!({"name": "eth0", "rxBytes": 1, "rxErrors": 2, "txBytes": 3, "txErrors": 4});
    let with_psi = |mut of: serde_json::Value, full: u64, some: u64| {
        of["psi"] = json!({"full": {"total": full}, "some": {"total": some}});
        of
    };
    let io = json!({"time": "t1"});
    let mut limited = memory("t2", 70);
    limited["availableBytes"] = json!(20);
    let expected = json!({
        "node": {
            "nodeName": "n1",
            "systemContainers": [
                {"name": "pods", "startTime": null, "cpu": cpu(1000), "memory": memory("t2", 700)},
            ],
            "startTime": null,
            "cpu": {"time": "t4", "usageCoreNanoSeconds": 5000},
            "memory": {
                "time": "t4", "availableBytes": 7000, "usageBytes": 3000, "workingSetBytes": 2000, "rssBytes": 1000,
            },
        },
        "pods": [{
            "podRef": {"name": "web", "namespace": "shop", "uid": "a1"},
            "startTime": null,
            "containers": [
                {
                    "name": "main", "startTime": null,
                    "cpu": with_psi(cpu(20), 2, 4),
                    "memory": with_psi(memory("t2", 50), 24, 49),
                    "io": with_psi(io.clone(), 249, 499),
                },
            ],
            "cpu": with_psi(cpu(100), 4, 8),
            "memory": with_psi(limited, 40, 80),
            "io": with_psi(io, 400, 800),
            "network": {
                "time": "t3", "name": "eth0", "rxBytes": 1, "rxErrors": 2, "txBytes": 3, "txErrors": 4,
                "interfaces": [eth0],
            },
            "process_stats": {"process_count": 7},
        }],
    });
    assert_eq!(serde_json::to_value(of(&figures())).unwrap(), expected);
}

#[test]
fn a_pod_in_the_nodes_network_has_none_of_its_own() {
    let of_node = NetworkStats {
        host_network: true,
        ..NetworkStats::default()
    };
    assert_eq!(network(&of_node), None);
}

#[test]
fn memory_above_its_limit_leaves_nothing() {
    let (_, above) = used(1, 70, Some(60));
    assert_eq!(memory(&above.unwrap(), None).available_bytes, Some(0));
}

#[test]
fn pressure_that_is_not_known_is_absent() {
    let pod = PodStats {
        memory: used(1, 70, None).1,
        ..PodStats::default()
    };
    let text = serde_json::to_string(&super::pod(&pod)).unwrap();
    assert!(!text.contains("psi") && !text.contains(r#""io""#), "{text}");
    let before_5_13 = WaitedStats {
        some_nano_seconds: 7_000,
        full_nano_seconds: None,
    };
    let expected = json!({"some": {"total": 7}});
    assert_eq!(serde_json::to_value(psi(before_5_13)).unwrap(), expected);
}
