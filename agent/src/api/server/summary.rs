//! `/stats/summary`: the latest figures in the kubelet's Summary API.

use arcstr::literal;
use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
    response::{IntoResponse, Response},
};
use serde::Deserialize;

use super::{
    Shared,
    api::{ErrorResponse, query},
};
use crate::api::{
    published::Figures,
    types::{
        ContainerStats, CpuStats, InterfaceStats, MemoryStats, NetworkStats, NodeStats,
        NodeUsageStats, PodStats, PressureStats, WaitedStats,
        summary::{
            Summary, SummaryContainer, SummaryCpu, SummaryInterface, SummaryIo, SummaryMemory,
            SummaryNetwork, SummaryNode, SummaryPod, SummaryProcesses, SummaryPsi, SummaryPsiData,
        },
    },
};

/// The tier that the kubelet calls `pods`.
const ALL_PODS: &str = "kubepods";

/// As the kubelet's own; it passes over what it does not know.
#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    /// Nothing but CPU and memory.
    #[serde(default)]
    only_cpu_and_memory: bool,
}

pub(super) async fn summary(
    State(shared): State<Shared>,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Response, ErrorResponse> {
    let asked = query(asked, "is only_cpu_and_memory=true|false")?;
    let mut summary = of(&shared.published.figures());
    if asked.only_cpu_and_memory {
        for pod in &mut summary.pods {
            (pod.network, pod.io, pod.process_stats) = (None, None, None);
            for container in &mut pod.containers {
                container.io = None;
            }
        }
    }
    Ok(Json(summary).into_response())
}

fn of(figures: &Figures) -> Summary {
    Summary {
        node: node(&figures.node),
        pods: figures.pods.iter().map(pod).collect(),
    }
}

fn node(node: &NodeStats) -> SummaryNode {
    let tiers = node.tiers.iter().filter(|tier| tier.name == ALL_PODS);
    let pods = tiers.map(|tier| SummaryContainer {
        name: literal!("pods"),
        start_time: None,
        cpu: Some(cpu(&tier.cpu, None)),
        memory: tier.memory.as_ref().map(|of| memory(of, None)),
        io: None,
    });
    SummaryNode {
        node_name: node.node_name.clone(),
        system_containers: pods.collect(),
        start_time: None,
        cpu: node.usage.as_ref().map(node_cpu),
        memory: node.usage.as_ref().map(node_memory),
    }
}

fn node_cpu(usage: &NodeUsageStats) -> SummaryCpu {
    SummaryCpu {
        time: usage.time.as_str().into(),
        usage_nano_cores: usage.usage_nano_cores,
        usage_core_nano_seconds: usage.usage_core_nano_seconds,
        psi: None,
    }
}

fn node_memory(usage: &NodeUsageStats) -> SummaryMemory {
    let memory = usage.memory;
    SummaryMemory {
        time: usage.time.as_str().into(),
        available_bytes: Some(
            memory
                .capacity_bytes
                .saturating_sub(memory.working_set_bytes),
        ),
        usage_bytes: memory.usage_bytes,
        working_set_bytes: memory.working_set_bytes,
        rss_bytes: memory.rss_bytes,
        page_faults: None,
        major_page_faults: None,
        psi: None,
    }
}

fn pod(pod: &PodStats) -> SummaryPod {
    // The kubelet lists no sandbox; the pod's own figures have it.
    let containers = pod.containers.iter().filter(|one| !one.sandbox);
    SummaryPod {
        pod_ref: pod.pod_ref.clone(),
        start_time: None,
        containers: containers.map(container).collect(),
        cpu: Some(cpu(&pod.cpu, pod.pressure)),
        memory: pod.memory.as_ref().map(|of| memory(of, pod.pressure)),
        io: io(&pod.cpu, pod.pressure),
        network: pod.network.as_ref().and_then(network),
        process_stats: pod
            .tasks
            .map(|process_count| SummaryProcesses { process_count }),
    }
}

fn container(container: &ContainerStats) -> SummaryContainer {
    SummaryContainer {
        name: container.name.clone(),
        start_time: None,
        cpu: Some(cpu(&container.cpu, container.pressure)),
        memory: (container.memory.as_ref()).map(|of| memory(of, container.pressure)),
        io: io(&container.cpu, container.pressure),
    }
}

fn cpu(cpu: &CpuStats, pressure: Option<PressureStats>) -> SummaryCpu {
    SummaryCpu {
        time: cpu.time.clone(),
        usage_nano_cores: cpu.usage_nano_cores,
        usage_core_nano_seconds: cpu.usage_core_nano_seconds,
        psi: pressure.map(|pressure| psi(pressure.cpu)),
    }
}

/// Read with the CPU's figures. The kubelet has nothing but pressure in it, either.
fn io(cpu: &CpuStats, pressure: Option<PressureStats>) -> Option<SummaryIo> {
    pressure.map(|pressure| SummaryIo {
        time: cpu.time.clone(),
        psi: Some(psi(pressure.io)),
    })
}

fn psi(waited: WaitedStats) -> SummaryPsi {
    let data = |nanos: u64| SummaryPsiData {
        total: nanos / 1000,
    };
    SummaryPsi {
        full: waited.full_nano_seconds.map(data),
        some: data(waited.some_nano_seconds),
    }
}

fn memory(memory: &MemoryStats, pressure: Option<PressureStats>) -> SummaryMemory {
    let limit = memory.limit_bytes;
    SummaryMemory {
        time: memory.time.clone(),
        available_bytes: limit.map(|limit| limit.saturating_sub(memory.working_set_bytes)),
        usage_bytes: memory.usage_bytes,
        working_set_bytes: memory.working_set_bytes,
        rss_bytes: memory.rss_bytes,
        page_faults: memory.page_faults,
        major_page_faults: memory.major_page_faults,
        psi: pressure.map(|pressure| psi(pressure.memory)),
    }
}

/// `None` for a pod in the node's network, and before its interfaces have been read.
fn network(network: &NetworkStats) -> Option<SummaryNetwork> {
    if network.host_network {
        return None;
    }
    Some(SummaryNetwork {
        time: network.time.clone(),
        default: network.default.as_ref().map(interface),
        interfaces: network.interfaces.iter().map(interface).collect(),
    })
}

fn interface(of: &InterfaceStats) -> SummaryInterface {
    SummaryInterface {
        name: of.name.clone(),
        rx_bytes: of.rx_bytes,
        rx_errors: of.rx_errors,
        tx_bytes: of.tx_bytes,
        tx_errors: of.tx_errors,
    }
}

#[cfg(test)]
mod tests;
