//! The configuration as it is written: every key with its type, and the flag of `run` that overrides it.

use std::{collections::BTreeMap, path::PathBuf};

use clap::{Args, FromArgMatches};
use podwarden_cgroup::Driver;
use podwarden_policy::{evict::Ranking, plan::Ownership};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_saphyr::Spanned;

use super::{
    ConfigError, EvictionStatusConfig, KernelLog, Mode, OnExit, PodSeries,
    colocation::RawColocation,
    values::{
        CgroupRoot, CheckFrequency, Count, Cpu, CpuCapacity, DaemonsCgroup, HostName, InputFile,
        KubeletUrl, Listen, LogFile, LogSize, ManifestUrl, MaxHeadroom, MaxInterval,
        MaxPodGracePeriod, MaxPods, Memory, MemoryCapacity, MinInterval, NodeName, PerMinute,
        Percent, PidsLimit, PollInterval, QuotaPeriod, ReclaimStep, RuntimeSocket,
        SamplingInterval, SecureListen, StallLevel, StateDir, ThrottlingFactor, TransitionPeriod,
    },
    webhook::{RawAuthentication, RawAuthorization},
};

/// A text with where it stands.
pub(crate) type Text = Spanned<String>;

/// The file. A key that `run` has a flag for is an argument, too; its comment is the flag's help.
#[derive(Debug, Default, Deserialize, Args)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawConfig {
    #[arg(skip)]
    pub(super) api_version: Option<Text>,
    #[arg(skip)]
    pub(super) kind: Option<Text>,
    /// Whether to act, or only to tell what would be done [default: observe]
    #[arg(long, value_enum)]
    pub(super) mode: Option<Mode>,
    #[arg(skip)]
    pub(super) ownership: Option<Ownership>,
    /// Parent of kubepods, relative to each controller's mount point [default: /]
    #[arg(long, value_name = "PATH")]
    pub(super) cgroup_root: Option<CgroupRoot>,
    /// Who names the cgroups [default: auto]
    #[arg(long, value_name = "DRIVER", value_enum)]
    pub(super) cgroup_driver: Option<CgroupDriver>,
    /// Directory of v1 Pod manifests (*.yaml, *.yml, *.json)
    #[arg(long, value_name = "DIR")]
    pub(super) pods_dir: Option<PathBuf>,
    #[arg(skip)]
    #[serde(rename = "staticPodURL")]
    pub(super) static_pod_url: Option<ManifestUrl>,
    #[arg(skip)]
    #[serde(rename = "staticPodURLHeader")]
    pub(super) static_pod_url_header: BTreeMap<String, Vec<Text>>,
    #[arg(skip)]
    pub(super) http_check_frequency: Option<CheckFrequency>,
    /// Take this node's pods from the API server of this file's current context [default: that of the
    /// pod's service account, where the agent runs in a pod]
    #[arg(long, value_name = "FILE", conflicts_with = "no_apiserver")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// Take no pods from an API server, whatever the configuration says
    #[arg(long)]
    #[serde(skip)]
    pub(super) no_apiserver: bool,
    /// Name of this node, as its Node object has it [default: the host's name]
    #[arg(long, value_name = "NAME")]
    pub(super) node_name: Option<NodeName>,
    #[arg(skip)]
    pub(super) kubelet: RawKubelet,
    /// Unix socket of the container runtime (CRI v1), such as /run/containerd/containerd.sock
    /// [default: none is asked]
    #[arg(long = "cri-socket", value_name = "PATH")]
    pub(super) container_runtime_endpoint: Option<RuntimeSocket>,
    #[arg(skip)]
    pub(super) state_dir: Option<StateDir>,
    /// The least severe lines that the kernel programs write to the log [default: warn]
    #[arg(long, value_enum, value_name = "LEVEL")]
    pub(super) kernel_log: Option<KernelLog>,
    /// Address of the HTTP API, beside its unix socket [default: none]
    #[arg(long, value_name = "ADDR")]
    pub(super) listen: Option<Listen>,
    /// Address of the HTTP API for other machines, over TLS and for users that the API server lets in
    /// [default: none]
    #[arg(long, value_name = "ADDR")]
    pub(super) secure_listen: Option<SecureListen>,
    #[arg(skip)]
    pub(super) tls_cert_file: Option<InputFile>,
    #[arg(skip)]
    pub(super) tls_private_key_file: Option<InputFile>,
    #[arg(skip)]
    pub(super) authentication: RawAuthentication,
    #[arg(skip)]
    pub(super) authorization: RawAuthorization,
    #[arg(skip)]
    pub(super) listen_api: Option<bool>,
    #[arg(skip)]
    pub(super) listen_hosts: Vec<HostName>,
    /// Unix socket of the HTTP API [default: /run/podwarden/podwarden.sock]
    #[arg(long, value_name = "PATH")]
    pub(super) api_socket: Option<PathBuf>,
    #[arg(skip)]
    pub(super) capacity: RawCapacity,
    #[arg(skip)]
    pub(super) kube_reserved: RawReserved,
    #[arg(skip)]
    pub(super) system_reserved: RawReserved,
    #[arg(skip)]
    pub(super) enforce_node_allocatable: Option<Vec<Text>>,
    #[arg(skip)]
    pub(super) kube_reserved_cgroup: Option<DaemonsCgroup>,
    #[arg(skip)]
    pub(super) system_reserved_cgroup: Option<DaemonsCgroup>,
    #[arg(skip)]
    pub(super) eviction_hard: Option<RawSignals>,
    #[arg(skip)]
    pub(super) eviction_soft: RawSignals,
    #[arg(skip)]
    pub(super) eviction_soft_grace_period: RawSignals,
    #[arg(skip)]
    pub(super) eviction_minimum_reclaim: RawSignals,
    #[arg(skip)]
    pub(super) eviction_max_pod_grace_period: Option<MaxPodGracePeriod>,
    #[arg(skip)]
    pub(super) eviction_pressure_transition_period: Option<TransitionPeriod>,
    #[arg(skip)]
    pub(super) qos_reserved: RawQosReserved,
    #[arg(skip)]
    pub(super) max_pods: Option<MaxPods>,
    #[arg(skip)]
    pub(super) pod_pids_limit: Option<PidsLimit>,
    #[arg(skip)]
    #[serde(rename = "cpuCFSQuota")]
    pub(super) cpu_cfs_quota: Option<bool>,
    #[arg(skip)]
    #[serde(rename = "cpuCFSQuotaPeriod")]
    pub(super) cpu_cfs_quota_period: Option<QuotaPeriod>,
    #[arg(skip)]
    pub(super) memory_reservation_policy: Option<MemoryReservationPolicy>,
    #[arg(skip)]
    pub(super) memory_throttling_factor: Option<ThrottlingFactor>,
    #[arg(skip)]
    pub(super) memory_swap: RawMemorySwap,
    #[arg(skip)]
    pub(super) ranking: Option<Ranking>,
    #[arg(skip)]
    pub(super) evict_static_pods: Option<bool>,
    #[arg(skip)]
    pub(super) pressure: RawPressure,
    #[arg(skip)]
    pub(super) reactor: RawReactor,
    #[arg(skip)]
    pub(super) sampling: RawSampling,
    #[arg(skip)]
    pub(super) metrics: RawMetrics,
    #[arg(skip)]
    pub(super) event_log: RawEventLog,
    #[arg(skip)]
    pub(super) convergence: RawConvergence,
    #[arg(skip)]
    pub(super) colocation: RawColocation,
    #[arg(skip)]
    pub(super) eviction_status: RawEvictionStatus,
    #[arg(skip)]
    pub(super) node_condition: Option<bool>,
    /// The old name of `evictionStatus`.
    #[arg(skip)]
    #[serde(deserialize_with = "marks", rename = "marks")]
    _marks: (),
}

/// Keys that only say what they are called now.
pub(super) const OLD_NAMES: [&str; 1] = ["marks"];

fn marks<'de, D: Deserializer<'de>>(_: D) -> Result<(), D::Error> {
    Err(D::Error::custom(
        "is now evictionStatus; write evictionStatus instead of marks",
    ))
}

/// Who names the cgroups.
#[derive(Debug, Clone, Copy, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "camelCase")]
pub(crate) enum CgroupDriver {
    /// The driver that named those that exist.
    Auto,
    /// `/kubepods/burstable/pod<uid>`
    Cgroupfs,
    /// `/kubepods.slice/kubepods-burstable.slice/...`
    Systemd,
}

impl From<CgroupDriver> for Option<Driver> {
    fn from(driver: CgroupDriver) -> Self {
        match driver {
            CgroupDriver::Auto => None,
            CgroupDriver::Cgroupfs => Some(Driver::Cgroupfs),
            CgroupDriver::Systemd => Some(Driver::Systemd),
        }
    }
}

/// Whether memory requests set `memory.min` and `memory.low`.
#[derive(Debug, Clone, Copy, Deserialize, PartialEq, Eq)]
pub(super) enum MemoryReservationPolicy {
    None,
    TieredReservation,
}

/// The kubelet's swap limits of containers.
#[derive(Debug, Clone, Copy, Deserialize, PartialEq, Eq)]
pub(super) enum SwapBehavior {
    #[serde(alias = "")]
    NoSwap,
    LimitedSwap,
}

/// `capacity`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCapacity {
    pub(super) cpu: Option<CpuCapacity>,
    pub(super) memory: Option<MemoryCapacity>,
}

/// `kubeReserved` or `systemReserved`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawReserved {
    pub(super) cpu: Option<Cpu>,
    pub(super) memory: Option<Memory>,
    pub(super) pid: Option<Count>,
    pub(super) ephemeral_storage: Option<Memory>,
}

/// `memorySwap`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawMemorySwap {
    pub(super) swap_behavior: Option<SwapBehavior>,
}

/// Eviction signals with what is written for each.
pub(super) type RawSignals = BTreeMap<String, Text>;

/// `qosReserved`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawQosReserved {
    pub(super) memory: Option<Percent>,
}

/// `pressure`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawPressure {
    pub(super) memory: RawStalls,
}

/// `pressure.memory`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawStalls {
    pub(super) some: Option<StallLevel>,
    pub(super) full: Option<StallLevel>,
}

/// `reactor`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawReactor {
    pub(super) real_time: Option<bool>,
    pub(super) min_interval: Option<MinInterval>,
    pub(super) max_interval: Option<Spanned<MaxInterval>>,
    pub(super) max_evictions_per_minute: Option<PerMinute>,
    pub(super) max_headroom: Option<MaxHeadroom>,
}

/// `sampling`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSampling {
    pub(super) interval: Option<SamplingInterval>,
    pub(super) disk: Option<bool>,
    pub(super) network: Option<bool>,
}

/// `metrics`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMetrics {
    pub(super) pods: Option<PodSeries>,
}

/// `kubelet`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawKubelet {
    pub(super) url: Option<KubeletUrl>,
    pub(super) token_file: Option<InputFile>,
    pub(super) certificate_authority: Option<InputFile>,
    pub(super) server_name: Option<String>,
    pub(super) interval: Option<PollInterval>,
}

/// `eventLog`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawEventLog {
    pub(super) path: Option<LogFile>,
    pub(super) max_size: Option<LogSize>,
}

/// `convergence`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawConvergence {
    pub(super) on_exit: Option<OnExit>,
    pub(super) cap_lower_tiers: Option<bool>,
    pub(super) memory_high: Option<bool>,
    pub(super) memory_reclaim: Option<bool>,
    pub(super) reclaim_step: Option<ReclaimStep>,
}

/// `evictionStatus`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawEvictionStatus {
    pub(super) how: Option<EvictionStatusConfig>,
}

/// What the command line says; each flag overrides the file's key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides(Option<clap::ArgMatches>);

impl Overrides {
    /// From flags of `run`, such as `["--mode", "enforce"]`.
    pub fn from_flags<'a>(
        flags: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, Box<clap::Error>> {
        let command = RawConfig::augment_args(clap::Command::new("run").no_binary_name(true));
        let matches = command.try_get_matches_from(flags)?;
        Ok(Self(Some(matches)))
    }

    pub(super) fn put_over(self, raw: &mut RawConfig) -> Result<(), ConfigError> {
        let Some(mut matches) = self.0 else {
            return Ok(());
        };
        let result = raw.update_from_arg_matches_mut(&mut matches);
        result.map_err(|error| ConfigError::Flags(Box::new(error)))
    }
}

impl FromArgMatches for Overrides {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self(Some(matches.clone())))
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        self.0 = Some(matches.clone());
        Ok(())
    }
}

impl Args for Overrides {
    fn augment_args(command: clap::Command) -> clap::Command {
        RawConfig::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        RawConfig::augment_args_for_update(command)
    }
}
