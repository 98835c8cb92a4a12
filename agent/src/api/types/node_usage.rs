//! What the whole node uses: part of `GET /v1/node`.

use serde::{Deserialize, Serialize};

/// What the whole node uses, as the kubelet counts it: the topmost cgroup.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeUsageStats {
    /// When it was read.
    pub time: String,
    /// CPU use over the last sampling window, billionths of a core; absent in the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage_nano_cores: Option<u64>,
    /// CPU time since the node's start, nanoseconds.
    pub usage_core_nano_seconds: u64,
    pub memory: NodeMemory,
}

/// Memory of the whole node: anonymous memory and page cache, nothing of the kernel's own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeMemory {
    /// What there is.
    pub capacity_bytes: u64,
    pub usage_bytes: u64,
    /// Usage minus inactive page cache.
    pub working_set_bytes: u64,
    /// Anonymous memory.
    pub rss_bytes: u64,
}
