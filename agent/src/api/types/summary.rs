//! `GET /stats/summary`: the kubelet's Summary API (`k8s.io/kubelet/pkg/apis/stats/v1alpha1`), as far as there are
//! figures. Names and units are the kubelet's; what the kubelet leaves out without a figure is left out.

use arcstr::ArcStr;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::PodRef;

/// The answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub node: SummaryNode,
    pub pods: Vec<SummaryPod>,
}

/// The whole node.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SummaryNode {
    pub node_name: String,
    /// `pods`: the cgroup of all pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub system_containers: Vec<SummaryContainer>,
    /// `null`: not known.
    #[serialize_always]
    pub start_time: Option<String>,
    pub cpu: Option<SummaryCpu>,
    pub memory: Option<SummaryMemory>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SummaryPod {
    pub pod_ref: PodRef,
    /// `null`: not known.
    #[serialize_always]
    pub start_time: Option<String>,
    /// Its containers without the sandbox.
    pub containers: Vec<SummaryContainer>,
    pub cpu: Option<SummaryCpu>,
    pub memory: Option<SummaryMemory>,
    pub io: Option<SummaryIo>,
    pub network: Option<SummaryNetwork>,
    /// The kubelet's name has an underscore.
    #[serde(rename = "process_stats")]
    pub process_stats: Option<SummaryProcesses>,
}

/// As containerd and CRI-O count them for a kubelet: tasks, `pids.current` of the pod's cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SummaryProcesses {
    pub process_count: u64,
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SummaryContainer {
    pub name: ArcStr,
    /// `null`: not known.
    #[serialize_always]
    pub start_time: Option<String>,
    pub cpu: Option<SummaryCpu>,
    pub memory: Option<SummaryMemory>,
    pub io: Option<SummaryIo>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SummaryCpu {
    pub time: ArcStr,
    /// Billionths of a core.
    pub usage_nano_cores: Option<u64>,
    pub usage_core_nano_seconds: u64,
    pub psi: Option<SummaryPsi>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SummaryMemory {
    pub time: ArcStr,
    /// Limit minus working set; absent without a limit. For the node its capacity is the limit.
    pub available_bytes: Option<u64>,
    pub usage_bytes: u64,
    pub working_set_bytes: u64,
    pub rss_bytes: u64,
    pub page_faults: Option<u64>,
    pub major_page_faults: Option<u64>,
    pub psi: Option<SummaryPsi>,
}

/// Of pods and containers; the kubelet has nothing but the pressure in it, either.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SummaryIo {
    pub time: ArcStr,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psi: Option<SummaryPsi>,
}

/// Pressure; absent where the kernel does not count it, where the kubelet has zeros.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SummaryPsi {
    /// Absent for the CPU before Linux 5.13.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full: Option<SummaryPsiData>,
    pub some: SummaryPsiData,
}

/// Without the averages of the last 10, 60 and 300 s.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SummaryPsiData {
    /// Microseconds, the unit of the kernel's file, which the kubelet hands on as it is, though its types call it
    /// nanoseconds.
    pub total: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SummaryNetwork {
    pub time: ArcStr,
    /// `eth0`.
    #[serde(flatten)]
    pub default: Option<SummaryInterface>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<SummaryInterface>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SummaryInterface {
    pub name: String,
    pub rx_bytes: u64,
    pub rx_errors: u64,
    pub tx_bytes: u64,
    pub tx_errors: u64,
}
