//! The snapshot of the last plan, as `GET /v1/plan` returns it and `podwarden plan` replays it.

use podwarden_cgroup::Driver;
use podwarden_policy::{plan::Snapshot, settings};
use serde::{Deserialize, Serialize};

/// `kind` of a snapshot; its `apiVersion` is [`crate::config::API_VERSION`].
pub const KIND: &str = "Snapshot";

/// Which files the cgroups have.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "camelCase")]
pub enum Version {
    /// `cpu.shares`, `memory.limit_in_bytes`.
    V1,
    /// `cpu.weight`, `memory.max`.
    #[default]
    V2,
}

impl From<Version> for settings::Version {
    fn from(version: Version) -> Self {
        match version {
            Version::V1 => Self::V1,
            Version::V2 => Self::V2,
        }
    }
}

/// A recorded snapshot: its plan is the agent's plan, to the last value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Recorded {
    /// [`crate::config::API_VERSION`].
    pub api_version: &'static str,
    /// [`KIND`].
    pub kind: &'static str,
    /// When it was read, RFC 3339.
    pub time: String,
    /// Of the hierarchy with the CPU controller.
    pub cgroup_version: Version,
    /// Who names the cgroups: `cgroupfs` or `systemd`.
    pub cgroup_driver: String,
    /// Everything the plan depends on, as the policy holds it: plain bytes and thousandths of a CPU.
    pub recorded: Snapshot,
}

impl Recorded {
    /// Of a snapshot that was read at `time`.
    pub fn new(time: String, version: Version, driver: Driver, snapshot: Snapshot) -> Self {
        Self {
            api_version: crate::config::API_VERSION,
            kind: KIND,
            time,
            cgroup_version: version,
            cgroup_driver: driver.to_string(),
            recorded: snapshot,
        }
    }
}
