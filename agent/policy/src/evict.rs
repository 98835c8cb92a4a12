//! The eviction order.
//!
//! Properties: the order is total and does not depend on the order of the input; no protected pod
//! is ever in it; the text that explains a choice is printed from the rank that made it.

use alloc::vec::Vec;
use core::{cmp::Reverse, fmt};

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::{
    colocation::evict_cpu::CpuRank,
    limits,
    model::{Pod, PodUid, QosClass},
    qos,
    signal::Signal,
    units::{Bytes, saturate},
};

/// How long a pod has to end that says nothing of it, seconds (`DefaultTerminationGracePeriodSeconds`).
const DEFAULT_GRACE: u32 = 30;

/// Between SIGTERM and SIGKILL, seconds: what the pod asks for, `most` at most, at least 1
/// (`calculateEffectiveGracePeriod` of kubelet `pkg/kubelet/pod_workers.go`).
pub fn grace_seconds(pod: &Pod, most: Option<u32>) -> u32 {
    let asked = pod.grace_seconds.unwrap_or(DEFAULT_GRACE);
    most.map_or(asked, |most| asked.min(most)).max(1)
}

/// Which order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Ranking {
    /// BestEffort, then Burstable over its request, then the rest; the kubelet's order inside each.
    #[default]
    QosFirst,
    /// Usage over request, then priority, then usage minus request
    /// (`rankMemoryPressure` of kubelet `pkg/kubelet/eviction/helpers.go`).
    Kubelet,
}

/// What a rank is computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Candidate {
    /// Its class.
    pub qos: QosClass,
    /// `spec.priority`.
    pub priority: i32,
    /// [`limits::ranking_memory_request`].
    pub memory_request: Bytes,
    /// Working set: usage minus inactive file. `None` when it could not be read.
    pub working_set: Option<Bytes>,
}

impl Candidate {
    /// The candidate of a pod that uses so much.
    pub fn of(pod: &Pod, working_set: Option<Bytes>) -> Self {
        Self {
            qos: qos::classify(pod),
            priority: pod.priority,
            memory_request: limits::ranking_memory_request(pod),
            working_set,
        }
    }
}

/// A place in the order: what compares as less is evicted first. Equal ranks are ordered by uid.
///
/// Holds no allocation, so that it can be computed where nothing may be allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rank {
    /// Where the class decides first.
    pub group: Group,
    /// Whether its usage is above its request.
    pub excess: Excess,
    /// `spec.priority`, lowest first.
    pub priority: i32,
    /// Working set minus request in bytes, saturating, largest first; 0 when usage could not be
    /// read.
    pub over_request: Reverse<i64>,
}

/// The first element of a [`Rank`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Group {
    /// [`Ranking::Kubelet`]: the class plays no part.
    Any,
    /// BestEffort.
    BestEffort,
    /// Burstable, usage above its request.
    BurstableOverRequest,
    /// Everything else.
    Rest,
}

/// The second element of a [`Rank`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Excess {
    /// Usage could not be read; the kubelet evicts such a pod first.
    UnknownFirst,
    /// Usage above its request.
    Over,
    /// Usage within its request.
    Within,
    /// Usage could not be read; `qosFirst` evicts such a pod last of its group, because its
    /// death may free nothing.
    UnknownLast,
}

/// The one function that decides the order.
pub fn rank(ranking: Ranking, pod: &Candidate) -> Rank {
    let over = pod
        .working_set
        .map(|used| saturate(i128::from(used.0) - i128::from(pod.memory_request.0)));
    let excess = match (over, ranking) {
        (Some(1..), _) => Excess::Over,
        (Some(_), _) => Excess::Within,
        (None, Ranking::Kubelet) => Excess::UnknownFirst,
        (None, Ranking::QosFirst) => Excess::UnknownLast,
    };
    let group = match (ranking, pod.qos) {
        (Ranking::Kubelet, _) => Group::Any,
        (Ranking::QosFirst, QosClass::BestEffort) => Group::BestEffort,
        (Ranking::QosFirst, QosClass::Burstable) if excess == Excess::Over => {
            Group::BurstableOverRequest
        }
        (Ranking::QosFirst, _) => Group::Rest,
    };
    Rank {
        group,
        excess,
        priority: pod.priority,
        over_request: Reverse(over.unwrap_or(0)),
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.group {
            Group::Any => {}
            Group::BestEffort => f.write_str("BestEffort, ")?,
            Group::BurstableOverRequest => f.write_str("Burstable, ")?,
            Group::Rest => f.write_str("neither BestEffort nor Burstable over its request, ")?,
        }
        let bytes = Bytes(self.over_request.0.unsigned_abs());
        match self.excess {
            Excess::Over => write!(f, "{bytes} over its memory request")?,
            Excess::Within => write!(f, "{bytes} below its memory request")?,
            Excess::UnknownFirst | Excess::UnknownLast => f.write_str("usage unknown")?,
        }
        write!(f, ", priority {}", self.priority)
    }
}

/// A place in the order when process ids run out: priority, then the number of processes, largest
/// first (`rankPIDPressure` of kubelet `pkg/kubelet/eviction/helpers.go`). Equal ranks are ordered
/// by uid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Display)]
#[display("{}, priority {priority}", Signal::PidAvailable.amount(processes.0))]
pub struct PidRank {
    /// `spec.priority`, lowest first.
    pub priority: i32,
    /// Processes in the pod's cgroup.
    pub processes: Reverse<u64>,
}

impl PidRank {
    /// The rank of a pod with so many processes.
    pub const fn new(priority: i32, processes: u64) -> Self {
        Self {
            priority,
            processes: Reverse(processes),
        }
    }
}

/// Why a pod was chosen: its place in the order that counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
pub enum Place {
    /// Memory is short.
    Memory(Rank),
    /// Process ids are.
    Processes(PidRank),
    /// The CPU of best-effort pods is.
    Cpu(CpuRank),
}

/// Why a pod is never evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Display, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Exemption {
    /// A critical pod, see [`Pod::is_critical`].
    #[display("critical pod")]
    Critical,
    /// A static pod, and the operator did not allow to evict those.
    #[display("static pod")]
    StaticPod,
    /// The pod that podwarden itself runs in.
    #[display("podwarden's own pod")]
    OwnPod,
}

/// What the operator says about protection.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Exemptions {
    /// Static pods may be evicted.
    pub evict_static_pods: bool,
    /// The pod that podwarden runs in, if it runs in one.
    pub own_pod: Option<PodUid>,
}

impl Exemptions {
    /// Why the pod may not be evicted; `None` if it may.
    pub fn of(&self, pod: &Pod) -> Option<Exemption> {
        if self.own_pod.as_ref() == Some(&pod.uid) {
            Some(Exemption::OwnPod)
        } else if pod.is_critical() {
            Some(Exemption::Critical)
        } else if pod.static_pod && !self.evict_static_pods {
            Some(Exemption::StaticPod)
        } else {
            None
        }
    }
}

/// A pod in the order of eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ranked<'a> {
    /// Which pod.
    pub pod: &'a Pod,
    /// Its candidate.
    pub candidate: Candidate,
    /// Its rank.
    pub rank: Rank,
}

/// The candidates in eviction order. `working_set` returns a pod's usage.
pub fn order<'a>(
    ranking: Ranking,
    exemptions: &Exemptions,
    pods: impl IntoIterator<Item = &'a Pod>,
    working_set: impl Fn(&Pod) -> Option<Bytes>,
) -> Vec<Ranked<'a>> {
    let mut ranked: Vec<_> = pods
        .into_iter()
        .filter(|pod| exemptions.of(pod).is_none())
        .map(|pod| {
            let candidate = Candidate::of(pod, working_set(pod));
            Ranked {
                pod,
                candidate,
                rank: rank(ranking, &candidate),
            }
        })
        .collect();
    ranked.sort_by(|a, b| a.rank.cmp(&b.rank).then_with(|| a.pod.uid.cmp(&b.pod.uid)));
    ranked
}
