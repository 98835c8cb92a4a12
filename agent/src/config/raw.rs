//! The configuration as it is written: every value a text with its line.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, de::IgnoredAny};
use serde_saphyr::Spanned;

use podwarden_policy::evict::Ranking;

use super::{API_VERSION, ConfigError, KIND, KernelLog, Mode, Ownership};

/// A value with where it stands. Quantities may be written as numbers.
pub(crate) type Text = Spanned<String>;

/// The file.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawConfig {
    pub(super) api_version: Option<Text>,
    pub(super) kind: Option<Text>,
    pub(super) mode: Option<Mode>,
    pub(super) ownership: Option<Ownership>,
    pub(super) node_name: Option<Text>,
    pub(super) pods_dir: Option<PathBuf>,
    pub(super) state_dir: Option<Text>,
    pub(super) kernel_log: Option<KernelLog>,
    #[serde(rename = "staticPodURL")]
    pub(super) static_pod_url: Option<Text>,
    #[serde(rename = "staticPodURLHeader", default)]
    pub(super) static_pod_url_header: BTreeMap<String, Vec<Text>>,
    pub(super) http_check_frequency: Option<Text>,
    pub(super) kubeconfig: Option<PathBuf>,
    #[serde(default)]
    pub(super) kubelet: RawKubelet,
    pub(super) container_runtime_endpoint: Option<Text>,
    pub(super) listen: Option<Text>,
    pub(super) api_socket: Option<PathBuf>,
    pub(super) cgroup_root: Option<Text>,
    pub(super) cgroup_driver: Option<Text>,
    #[serde(default)]
    pub(super) capacity: RawResources,
    #[serde(default)]
    pub(super) kube_reserved: RawReserved,
    #[serde(default)]
    pub(super) system_reserved: RawReserved,
    pub(super) enforce_node_allocatable: Option<Vec<Text>>,
    pub(super) kube_reserved_cgroup: Option<Text>,
    pub(super) system_reserved_cgroup: Option<Text>,
    pub(super) eviction_hard: Option<RawSignals>,
    #[serde(default)]
    pub(super) eviction_soft: RawSignals,
    #[serde(default)]
    pub(super) eviction_soft_grace_period: RawSignals,
    #[serde(default)]
    pub(super) eviction_minimum_reclaim: RawSignals,
    pub(super) eviction_pressure_transition_period: Option<Text>,
    #[serde(default)]
    pub(super) qos_reserved: RawQosReserved,
    pub(super) pod_pids_limit: Option<Text>,
    #[serde(rename = "cpuCFSQuota")]
    pub(super) cpu_cfs_quota: Option<bool>,
    #[serde(rename = "cpuCFSQuotaPeriod")]
    pub(super) cpu_cfs_quota_period: Option<Text>,
    pub(super) memory_reservation_policy: Option<Text>,
    pub(super) memory_throttling_factor: Option<Text>,
    #[serde(default)]
    pub(super) memory_swap: RawMemorySwap,
    pub(super) ranking: Option<Ranking>,
    pub(super) evict_static_pods: Option<bool>,
    #[serde(default)]
    pub(super) pressure: RawPressure,
    #[serde(default)]
    pub(super) reactor: RawReactor,
    #[serde(default)]
    pub(super) sampling: RawSampling,
    #[serde(default)]
    pub(super) event_log: RawEventLog,
    #[serde(default)]
    pub(super) convergence: RawConvergence,
    #[serde(default)]
    pub(super) eviction_status: RawEvictionStatus,
    pub(super) node_condition: Option<bool>,
    /// The old name of `evictionStatus`; an error.
    marks: Option<Spanned<IgnoredAny>>,
}

/// CPU and memory.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawResources {
    pub(super) cpu: Option<Text>,
    pub(super) memory: Option<Text>,
}

/// `kubeReserved` or `systemReserved`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawReserved {
    pub(super) cpu: Option<Text>,
    pub(super) memory: Option<Text>,
    pub(super) pid: Option<Text>,
    #[serde(rename = "ephemeral-storage")]
    pub(super) ephemeral_storage: Option<Text>,
}

/// `memorySwap`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawMemorySwap {
    pub(super) swap_behavior: Option<Text>,
}

/// Eviction signals with what is written for each.
pub(super) type RawSignals = BTreeMap<String, Text>;

/// `qosReserved`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawQosReserved {
    pub(super) memory: Option<Text>,
}

/// `pressure`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPressure {
    #[serde(default)]
    pub(super) memory: RawStalls,
}

/// `pressure.memory`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawStalls {
    pub(super) some: Option<Text>,
    pub(super) full: Option<Text>,
}

/// `reactor`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawReactor {
    pub(super) real_time: Option<bool>,
    pub(super) min_interval: Option<Text>,
    pub(super) max_interval: Option<Text>,
    pub(super) max_evictions_per_minute: Option<Text>,
    pub(super) max_headroom: Option<Text>,
}

/// `sampling`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSampling {
    pub(super) interval: Option<Text>,
}

/// `kubelet`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawKubelet {
    pub(super) url: Option<Text>,
    pub(super) token_file: Option<Text>,
    pub(super) certificate_authority: Option<Text>,
    pub(super) server_name: Option<Text>,
    pub(super) interval: Option<Text>,
}

/// `eventLog`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawEventLog {
    pub(super) path: Option<Text>,
    pub(super) max_size: Option<Text>,
}

/// `convergence`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawConvergence {
    pub(super) on_exit: Option<Text>,
    pub(super) cap_lower_tiers: Option<bool>,
    pub(super) memory_high: Option<bool>,
    pub(super) memory_reclaim: Option<bool>,
    pub(super) reclaim_step: Option<Text>,
}

/// `evictionStatus`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawEvictionStatus {
    pub(super) how: Option<Text>,
}

/// Parses the YAML and checks that it is meant for this agent.
pub(super) fn parse(name: &str, text: &str) -> Result<RawConfig, ConfigError> {
    // One line per error: the agent's log is read by the line.
    let options = serde_saphyr::options! { with_snippet: false };
    let raw: RawConfig =
        serde_saphyr::from_str_with_options(text, options).map_err(|e| syntax(name, e))?;
    identity(name, "apiVersion", raw.api_version.as_ref(), API_VERSION)?;
    identity(name, "kind", raw.kind.as_ref(), KIND)?;
    if let Some(old) = &raw.marks {
        return Err(ConfigError::Renamed {
            origin: format!("{name}:{}", old.referenced.line()),
            old: "marks",
            new: "evictionStatus",
        });
    }
    Ok(raw)
}

fn syntax(name: &str, error: serde_saphyr::Error) -> ConfigError {
    let origin = match error.location() {
        Some(at) if at.line() > 0 => format!("{name}:{}", at.line()),
        _ => name.to_owned(),
    };
    ConfigError::Syntax {
        origin,
        source: Box::new(error),
    }
}

fn identity(
    name: &str,
    field: &'static str,
    found: Option<&Text>,
    expected: &'static str,
) -> Result<(), ConfigError> {
    if found.is_some_and(|text| text.value == expected) {
        return Ok(());
    }
    Err(ConfigError::Value {
        origin: origin(name, found),
        field: field.to_owned(),
        value: found.map(|text| text.value.clone()).unwrap_or_default(),
        problem: format!("this version reads {expected}"),
        remedy: "begin the file with `apiVersion: podwarden.io/v1alpha1` and `kind: AgentConfig`",
    })
}

/// File and line of a value.
pub(crate) fn origin(name: &str, text: Option<&Text>) -> String {
    match text {
        Some(text) if text.referenced.line() > 0 => format!("{name}:{}", text.referenced.line()),
        _ => name.to_owned(),
    }
}
