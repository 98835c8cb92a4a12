//! One sampling pass: the cgroup index and the memory controller's files -> the figures of the API.

mod forks;
mod idle;
mod names;
mod parts;

use std::{
    collections::{HashMap, HashSet},
    time::Instant,
};

use podwarden_abi::{Account, Figure};
use podwarden_cgroup::{CgroupPath, KernelCpu, MemoryReader, ThrottleReader, Tree};
use podwarden_policy::{PodUid, QosClass, signal::ScopeName};

use crate::{
    accounting::{
        KernelSide,
        index::{AccountStore, CgroupIndex, ContainerEntry, PodEntry},
        walked::{PassStats, Walked},
    },
    api::types::{
        ContainerStats, CpuStats, MemoryStats, NetworkStats, PodRef, PodStats, ThrottlingStats,
        TierStats,
    },
    kernel::{accounts::add, walk::Walker},
};
use forks::RefusedForks;
pub use idle::Extent;
use idle::IdlePods;
use names::name;
pub use names::{Named, Names};
use parts::{below_mount, disk, exits, memory_stats, stall, throttling, walked_memory};

/// Keeps open files and the last figures between passes.
#[derive(Debug, Default)]
pub struct Sampler {
    readers: HashMap<CgroupPath, MemoryReader>,
    throttle: HashMap<CgroupPath, ThrottleReader>,
    forks: RefusedForks,
    /// CPU time by the kernel's files; only where there are no kernel programs.
    cpu: Option<HashMap<CgroupPath, KernelCpu>>,
    /// What one pass of the kernel's iterator found; files are read where it has nothing.
    walked: Walked,
    /// The kernel programs count disk, and TCP segments that are sent again.
    counted: Counted,
    last: HashMap<String, (Instant, u64)>,
    seen: HashMap<String, (Instant, u64)>,
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
            cpu: kernel.is_none().then(HashMap::new),
            counted: Counted {
                disk: counts(Figure::Disk),
                retransmits: counts(Figure::Retransmits),
            },
            ..Self::default()
        }
    }

    /// CPU time of a cgroup by its file, nanoseconds, where that is the source.
    fn file_cpu(&mut self, tree: &Tree, path: &CgroupPath) -> Option<u64> {
        let readers = self.cpu.as_mut()?;
        if !readers.contains_key(path) {
            readers.insert(path.to_owned(), KernelCpu::open(tree, path).ok()?);
        }
        let used = readers.get(path)?.usage_nanos().ok();
        if used.is_none() {
            readers.remove(path);
        }
        used
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

    /// Notes which pods ran since the last call; returns whether any did, came or went. Call before a pass without a
    /// reader.
    pub fn look(&mut self, index: &CgroupIndex, figures: &impl AccountStore) -> bool {
        self.idle.look(index, figures)
    }

    /// The pods that ran between the last two calls of [`Sampler::look`].
    pub fn ran(&self) -> &HashSet<PodUid> {
        self.idle.ran()
    }

    /// Reads what `extent` says once.
    pub fn sample(
        &mut self,
        extent: Extent,
        tree: &Tree,
        index: &CgroupIndex,
        figures: &impl AccountStore,
        names: &impl Names,
        tiers: &[TierInfo],
    ) -> Sample {
        let pass = Pass {
            now: Instant::now(),
            time: crate::base::clock::now_text(),
        };
        self.forks.begin(pass.now);
        let mut sums: HashMap<QosClass, Account> = HashMap::new();
        let mut pods = Vec::with_capacity(index.pods().len());
        for (uid, entry) in index.pods() {
            let (mut pod, total) = match self.idle.unchanged(extent, uid) {
                Some(unchanged) => unchanged,
                None => self.pod(&pass, tree, index, figures, uid, entry),
            };
            if extent != Extent::Read {
                self.idle.keep(uid, &pod, &total);
            }
            name(&mut pod, uid, names);
            add(sums.entry(entry.class).or_default(), &total);
            pods.push(pod);
        }
        pods.sort_by(|a, b| sort_key(a).cmp(&sort_key(b)));
        let tiers = self.tiers(&pass, tree, index, figures, &sums, tiers);
        if extent == Extent::Ran {
            self.last.extend(self.seen.drain());
        } else {
            self.last = std::mem::take(&mut self.seen);
        }
        self.last_pass = Some(pass.now);
        self.idle.end(extent, index);
        Sample { pods, tiers }
    }

    /// A cgroup is gone: close its files, which hold its memory in the kernel.
    pub fn close(&mut self, path: &CgroupPath) {
        self.walked.close(path);
        self.readers.remove(path);
        self.throttle.remove(path);
        self.forks.close(path);
        if let Some(cpu) = &mut self.cpu {
            cpu.remove(path);
        }
    }

    /// Reads a pod; [`name`] adds what it is called.
    fn pod(
        &mut self,
        pass: &Pass,
        tree: &Tree,
        index: &CgroupIndex,
        figures: &impl AccountStore,
        uid: &PodUid,
        entry: &PodEntry,
    ) -> (PodStats, Account) {
        let mut total = index.pod_only(entry, figures);
        let mut containers = Vec::with_capacity(entry.containers.len());
        for (id, container) in &entry.containers {
            let account = index.container(container, figures);
            add(&mut total, &account);
            if container.live {
                containers.push(self.container(pass, tree, uid, id, container, &account));
            }
        }
        if let Some(used) = self.file_cpu(tree, &entry.path) {
            total.cpu_ns = used;
        }
        let mut cpu = self.cpu(pass, uid, &total);
        let own = self.throttling(tree, &entry.path);
        let below = containers
            .iter()
            .filter_map(|one: &ContainerStats| one.cpu.throttling);
        cpu.throttling = own.into_iter().chain(below).reduce(|a, b| ThrottlingStats {
            periods: a.periods + b.periods,
            throttled_periods: a.throttled_periods + b.throttled_periods,
            throttled_nano_seconds: a.throttled_nano_seconds + b.throttled_nano_seconds,
        });
        let stats = PodStats {
            qos_class: entry.class.to_string(),
            cgroup: below_mount(tree, &entry.path),
            cpu,
            memory: self.memory(pass, tree, &entry.path),
            stall: stall(&total),
            exits: exits(&total),
            disk: self.counted.disk.then(|| disk(&total)),
            network: self.network(pass, &total),
            refused_forks: self.forks.of_pod(tree, &entry.path, &containers),
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
        uid: &PodUid,
        id: &str,
        entry: &ContainerEntry,
        account: &Account,
    ) -> ContainerStats {
        let mut account = *account;
        if let Some(used) = self.file_cpu(tree, &entry.path) {
            account.cpu_ns = used;
        }
        let account = &account;
        let mut cpu = self.cpu(pass, &format!("{uid}/{id}"), account);
        cpu.throttling = self.throttling(tree, &entry.path);
        ContainerStats {
            name: id.to_owned(),
            id: id.to_owned(),
            sandbox: false,
            cpu,
            memory: self.memory(pass, tree, &entry.path),
            stall: stall(account),
            exits: exits(account),
            disk: self.counted.disk.then(|| disk(account)),
            refused_forks: self.forks.of(tree, &entry.path),
        }
    }

    fn tiers(
        &mut self,
        pass: &Pass,
        tree: &Tree,
        index: &CgroupIndex,
        figures: &impl AccountStore,
        live: &HashMap<QosClass, Account>,
        tiers: &[TierInfo],
    ) -> Vec<TierStats> {
        let of = |class| {
            let mut sum = index.gone(class, figures);
            add(&mut sum, &live.get(&class).copied().unwrap_or_default());
            sum
        };
        tiers
            .iter()
            .map(|tier| {
                let mut account = match tier.name.tier() {
                    Some(class) => of(class),
                    None => {
                        let mut all = index.others(figures);
                        for class in [
                            QosClass::Guaranteed,
                            QosClass::Burstable,
                            QosClass::BestEffort,
                        ] {
                            add(&mut all, &of(class));
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
                    cpu: self.cpu(pass, &format!("tier {}", tier.name), &account),
                    memory: self.memory(pass, tree, &tier.path),
                    armed_level_bytes: tier.level,
                    convergence: None,
                }
            })
            .collect()
    }

    /// CPU figures; the rate is over the time since the last pass: up to that one nothing was used where it did not
    /// read this key.
    fn cpu(&mut self, pass: &Pass, key: &str, account: &Account) -> CpuStats {
        let rate = self.last.get(key).and_then(|(then, ns)| {
            let then = self.last_pass.map_or(*then, |last| last.max(*then));
            let window = u64::try_from(pass.now.duration_since(then).as_nanos()).ok()?;
            let used = account.cpu_ns.saturating_sub(*ns);
            let nano_cores = u128::from(used) * 1_000_000_000
                / u128::from(std::num::NonZero::new(window)?.get());
            u64::try_from(nano_cores).ok()
        });
        self.seen.insert(key.to_owned(), (pass.now, account.cpu_ns));
        CpuStats {
            time: pass.time.clone(),
            usage_core_nano_seconds: account.cpu_ns,
            usage_nano_cores: rate,
            run_queue_wait_nano_seconds: account.wait_ns,
            run_queue_wait_histogram: account.wait_hist.to_vec(),
            context_switches: account.switches,
            throttling: None,
        }
    }

    /// How often a cgroup reached its quota; `None` where it has had none, or is gone.
    fn throttling(&mut self, tree: &Tree, path: &CgroupPath) -> Option<ThrottlingStats> {
        if let Some(figures) = self.walked.throttling(tree, path) {
            return throttling(figures);
        }
        if !self.throttle.contains_key(path) {
            let reader = ThrottleReader::open(tree, path).ok()?;
            self.throttle.insert(path.to_owned(), reader);
        }
        let Ok(figures) = self.throttle.get(path)?.read() else {
            self.throttle.remove(path);
            return None;
        };
        throttling(figures)
    }

    /// Memory figures; `None` when the cgroup is gone.
    fn memory(&mut self, pass: &Pass, tree: &Tree, path: &CgroupPath) -> Option<MemoryStats> {
        if path.is_root() {
            return None;
        }
        if let Some(walked) = self.walked.memory(tree, path) {
            return Some(walked_memory(&pass.time, walked));
        }
        if !self.readers.contains_key(path) {
            let reader = MemoryReader::open(tree, path).ok()?;
            self.readers.insert(path.to_owned(), reader);
        }
        let stats = self.readers.get(path).and_then(|r| read(pass, r));
        if stats.is_none() {
            // Gone, or made anew under the same name: open again next time.
            self.readers.remove(path);
        }
        stats
    }
}

struct Pass {
    now: Instant,
    time: String,
}

fn read(pass: &Pass, reader: &MemoryReader) -> Option<MemoryStats> {
    let (usage, stat) = (reader.usage().ok()?, reader.stat().ok()?);
    Some(memory_stats(&pass.time, usage, stat, reader.limit().ok()?))
}

/// Guaranteed, Burstable, BestEffort; then by name.
fn sort_key(pod: &PodStats) -> (u8, &str, &str, &str) {
    let tier = match pod.qos_class.as_str() {
        "Guaranteed" => 0,
        "Burstable" => 1,
        _ => 2,
    };
    let PodRef {
        name,
        namespace,
        uid,
    } = &pod.pod_ref;
    (tier, namespace, name, uid)
}
