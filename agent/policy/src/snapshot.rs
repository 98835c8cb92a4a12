//! Everything a plan depends on.

use alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{
    container::ContainerOptions,
    evict::{Exemptions, Ranking},
    limits::LimitOptions,
    model::{Node, Pod, PodUid},
    name::CgroupName,
    pressure::Crossing,
    settings::Observed,
    units::Bytes,
};

/// Everything a plan depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// The machine and the reserves.
    pub node: Node,
    /// Configuration of limits.
    #[serde(default)]
    pub limits: LimitOptions,
    /// Configuration of what only containers have.
    #[serde(default)]
    pub containers: ContainerOptions,
    /// Who writes what.
    #[serde(default)]
    pub ownership: Ownership,
    /// Which controllers there are to write to.
    #[serde(default)]
    pub controllers: Controllers,
    /// Who is evicted first.
    #[serde(default)]
    pub ranking: Ranking,
    /// Who is never evicted.
    #[serde(default)]
    pub exemptions: Exemptions,
    /// The `kubepods` cgroup.
    pub kubepods: CgroupName,
    /// The kernel's page size; memory limits are kept in whole pages.
    #[serde(default = "default_page_size")]
    pub page_size: Bytes,
    /// What a memory limit stays above usage, at least.
    #[serde(default = "default_margin")]
    pub margin: Bytes,
    /// The pods that are to run, in any order. Of two with one uid the lesser counts, which is the
    /// first by name.
    pub pods: Vec<Pod>,
    /// A source has not delivered its list yet, so more pods may exist. Nothing is removed
    /// then, and values that are sums over pods stay as they are.
    #[serde(default)]
    pub incomplete: bool,
    /// The cgroups that exist at or below `kubepods`, and those of [`crate::model::Enforcement`].
    #[serde(default)]
    pub cgroups: BTreeMap<CgroupName, Observed>,
    /// Pods that ask for reclaimed resources get shares, quota and memory limit from them.
    #[serde(default)]
    pub enforce_reclaimed: bool,
    /// The cgroups of containers of pods that ask for reclaimed resources.
    #[serde(default)]
    pub container_cgroups: Vec<ContainerCgroup>,
    /// The threshold that is crossed and due, if any.
    pub crossing: Option<Crossing>,
}

fn default_page_size() -> Bytes {
    Bytes(4096)
}

fn default_margin() -> Bytes {
    DEFAULT_MARGIN
}

/// What a memory limit stays above usage at the least.
pub const DEFAULT_MARGIN: Bytes = Bytes::mebi(16);

/// What every CPU may have charged ahead of use, bytes (`MEMCG_CHARGE_BATCH` of 64 pages, kernel
/// `include/linux/memcontrol.h`).
pub const CHARGE_BATCH: Bytes = Bytes(256 << 10);

/// What a memory limit stays above usage on a machine with so many CPUs online: twice what all of them may have
/// charged ahead, once in the usage that was read and once more until the limit is written; never below
/// [`DEFAULT_MARGIN`].
pub const fn margin(cpus: u32) -> Bytes {
    let ahead = 2 * CHARGE_BATCH.0 * cpus as u64;
    if ahead > DEFAULT_MARGIN.0 {
        Bytes(ahead)
    } else {
        DEFAULT_MARGIN
    }
}

impl Snapshot {
    /// A node with nothing on it.
    pub fn new(node: Node, kubepods: CgroupName) -> Self {
        Self {
            node,
            limits: LimitOptions::default(),
            containers: ContainerOptions::default(),
            ownership: Ownership::default(),
            controllers: Controllers::default(),
            ranking: Ranking::default(),
            exemptions: Exemptions::default(),
            kubepods,
            page_size: Bytes(4096),
            margin: DEFAULT_MARGIN,
            pods: Vec::new(),
            incomplete: false,
            cgroups: BTreeMap::new(),
            enforce_reclaimed: false,
            container_cgroups: Vec::new(),
            crossing: None,
        }
    }
}

/// The cgroup of a container, which its runtime made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerCgroup {
    /// The container's pod.
    pub pod: PodUid,
    /// The container's name, where the runtime has told it. Sandboxes are not listed.
    pub container: Option<String>,
    /// Below the pod's cgroup, by the runtime's name for it.
    pub cgroup: CgroupName,
}

/// Who writes the tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Ownership {
    /// podwarden alone: it makes, keeps and removes the whole tree.
    #[default]
    Own,
    /// A kubelet does; podwarden writes only what the operator gave it: the tiers' reserve and
    /// memory reservation. It makes and removes nothing.
    Assist,
}

/// Controllers that are enabled for the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Controllers {
    /// Shares or weight.
    pub cpu: bool,
    /// CFS bandwidth (`CONFIG_CFS_BANDWIDTH`).
    pub cpu_bandwidth: bool,
    /// The memory controller.
    pub memory: bool,
    /// `memory.min` and `memory.low`, which are cgroup v2's.
    pub memory_protection: bool,
    /// The pids controller.
    pub pids: bool,
    /// The hugetlb controller.
    pub hugetlb: bool,
}

impl Default for Controllers {
    fn default() -> Self {
        Self {
            cpu: true,
            cpu_bandwidth: true,
            memory: true,
            memory_protection: false,
            pids: true,
            hugetlb: true,
        }
    }
}
