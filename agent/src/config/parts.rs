//! The checked values of the configuration's sections.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use axum::http::{HeaderName, HeaderValue, Uri};
use podwarden_cgroup::{Driver, PsiKind};
use podwarden_policy::{
    Bytes, converge::Steps, model::ReservedCgroup, name::CgroupName, threshold::Amount,
};
use serde::Deserialize;

use super::ReviewTtls;

/// `metrics.pods`: which series a pod has on `/metrics`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PodSeries {
    /// None: tiers and node alone.
    None,
    /// At most twelve: CPU time and throttling, waits without their distribution, memory, stalls, OOM kills; and one
    /// more of a pod that gives page cache back.
    #[default]
    Basic,
    /// Also the distribution of waits, context switches, quota periods, exits, pressure, disk and network: some
    /// sixty.
    Full,
}

/// How the reactor is allowed to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReactorConfig {
    /// Try SCHED_FIFO, `mlockall` with the program's code read in, and `PR_SET_IO_FLUSHER`. Default: true.
    pub real_time: bool,
    /// Shortest sleep between two readings of the sampler, 100 us to 1 s. Default: 1 ms.
    pub min_interval: Duration,
    /// Longest sleep between two readings of the sampler, `min_interval` to 10 s. Default: 100 ms.
    pub max_interval: Duration,
    /// Evictions in any minute, 1 to 6000. Default: 60.
    pub max_evictions_per_minute: u32,
    /// How far below a configured level the reactor may act because of how fast a cgroup fills, an
    /// amount or a share of the cgroup's limit up to 50 %; 0 for never. Default: 10 %.
    pub max_headroom: Amount,
}

/// `enforceNodeAllocatable`: on which cgroups the reserves are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enforce {
    /// `pods`.
    pub pods: bool,
    /// `kube-reserved` or `kube-reserved-compressible`: `kubeReservedCgroup`.
    pub kube_reserved: Option<EnforceOn>,
    /// `system-reserved` or `system-reserved-compressible`: `systemReservedCgroup`.
    pub system_reserved: Option<EnforceOn>,
}

/// A cgroup of daemons that a reserve is written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnforceOn {
    /// Its path below `cgroupRoot`, as the cgroup driver writes it.
    pub cgroup: String,
    /// The `-compressible` form: CPU alone.
    pub compressible_only: bool,
}

impl EnforceOn {
    /// As the policy names it.
    pub(super) fn named(&self, driver: Driver) -> ReservedCgroup {
        ReservedCgroup {
            cgroup: match driver {
                Driver::Cgroupfs => CgroupName::parse_cgroupfs(&self.cgroup),
                Driver::Systemd => CgroupName::parse_systemd(&self.cgroup),
            },
            compressible_only: self.compressible_only,
        }
    }
}

/// Whether pods are taken from the API server, and from which.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ApiserverConfig {
    /// From that of the service account, if the agent runs in a pod that has one.
    #[default]
    Auto,
    /// They are not.
    Off,
    /// From that of the file's current context.
    Kubeconfig(PathBuf),
}

/// Manifests at a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticPodUrl {
    /// `http` or `https`, the certificate of a public authority or of one that this machine trusts.
    pub url: Uri,
    /// Sent with every request.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// How often it is read. Default: 20 s.
    pub interval: Duration,
}

/// The kubelet as a source of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeletConfig {
    /// `https://HOST:PORT`, or `http` on loopback (the read-only port).
    pub url: String,
    /// Holds the bearer token; read again as it changes.
    pub token_file: Option<PathBuf>,
    /// Who signed the kubelet's serving certificate, PEM; its own, where it signed itself.
    pub certificate_authority: Option<PathBuf>,
    /// The name in that certificate; that of the URL where there is none.
    pub server_name: Option<String>,
    /// Time between two polls. Default: 5 s.
    pub interval: Duration,
}

/// So much waiting for memory within a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    /// 1 ms to the window.
    pub stall: Duration,
    /// 500 ms to 10 s, what the kernel takes.
    pub window: Duration,
}

impl std::fmt::Display for Stall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}/{:?}", self.stall, self.window)
    }
}

/// `pressure.memory`: from how much waiting for memory on (PSI) a pod is evicted where memory is short.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PressureConfig {
    /// At least one task waits. Default: none.
    pub some: Option<Stall>,
    /// All that are not idle wait. Default: none.
    pub full: Option<Stall>,
}

impl PressureConfig {
    /// Those that are configured.
    pub fn stalls(&self) -> impl Iterator<Item = (PsiKind, Stall)> {
        [(PsiKind::Some, self.some), (PsiKind::Full, self.full)]
            .into_iter()
            .filter_map(|(kind, stall)| Some((kind, stall?)))
    }
}

/// How the tiers' memory limits follow `qosReserved`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvergenceConfig {
    /// What becomes of the limits when the agent ends. Default: `restore`.
    pub on_exit: OnExit,
    /// Which steps are taken: `capLowerTiers`, `memoryHigh`, `memoryReclaim`. Default: all.
    pub steps: Steps,
    /// `reclaimStep`: how much page cache is dropped at a time, 1Mi to 1Gi. Default: 32Mi.
    pub reclaim_step: Bytes,
}

/// `convergence.onExit`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnExit {
    /// The tiers get back the limits that were found before podwarden wrote any.
    #[default]
    Restore,
    /// They stay as they are.
    Keep,
}

/// `evictionStatus.how`: how the API server learns of an eviction, besides by an Event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EvictionStatusConfig {
    /// As the kubelet: the pod's status is Failed, reason Evicted.
    #[default]
    Status,
    /// By an Eviction (`policy/v1`), which disruption budgets may refuse and which deletes the pod.
    EvictionApi,
    /// It does not, nor by an Event.
    None,
}

/// `secureListen` with its companions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecureListenConfig {
    /// Any address of this machine.
    pub address: SocketAddr,
    /// `tlsCertFile` and `tlsPrivateKeyFile`. Default: none, the agent signs a certificate itself at each start.
    pub files: Option<TlsFiles>,
    /// How long the API server's answers about a client hold.
    pub ttls: ReviewTtls,
}

/// `tlsCertFile` and `tlsPrivateKeyFile`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and those that signed it, in this order, PEM.
    pub certificate: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
}

/// Where evictions and OOM kills are kept past the agent's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventLogConfig {
    /// The file, absolute. Its directory is made when it is missing; the generation before it has `.1`
    /// after its name.
    pub path: PathBuf,
    /// What both generations together may have, 1Mi to 1Gi. Default: 16Mi.
    pub max_size: Bytes,
}
