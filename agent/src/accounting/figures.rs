//! One sampling pass: the cgroup index and the memory controller's files -> the figures of the API.

mod idle;
mod kept;
mod names;
mod parts;
mod pids;
mod pressure;
mod read;
mod seldom;

use std::time::Instant;

use arcstr::ArcStr;
use foldhash::HashMap;
use podwarden_abi::{Account, Figure};
use podwarden_cgroup::{CgroupPath, KernelCpu, MemoryReader, ThrottleReader, Tree};
use podwarden_policy::{PodUid, QosClass, signal::ScopeName};

use crate::{
    accounting::{
        KernelSide,
        index::{AccountReader, CgroupIndex, ContainerEntry, PodEntry, forget_gone},
        walked::{PassStats, Walked},
    },
    api::types::{ContainerStats, NetworkStats, PodStats, TierStats},
    kernel::walk::Walker,
};
pub use idle::Extent;
use idle::IdlePods;
use kept::{Kept, KeptPod};
use names::in_order;
pub use names::{Named, Names};
use parts::{below_mount, class_text, disk, exits, stall};
use pids::Pids;
use pressure::Pressures;

/// Keeps open files and the last figures between passes.
#[derive(Debug, Default)]
pub struct Sampler {
    readers: HashMap<CgroupPath, MemoryReader>,
    throttle: HashMap<CgroupPath, ThrottleReader>,
    pids: Pids,
    pressures: Pressures,
    /// CPU time by the kernel's files; only where there are no kernel programs.
    cpu: Option<HashMap<CgroupPath, KernelCpu>>,
    /// What one pass of the kernel's iterator found; files are read where it has nothing.
    walked: Walked,
    /// The kernel programs count disk, and TCP segments that are sent again.
    counted: Counted,
    pods: HashMap<PodUid, KeptPod>,
    /// By their place in the list of tiers.
    tiers: Vec<Kept>,
    /// When the pass before this one was.
    last_pass: Option<Instant>,
    idle: IdlePods,
}

/// What of the accounts means something.
#[derive(Debug, Default, Clone, Copy)]
struct Counted {
    disk: bool,
    retransmits: bool,
}

/// What a pass is to read.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    pub extent: Extent,
    /// The pods of the pass before.
    pub last: &'a [PodStats],
}

/// The figures of one pass without the node's own.
#[derive(Debug, Default)]
pub struct Sample {
    /// Pods by tier, then namespace, then name.
    pub pods: Vec<PodStats>,
    /// kubepods, burstable, besteffort.
    pub tiers: Vec<TierStats>,
}

/// A tier's cgroup and the level armed on it.
#[derive(Debug, Clone)]
pub struct TierInfo {
    pub name: ScopeName,
    /// Its cgroup, relative to the root.
    pub path: CgroupPath,
    /// The level, bytes.
    pub level: Option<u64>,
}

impl Sampler {
    /// Without kernel programs CPU time is read from the cgroups' files.
    pub fn new(kernel: Option<&KernelSide>) -> Self {
        let counts = |figure| kernel.is_some_and(|kernel| kernel.counts(figure));
        Self {
            cpu: kernel.is_none().then(HashMap::default),
            counted: Counted {
                disk: counts(Figure::Disk),
                retransmits: counts(Figure::Retransmits),
            },
            ..Self::default()
        }
    }

    /// Lets the kernel gather memory and throttling of every cgroup below `root`. Call before [`Sampler::sample`].
    /// The message says that this ends here, and why.
    pub fn walk(&mut self, tree: &Tree, walker: &Walker, root: &CgroupPath) -> Option<String> {
        self.walked.pass(tree, walker, root)
    }

    /// The kernel's last pass; `None` where files are read.
    pub fn last_walk(&self) -> Option<PassStats> {
        self.walked.last()
    }

    /// What a pass without a reader is to read; `None` where no pod ran, came or went since the last call.
    pub fn look(&mut self, index: &CgroupIndex, figures: &impl AccountReader) -> Option<Extent> {
        self.idle.look(index, figures)
    }

    /// Reads what `asked` says once.
    pub fn sample(
        &mut self,
        Asked { extent, last }: Asked<'_>,
        tree: &Tree,
        index: &CgroupIndex,
        figures: &impl AccountReader,
        names: &impl Names,
        tiers: &[TierInfo],
    ) -> Sample {
        let pass = Pass {
            now: Instant::now(),
            time: crate::base::clock::now_text().into(),
        };
        self.pids.0.begin(pass.now);
        self.pressures.0.begin(pass.now);
        let last: HashMap<&PodUid, &PodStats> = match extent {
            Extent::Ran => last.iter().map(|pod| (&pod.pod_ref.uid, pod)).collect(),
            Extent::Read | Extent::Idle => HashMap::default(),
        };
        let mut sums: HashMap<QosClass, Account> = HashMap::default();
        let mut pods = Vec::with_capacity(index.pods().len());
        let mut kept = std::mem::take(&mut self.pods);
        for named in in_order(index, names) {
            let (uid, entry) = (named.uid, named.entry);
            if !kept.contains_key(uid) {
                kept.insert(uid.clone(), KeptPod::default());
            }
            let Some(kept) = kept.get_mut(uid) else {
                continue;
            };
            let unchanged = self.idle.unchanged(extent, uid, || {
                let last: &PodStats = last.get(uid).copied()?;
                Some((last.clone(), kept.total?))
            });
            let (mut pod, total) =
                unchanged.unwrap_or_else(|| self.pod(&pass, tree, index, figures, entry, kept));
            kept.total = Some(total);
            named.name(&mut pod, names);
            sums.entry(entry.class).or_default().accumulate(&total);
            pods.push(pod);
        }
        let tiers = self.tiers(&pass, tree, index, figures, &sums, tiers);
        forget_gone(index.pods(), &mut kept);
        self.pods = kept;
        self.last_pass = Some(pass.now);
        Sample { pods, tiers }
    }

    /// A cgroup is gone: close its files, which hold its memory in the kernel.
    pub fn close(&mut self, path: &CgroupPath) {
        self.readers.remove(path);
        self.throttle.remove(path);
        if let Some(cpu) = &mut self.cpu {
            cpu.remove(path);
        }
    }

    /// Reads a pod; [`names`] adds what it is called.
    fn pod(
        &mut self,
        pass: &Pass,
        tree: &Tree,
        index: &CgroupIndex,
        figures: &impl AccountReader,
        entry: &PodEntry,
        kept: &mut KeptPod,
    ) -> (PodStats, Account) {
        kept.retain(entry);
        let mut total = index.pod_only(entry, figures);
        let mut containers = Vec::with_capacity(entry.containers.len());
        for (id, container) in &entry.containers {
            let account = index.container(container, figures);
            total.accumulate(&account);
            if container.live {
                let kept = kept.container(id);
                containers.push(self.container(pass, tree, id, container, &account, kept));
            }
        }
        if let Some(used) = self.file_cpu(tree, &entry.path) {
            total.cpu_ns = used;
        }
        let cgroup = kept.cgroup(tree, &entry.path);
        let gone = kept.gone;
        let kept = &mut kept.own;
        let mut cpu = self.cpu(pass, kept, &total);
        let own = self.throttling(tree, &entry.path, kept);
        let below = containers
            .iter()
            .map(|one: &ContainerStats| one.cpu.throttling);
        cpu.throttling = kept::sum([own, gone.throttling].into_iter().chain(below));
        let stats = PodStats {
            qos_class: class_text(entry.class),
            cgroup,
            cpu,
            memory: self.memory(pass, tree, &entry.path, kept),
            stall: stall(&total),
            exits: exits(&total),
            disk: self.counted.disk.then(|| disk(&total)),
            network: self.network(pass, &total),
            pressure: (self.pressures).of(&mut self.walked, tree, &entry.path, kept),
            tasks: (self.pids).tasks(&mut self.walked, tree, &entry.path, kept),
            refused_forks: (self.pids).refused_forks_of_pod(
                &mut self.walked,
                tree,
                &entry.path,
                &containers,
                gone.refused_forks,
                kept,
            ),
            containers,
            ..PodStats::default()
        };
        (stats, total)
    }

    /// What the kernel programs count of the network.
    fn network(&self, pass: &Pass, account: &Account) -> Option<NetworkStats> {
        self.counted.retransmits.then(|| NetworkStats {
            time: pass.time.clone(),
            tcp_retransmitted_segments: Some(account.retransmits),
            ..NetworkStats::default()
        })
    }

    fn container(
        &mut self,
        pass: &Pass,
        tree: &Tree,
        id: &ArcStr,
        entry: &ContainerEntry,
        account: &Account,
        kept: &mut Kept,
    ) -> ContainerStats {
        let mut account = *account;
        if let Some(used) = self.file_cpu(tree, &entry.path) {
            account.cpu_ns = used;
        }
        let account = &account;
        let mut cpu = self.cpu(pass, kept, account);
        cpu.throttling = self.throttling(tree, &entry.path, kept);
        kept.throttling = cpu.throttling.or(kept.throttling);
        ContainerStats {
            name: id.clone(),
            id: id.clone(),
            sandbox: false,
            cpu,
            memory: self.memory(pass, tree, &entry.path, kept),
            stall: stall(account),
            exits: exits(account),
            disk: self.counted.disk.then(|| disk(account)),
            pressure: (self.pressures).of(&mut self.walked, tree, &entry.path, kept),
            tasks: (self.pids).tasks(&mut self.walked, tree, &entry.path, kept),
            refused_forks: (self.pids).refused_forks(&mut self.walked, tree, &entry.path, kept),
        }
    }

    fn tiers(
        &mut self,
        pass: &Pass,
        tree: &Tree,
        index: &CgroupIndex,
        figures: &impl AccountReader,
        live: &HashMap<QosClass, Account>,
        tiers: &[TierInfo],
    ) -> Vec<TierStats> {
        let of = |class| {
            let mut sum = index.gone(class, figures);
            sum.accumulate(&live.get(&class).copied().unwrap_or_default());
            sum
        };
        let mut kept = std::mem::take(&mut self.tiers);
        kept.resize_with(tiers.len(), Kept::default);
        let stats = tiers
            .iter()
            .zip(&mut kept)
            .map(|(tier, kept)| {
                let mut account = match tier.name.tier() {
                    Some(class) => of(class),
                    None => {
                        let mut all = index.others(figures);
                        for class in [
                            QosClass::Guaranteed,
                            QosClass::Burstable,
                            QosClass::BestEffort,
                        ] {
                            all.accumulate(&of(class));
                        }
                        all
                    }
                };
                if let Some(used) = self.file_cpu(tree, &tier.path) {
                    account.cpu_ns = used;
                }
                TierStats {
                    name: tier.name.to_string(),
                    cgroup: below_mount(tree, &tier.path),
                    cpu: self.cpu(pass, kept, &account),
                    memory: self.memory(pass, tree, &tier.path, kept),
                    armed_level_bytes: tier.level,
                    convergence: None,
                }
            })
            .collect();
        self.tiers = kept;
        stats
    }
}

struct Pass {
    now: Instant,
    time: ArcStr,
}
