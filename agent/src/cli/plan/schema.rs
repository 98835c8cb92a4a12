//! A snapshot as it is written: `kind: Snapshot`. `podwarden plan --help` documents it.

use std::collections::BTreeMap;

use podwarden_policy::{
    Bytes, MilliCpu,
    quantity::{self, QuantityError},
};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    config::{Machine, RawConfig, Text, origin},
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
    pub(super) memory_available: Option<Text>,
    pub(super) cgroups: Option<Value>,
    pub(super) recorded: Option<Value>,
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
    cpu: Option<Text>,
    memory: Option<Text>,
    swap: Option<Text>,
    #[serde(default)]
    hugepages: BTreeMap<String, Text>,
}

impl RawNode {
    /// The machine, `here` where nothing is written, and its huge pages.
    pub(super) fn read(
        &self,
        name: &str,
        here: &Machine,
    ) -> anyhow::Result<(Machine, BTreeMap<Bytes, Bytes>)> {
        let memory = |field: &str, text: &Option<Text>| {
            let text = text.as_ref();
            text.map(|text| read(name, field, text, quantity::parse_memory))
                .transpose()
        };
        let cpu = self.cpu.as_ref();
        let cpu = cpu.map(|text| read(name, "node.cpu", text, quantity::parse_cpu));
        let machine = Machine {
            cpu: cpu.transpose()?.unwrap_or(here.cpu),
            memory: memory("node.memory", &self.memory)?.unwrap_or(here.memory),
            swap: memory("node.swap", &self.swap)?.unwrap_or_default(),
            // Of this machine; the document does not set it.
            ..Machine::default()
        };
        let hugepages = self.hugepages.iter().map(|(size, amount)| {
            let field = format!("node.hugepages.{size}");
            let amount = read(name, &field, amount, quantity::parse_memory)?;
            let size = quantity::parse_memory(size)
                .map_err(|e| anyhow::anyhow!("{name}: {field} is no page size such as 2Mi: {e}"))?;
            Ok((size, amount))
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

/// Reads a quantity, with file, line, field and value in the error.
pub(super) fn read<T>(
    name: &str,
    field: &str,
    text: &Text,
    parse: impl Fn(&str) -> Result<T, QuantityError>,
) -> anyhow::Result<T> {
    parse(&text.value).map_err(|problem| {
        let origin = origin(name, Some(text));
        anyhow::anyhow!("{origin}: {field} is `{}`: {problem}", text.value)
    })
}

/// For `--cpu`.
pub(crate) fn cpu(text: &str) -> Result<MilliCpu, String> {
    quantity::parse_cpu(text).map_err(|e| format!("{e}; write 2 or 1500m"))
}

/// For `--memory`.
pub(crate) fn memory(text: &str) -> Result<Bytes, String> {
    quantity::parse_memory(text).map_err(|e| format!("{e}; write 20Gi or 512Mi"))
}
