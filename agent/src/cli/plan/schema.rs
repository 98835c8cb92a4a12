//! A snapshot as it is written: `kind: Snapshot`. `podwarden plan --help` documents it.

use std::collections::BTreeMap;

use podwarden_policy::Bytes;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    config::{Cpu, Machine, Memory, RawConfig, Text},
    hierarchy::recorded::Version,
};

/// The document.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawSnapshot {
    pub(super) api_version: Text,
    /// Already known when this is read.
    #[serde(rename = "kind")]
    _kind: Value,
    /// For people.
    #[serde(rename = "time")]
    _time: Option<Value>,
    pub(super) cgroup_version: Option<Version>,
    pub(super) cgroup_driver: Option<DriverName>,
    pub(super) node: Option<RawNode>,
    pub(super) config: Option<RawConfig>,
    #[serde(default)]
    pub(super) pods: Vec<Value>,
    #[serde(default)]
    pub(super) usage: BTreeMap<String, RawUsage>,
    /// What is left of the node's memory.
    pub(super) memory_available: Option<Memory>,
    pub(super) cgroups: Option<Value>,
    pub(super) recorded: Option<Value>,
    /// What the node's reclaimed resources are from.
    pub(super) reclaimed: Option<Value>,
    /// What the CPU strategies go by.
    pub(super) cpu_strategies: Option<Value>,
}

impl RawSnapshot {
    /// The keys beside `recorded`, which says all that they say.
    pub(super) fn is_written_by_hand(&self) -> bool {
        self.node.is_some()
            || self.config.is_some()
            || !self.pods.is_empty()
            || !self.usage.is_empty()
            || self.memory_available.is_some()
            || self.cgroups.is_some()
    }
}

/// Who names the cgroups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "camelCase")]
pub(crate) enum DriverName {
    /// `/kubepods/burstable/pod<uid>`.
    #[default]
    Cgroupfs,
    /// `/kubepods.slice/kubepods-burstable.slice/...`.
    Systemd,
}

/// The machine.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawNode {
    cpu: Option<Cpu>,
    memory: Option<Memory>,
    swap: Option<Memory>,
    pids: Option<u64>,
    #[serde(default)]
    hugepages: BTreeMap<String, Memory>,
}

impl RawNode {
    /// The machine, `here` where nothing is written, and its huge pages.
    pub(super) fn read(
        self,
        name: &str,
        here: &Machine,
    ) -> anyhow::Result<(Machine, BTreeMap<Bytes, Bytes>)> {
        let machine = Machine {
            cpu: self.cpu.map_or(here.cpu, |cpu| cpu.0),
            memory: self.memory.map_or(here.memory, |memory| memory.0),
            swap: self.swap.unwrap_or_default().0,
            pids: self.pids,
            // Of this machine; the document does not set it.
            ..Machine::default()
        };
        let hugepages = self.hugepages.into_iter().map(|(size, amount)| {
            let bytes = size.parse::<Memory>().map_err(|e| {
                anyhow::anyhow!("{name}: node.hugepages.{size} is no page size such as 2Mi: {e}")
            })?;
            Ok((bytes.0, amount.0))
        });
        Ok((machine, hugepages.collect::<anyhow::Result<_>>()?))
    }
}

/// What a pod uses.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawUsage {
    /// Its working set.
    pub(super) memory: Text,
}
