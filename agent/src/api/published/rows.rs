//! The pods of a sampling pass as the page draws them: what a row shows, and counters that it makes rates of.

use podwarden_policy::PodUid;
use serde::Serialize;

use super::Figures;
use crate::api::types::PodStats;

#[derive(Debug, Serialize)]
pub(super) struct Pass<'a> {
    /// When the figures were read, RFC 3339.
    time: &'a str,
    pods: Vec<Row<'a>>,
}

/// One pod.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    uid: &'a PodUid,
    namespace: &'a str,
    name: &'a str,
    qos_class: &'a str,
    phase: &'a str,
    /// CPU use over the last sampling window, billionths of a core.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_nano_cores: Option<u64>,
    /// Memory charged, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage_bytes: Option<u64>,
    /// Run-queue wait since the pod was first seen, nanoseconds.
    wait_nanos: u64,
    /// Time in reclaim since the pod was first seen, nanoseconds.
    stall_nanos: u64,
}

impl<'a> Row<'a> {
    fn of(pod: &'a PodStats) -> Self {
        let stall = &pod.stall;
        Self {
            uid: &pod.pod_ref.uid,
            namespace: &pod.pod_ref.namespace,
            name: &pod.pod_ref.name,
            qos_class: &pod.qos_class,
            phase: &pod.phase,
            cpu_nano_cores: pod.cpu.usage_nano_cores,
            usage_bytes: pod.memory.as_ref().map(|memory| memory.usage_bytes),
            wait_nanos: pod.cpu.run_queue_wait_nano_seconds,
            stall_nanos: stall
                .direct_reclaim_nano_seconds
                .saturating_add(stall.memcg_reclaim_nano_seconds),
        }
    }
}

pub(super) fn write(figures: &Figures) -> serde_json::Result<String> {
    serde_json::to_string(&Pass {
        time: &figures.node.time,
        pods: figures.pods.iter().map(Row::of).collect(),
    })
}
