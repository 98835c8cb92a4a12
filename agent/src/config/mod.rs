//! The agent's configuration: as it is written (`raw`), and checked, with units ([`Config`]).
//!
//! Keys are KubeletConfiguration's wherever the kubelet has one
//! (`staging/src/k8s.io/kubelet/config/v1beta1/types.go`). The command line overrides the file.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use podwarden_cgroup::Driver;
use podwarden_policy::{
    Bytes, MilliCpu, Node,
    container::ContainerOptions,
    evict::{Exemptions, Ranking},
    limits::LimitOptions,
    model::{Enforcement, Reserved},
    plan::{Ownership, Snapshot},
    signal::Signal,
    threshold::Threshold,
};

mod colocation;
mod error;
mod file;
mod kernel_log;
mod machine;
mod parts;
mod raw;
mod reclaimed;
mod strategies;
mod url;
mod validate;
mod values;
mod webhook;
mod yaml;

#[cfg(test)]
mod tests;

pub use colocation::{
    ColocationConfig, CpuEvictConfig, CpuUsageLevels, ProactiveConfig, ResctrlClass, ResctrlConfig,
    SuppressConfig,
};
pub use error::ConfigError;
pub use file::{ConfigFile, Live, ReadConfig};
pub use kernel_log::KernelLog;
pub use machine::{Machine, MachineError};
pub(crate) use machine::{meminfo, memory_used};
pub use parts::{
    ApiserverConfig, ConvergenceConfig, Enforce, EnforceOn, EventLogConfig, EvictionStatusConfig,
    KubeletConfig, OnExit, PodSeries, PressureConfig, ReactorConfig, SecureListenConfig, Stall,
    StaticPodUrl, TlsFiles,
};
pub use raw::Overrides;
pub(crate) use raw::{RawConfig, Text};
pub use reclaimed::ReclaimedConfig;
pub(crate) use url::without_secrets;
pub(crate) use values::{CgroupRoot, Cpu, Memory, WaitObjective, is_loopback};
pub use webhook::ReviewTtls;
pub(crate) use yaml::from_yaml;

/// `apiVersion` of the file.
pub const API_VERSION: &str = "podwarden.io/v1alpha1";
/// `kind` of the file.
pub const KIND: &str = "AgentConfig";
/// Where the API's socket is, unless `apiSocket` says otherwise.
pub const DEFAULT_API_SOCKET: &str = "/run/podwarden/podwarden.sock";

podwarden_policy::names! {
    /// Whether decisions are carried out.
    #[derive(Default, serde::Deserialize, clap::ValueEnum)]
    #[serde(rename_all = "camelCase")]
    pub enum Mode {
        /// Decide and report, write nothing.
        #[default]
        Observe = "observe",
        /// Write limits and evict.
        Enforce = "enforce",
    }
}

/// A checked configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Default: `observe`, so that a first start changes nothing.
    pub mode: Mode,
    /// Default: `own`.
    pub ownership: Ownership,
    /// Default: the host's name in lower case, as the kubelet's.
    pub node_name: String,
    /// Directory of v1 Pod manifests. Default: none, pods are then known from their cgroups.
    pub pods_dir: Option<PathBuf>,
    /// Directory of the state that outlives the agent: the API server's last list of pods, undelivered eviction
    /// statuses and predictions. Default: nowhere. Where it is set, the accounts outlive the agent too
    /// ([`crate::kernel::pins`]).
    pub state_dir: Option<PathBuf>,
    /// The least severe lines that the kernel programs write. Default: `warn`.
    pub kernel_log: KernelLog,
    /// Where manifests are besides. Default: nowhere.
    pub static_pod_url: Option<StaticPodUrl>,
    /// Where the API server is. Default: `Auto`.
    pub apiserver: ApiserverConfig,
    /// Address of the kubelet. Default: no kubelet.
    pub kubelet: Option<KubeletConfig>,
    /// Unix socket of the container runtime (CRI v1). Default: no runtime.
    pub container_runtime_endpoint: Option<PathBuf>,
    /// Address of the HTTP API. Default: none, the unix socket alone.
    pub listen: Option<SocketAddr>,
    /// Address of the HTTP API for other machines. Default: none.
    pub secure_listen: Option<SecureListenConfig>,
    /// Pods that the accounts are made for, 1 to 10,000. Default: 250.
    pub max_pods: u32,
    /// `listen` and `secure_listen` answer `/v1`, too. Default: false, `/metrics`, `/healthz` and `/readyz` alone.
    pub listen_api: bool,
    /// Names in the `Host` header that `listen` takes beside `localhost` and loopback addresses. Default: none.
    pub listen_hosts: Vec<String>,
    /// Unix socket of the HTTP API. Default: [`DEFAULT_API_SOCKET`].
    pub api_socket: PathBuf,
    /// Parent of `kubepods`, relative to each controller's mount point. Default: `/`.
    pub cgroup_root: String,
    /// Who names the cgroups; `None` (`auto`, the default) for the driver that named those that exist.
    pub cgroup_driver: Option<Driver>,
    /// CPUs that pods and reserves share. Default: those that are online.
    pub capacity_cpu: Option<MilliCpu>,
    /// Memory that pods and reserves share. Default: `MemTotal`.
    pub capacity_memory: Option<Bytes>,
    /// Kept for the node's Kubernetes daemons. Default: nothing.
    pub kube_reserved: Reserved,
    /// Kept for the operating system. Default: nothing.
    pub system_reserved: Reserved,
    /// `enforceNodeAllocatable` with the cgroups it names. Default: `[pods]`.
    pub enforce: Enforce,
    /// What pod values depend on: `podPidsLimit` (default: no limit), `cpuCFSQuota` (true),
    /// `cpuCFSQuotaPeriod` (100 ms), `memoryReservationPolicy` (`None`).
    pub limits: LimitOptions,
    /// `memoryThrottlingFactor`, in parts of [`podwarden_policy::container::THROTTLING_FACTOR_ONE`]; `None` where it is
    /// not written.
    pub memory_throttling_factor: Option<u32>,
    /// `memorySwap.swapBehavior: LimitedSwap`. Default: `NoSwap`.
    pub limited_swap: bool,
    /// `evictionHard`, `evictionSoft`, `evictionSoftGracePeriod` and `evictionMinimumReclaim`, in the order in
    /// which they are acted on. Default: as the kubelet's, `memory.available` at 100Mi when `evictionHard` is
    /// not written at all; one of 0% or 100% is none.
    pub thresholds: Vec<Threshold>,
    /// `evictionMaxPodGracePeriod`: how long a pod has to end that a soft threshold evicts, at most, seconds. Default: 0,
    /// it is killed.
    pub eviction_max_pod_grace_period: u16,
    /// `evictionPressureTransitionPeriod`: a node that was under no pressure for this long is under pressure
    /// anew, up to 24 h. Default, also for 0: 5 min.
    pub eviction_pressure_transition_period: Duration,
    /// `qosReserved.memory`, percent, 0 to 100. Default: none.
    pub qos_reserved_memory: Option<u8>,
    /// Default: `qosFirst`.
    pub ranking: Ranking,
    /// Pods from `pods_dir` may be evicted. Default: true where podwarden owns the tree (they are
    /// then the node's ordinary pods), false beside a kubelet.
    pub evict_static_pods: bool,
    /// `pressure.memory`. Default: none.
    pub pressure: PressureConfig,
    pub reactor: ReactorConfig,
    /// What can change while the agent runs.
    pub live: Live,
    /// `sampling.disk`: whether kernel programs count what pods read from and write to disks, and time it.
    /// Default: true.
    pub sampling_disk: bool,
    /// `sampling.network`: whether the pods' network is read. Default: true.
    pub sampling_network: bool,
    /// `eventLog`. Default: none, an agent writes no file unasked.
    pub event_log: Option<EventLogConfig>,
    /// `convergence`.
    pub convergence: ConvergenceConfig,
    /// `colocation`. Default: every strategy off.
    pub colocation: ColocationConfig,
    /// `evictionStatus`. Default: `status`.
    pub eviction_status: EvictionStatusConfig,
    /// `nodeCondition`: whether the Node's status says how this agent is, and a taint while memory is short. Default:
    /// false.
    pub node_condition: bool,
}

impl Config {
    /// Reads and checks a file, or the defaults without one, under the command line's values. Errors have file, line,
    /// field, value and remedy.
    pub fn load(path: Option<&Path>, overrides: Overrides) -> Result<Self, ConfigError> {
        let Some(path) = path else {
            return Self::checked("(defaults)", RawConfig::default(), overrides);
        };
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        let config = Self::parse(&path.display().to_string(), &text, overrides)?;
        for sentence in config.not_acted_on() {
            tracing::warn!(config = %path.display(), "{sentence}");
        }
        Ok(config)
    }

    /// What is configured and checked, and that this version does not do, or not beside a kubelet; one sentence each.
    pub fn not_acted_on(&self) -> Vec<&'static str> {
        let held_by_kubelet = self.ownership == Ownership::Assist;
        [
            (
                self.memory_throttling_factor.is_some(),
                "memoryThrottlingFactor is set: memory.high belongs to containers, whose runtime \
                 gets it from the kubelet",
            ),
            (
                self.limited_swap,
                "memorySwap.swapBehavior is LimitedSwap: swap limits belong to containers, whose \
                 runtime gets them from the kubelet",
            ),
            (
                held_by_kubelet && self.colocation.suppress.is_some(),
                "colocation.cpuSuppressThresholdPercent is set and ownership is assist: a kubelet owns best effort's \
                 cgroup, which is not held back; remove the key, or set ownership: own where no kubelet runs",
            ),
            (
                held_by_kubelet && self.colocation.wait.enable,
                "colocation.cpuWaitStrategy.enable is set and ownership is assist: a kubelet owns best effort's \
                 cgroup, which is not held back; remove the key, or set ownership: own where no kubelet runs",
            ),
        ]
        .into_iter()
        .filter_map(|(set, sentence)| set.then_some(sentence))
        .collect()
    }

    /// As [`Config::load`], from text; `name` is what errors call it.
    pub fn parse(name: &str, text: &str, overrides: Overrides) -> Result<Self, ConfigError> {
        Self::checked(name, yaml::parse(name, text)?, overrides)
    }

    /// As [`Config::load`], of what stands inside another file, without a head of its own.
    pub(crate) fn embedded(name: &str, raw: RawConfig) -> Result<Self, ConfigError> {
        validate::check(name, raw)
    }

    fn checked(name: &str, mut raw: RawConfig, flags: Overrides) -> Result<Self, ConfigError> {
        flags.put_over(&mut raw)?;
        validate::check(name, raw)
    }

    /// The node for the policy: this configuration over what the machine has. `driver` is who names
    /// the cgroups.
    pub fn node(&self, machine: &Machine, driver: Driver) -> Node {
        let memory_capacity = self.capacity_memory.unwrap_or(machine.memory);
        let hard = self
            .hard(Signal::MemoryAvailable)
            .map(|t| Bytes(t.less_than.of(memory_capacity.0)));
        let named = |on: &Option<EnforceOn>| on.as_ref().map(|on| on.named(driver));
        Node {
            cpu_capacity: self.capacity_cpu.unwrap_or(machine.cpu),
            memory_capacity,
            pids_capacity: machine.pids,
            ephemeral_storage_capacity: machine.ephemeral_storage,
            hugepages: machine.hugepages.clone(),
            swap_capacity: machine.swap,
            kube_reserved: self.kube_reserved,
            system_reserved: self.system_reserved,
            enforce: Enforcement {
                pods: self.enforce.pods,
                kube_reserved: named(&self.enforce.kube_reserved),
                system_reserved: named(&self.enforce.system_reserved),
            },
            eviction_hard_memory: hard.unwrap_or_default(),
            qos_reserved_memory_percent: self.qos_reserved_memory,
            ..Node::default()
        }
    }

    /// The hard threshold of a signal.
    pub fn hard(&self, signal: Signal) -> Option<&Threshold> {
        let of = |t: &&Threshold| t.signal == signal && t.is_hard();
        self.thresholds.iter().find(of)
    }

    /// The soft threshold of a signal.
    pub fn soft(&self, signal: Signal) -> Option<&Threshold> {
        let of = |t: &&Threshold| t.signal == signal && !t.is_hard();
        self.thresholds.iter().find(of)
    }

    /// Working set of the whole node at which less is available than `evictionHard["memory.available"]`,
    /// bytes; of what the machine has, whatever `capacity` says.
    pub fn node_level(&self, machine: &Machine) -> Option<u64> {
        let total = machine.memory.as_u64();
        // Huge pages in use count as nothing that runs here, and are memory for nothing else.
        let usable = total.saturating_sub(machine.hugepages_total().as_u64());
        self.hard(Signal::MemoryAvailable)
            .map(|hard| usable.saturating_sub(hard.less_than.of(total)))
    }

    /// `evictionMinimumReclaim["memory.available"]` of this node, bytes.
    pub fn minimum_reclaim(&self, node: &Node) -> u64 {
        let of_memory = |t: &&Threshold| t.signal == Signal::MemoryAvailable;
        let reclaim = self.thresholds.iter().find(of_memory);
        reclaim
            .and_then(|threshold| threshold.min_reclaim)
            .map_or(0, |amount| amount.of(node.memory_capacity.0))
    }

    /// Puts everything that the configuration decides, except the node, into a snapshot.
    pub fn decide(&self, snapshot: &mut Snapshot) {
        snapshot.limits = self.limits;
        snapshot.containers = ContainerOptions {
            throttling_factor: self.memory_throttling_factor,
            limited_swap: self.limited_swap,
        };
        snapshot.ownership = self.ownership;
        snapshot.ranking = self.ranking;
        snapshot.enforce_reclaimed = self.colocation.reclaimed.enforce;
        snapshot.exemptions = Exemptions {
            own_pod: snapshot.exemptions.own_pod.take(),
            ..self.exemptions()
        };
    }

    /// What protects pods; `own_pod` is for the caller to fill in.
    pub fn exemptions(&self) -> Exemptions {
        Exemptions {
            evict_static_pods: self.evict_static_pods,
            own_pod: None,
        }
    }
}
