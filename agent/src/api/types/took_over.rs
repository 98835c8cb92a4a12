//! One agent after another.

use serde::{Deserialize, Serialize};

/// One agent took over from another; times are `CLOCK_MONOTONIC`, nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TookOver {
    /// The process id of the agent before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predecessor_pid: Option<u32>,
    /// When it evicted no more; absent where it was killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_nanos: Option<u64>,
    /// When the node was this agent's.
    pub locked_nanos: u64,
    /// When its levels were armed.
    pub armed_nanos: u64,
}

impl TookOver {
    /// For how long no agent evicted, nanoseconds; after a kill from the moment that the kernel had taken the agent
    /// before apart.
    pub fn gap_nanos(&self) -> u64 {
        let from = self.ended_nanos.unwrap_or(self.locked_nanos);
        self.armed_nanos.saturating_sub(from)
    }
}
