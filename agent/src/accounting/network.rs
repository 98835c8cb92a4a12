//! The counters of the pods' network interfaces, as cAdvisor reads them: `/proc/PID/net/dev` of a process of the pod.
//!
//! The kernel counts them for every network namespace anyhow. Reading costs some 20 us a pod, and finding a process of it
//! some 30 more, so that on a node with many pods a pass reads some of them: those that were read longest ago, and each at
//! least every [`FRESH`] while there is a reader. The first pass for a reader reads as many as it may
//! keep the reader waiting for.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Read as _,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::Path,
    time::{Duration, Instant},
};

use foldhash::HashMap;
use podwarden_cgroup::{CgroupPath, Tree};
use podwarden_policy::PodUid;
use rustix::fs::{Mode, OFlags, open, openat};

use crate::{
    accounting::index::{PodEntry, forget_gone},
    api::types::{InterfaceStats, NetworkStats, PodStats},
    base::clock,
};

/// Pods that every pass reads, if there are so many.
const AT_ONCE: usize = 32;

/// No pod's figures are older while there is a reader, apart from the time between two passes.
const FRESH: Duration = Duration::from_secs(10);

/// The same while there is none.
const FRESH_UNREAD: Duration = Duration::from_secs(60);

/// The first pass for a reader reads so many, some 20 ms of work; the passes after it read the others.
const FIRST_FOR_READER: usize = 512;

/// For so long a pod is read by the same process, as long as it runs: it may have left the pod's cgroups.
const SAME_PROCESS: Duration = Duration::from_secs(300);

/// The interface that the kubelet's Summary API takes for a pod's own.
const DEFAULT: &str = "eth0";

/// What was read of each pod.
#[derive(Debug, Default)]
pub struct PodNetworks {
    known: HashMap<PodUid, Known>,
    last_pass: Option<Instant>,
    had_reader: bool,
    text: String,
}

#[derive(Debug)]
struct Known {
    process: Option<Process>,
    at: Instant,
    stats: Option<NetworkStats>,
}

/// A process of a pod. That its directory is open keeps neither it nor its network.
#[derive(Debug)]
struct Process {
    directory: OwnedFd,
    found: Instant,
}

impl PodNetworks {
    /// Puts the figures beside the others of each pod; `entries` are the pods' cgroups.
    pub fn pass(
        &mut self,
        now: Instant,
        tree: &Tree,
        entries: &BTreeMap<PodUid, PodEntry>,
        pods: &mut [PodStats],
        has_reader: bool,
    ) {
        let since = self.last_pass.replace(now).map(|last| now - last);
        let had_reader = std::mem::replace(&mut self.had_reader, has_reader);
        let fresh = if has_reader { FRESH } else { FRESH_UNREAD };
        let at_least = if has_reader { AT_ONCE } else { 0 };
        let at_most = if has_reader && !had_reader {
            FIRST_FOR_READER
        } else {
            quota(pods.len(), since, fresh)
        };
        let mut read = self.oldest_first(pods, now);
        let due = read.iter().take_while(|(age, _)| *age >= fresh).count();
        read.truncate(due.max(at_least).min(at_most));
        let node = if read.is_empty() { None } else { self.node() };
        for (_, at) in read {
            let pod = &pods[at];
            let uid = &pod.pod_ref.uid;
            let Some(entry) = entries.get(uid) else {
                continue;
            };
            let before = self.known.remove(uid);
            let (before, had) = before.map_or((None, None), |known| (known.process, known.stats));
            let (process, namespace) = self.look(tree, entry, pod, before, now).unzip();
            let stats = namespace.map(|namespace| self.stats(namespace, node));
            let known = Known {
                process,
                at: now,
                // A pod between two containers keeps what it had.
                stats: stats.or(had),
            };
            self.known.insert(uid.clone(), known);
        }
        forget_gone(entries, &mut self.known);
        for pod in pods {
            let known = self.known.get(&pod.pod_ref.uid);
            let counted = pod.network.take();
            pod.network = known.and_then(|known| {
                Some(NetworkStats {
                    tcp_retransmitted_segments: counted
                        .and_then(|counted| counted.tcp_retransmitted_segments),
                    ..known.stats.clone()?
                })
            });
        }
    }

    /// The age of what is known of each pod, and its place. A pod that had no process may have one by now: it is due for a
    /// reader.
    fn oldest_first(&self, pods: &[PodStats], now: Instant) -> Vec<(Duration, usize)> {
        let age = |pod: &PodStats| match self.known.get(&pod.pod_ref.uid) {
            Some(known) if known.stats.is_some() => now - known.at,
            Some(known) => now - known.at + FRESH,
            None => Duration::MAX,
        };
        let mut pods: Vec<_> = pods.iter().map(age).zip(0..).collect();
        pods.sort_unstable_by(|a, b| b.cmp(a));
        pods
    }

    /// What stands for the node's network namespace.
    fn node(&mut self) -> Option<u64> {
        let process = directory(Path::new("/proc/1"))?;
        self.interfaces(&process)
    }

    /// Reads the interfaces by the process that they were read by before, or by another of the pod; returns it, and what
    /// stands for its network namespace.
    fn look(
        &mut self,
        tree: &Tree,
        entry: &PodEntry,
        pod: &PodStats,
        before: Option<Process>,
        now: Instant,
    ) -> Option<(Process, u64)> {
        if let Some(process) = before.filter(|before| now < before.found + SAME_PROCESS)
            && let Some(namespace) = self.interfaces(&process.directory)
        {
            return Some((process, namespace));
        }
        let (directory, namespace) = self.find(tree, entry, pod)?;
        let found = now;
        Some((Process { directory, found }, namespace))
    }

    /// By a process of the sandbox, else of another container, else of the pod's own cgroup.
    fn find(&mut self, tree: &Tree, entry: &PodEntry, pod: &PodStats) -> Option<(OwnedFd, u64)> {
        let cgroups = |sandbox: bool| {
            let containers = pod
                .containers
                .iter()
                .filter(move |one| one.sandbox == sandbox);
            containers.filter_map(|one| entry.containers.get(&one.id).map(|found| &found.path))
        };
        let mut all = cgroups(true).chain(cgroups(false)).chain([&entry.path]);
        all.find_map(|cgroup| self.of_cgroup(tree, cgroup))
    }

    /// What was read last, of this network namespace; `node` is the node's.
    fn stats(&self, namespace: u64, node: Option<u64>) -> NetworkStats {
        let host_network = Some(namespace) == node;
        let interfaces = if host_network {
            Vec::new()
        } else {
            interfaces(&self.text)
        };
        let default = interfaces.iter().find(|one| one.name == DEFAULT).cloned();
        NetworkStats {
            time: clock::now_text().into(),
            default,
            host_network,
            interfaces,
            tcp_retransmitted_segments: None,
        }
    }

    /// Reads the interfaces by the first process of a cgroup; returns its directory and what stands for its network
    /// namespace.
    ///
    /// The process may end, and its id become another's, before its directory is open: then the cgroup does not list it
    /// afterwards. What is read below an open directory of `/proc` is that process's.
    fn of_cgroup(&mut self, tree: &Tree, cgroup: &CgroupPath) -> Option<(OwnedFd, u64)> {
        let list = tree.identity_path(cgroup).ok()?.join("cgroup.procs");
        let pid = first_process(&list)?;
        let process = directory(Path::new(&format!("/proc/{pid}")))?;
        let namespace = self.interfaces(&process)?;
        (first_process(&list)? == pid).then_some((process, namespace))
    }

    /// Reads `net/dev` of a process. The file's inode is the namespace's own (`proc_register`, fs/proc/generic.c), and
    /// unlike `ns/net` it can be looked at without `CAP_SYS_PTRACE`.
    fn interfaces(&mut self, process: &OwnedFd) -> Option<u64> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let mut file = File::from(openat(process, "net/dev", flags, Mode::empty()).ok()?);
        self.text.clear();
        file.read_to_string(&mut self.text).ok()?;
        Some(file.metadata().ok()?.ino())
    }
}

/// How many of `pods` a pass reads that comes `since` after the last one, where none is to be older than `fresh`.
fn quota(pods: usize, since: Option<Duration>, fresh: Duration) -> usize {
    let Some(since) = since else { return pods };
    let due = (pods as u128 * since.as_nanos()).div_ceil(fresh.as_nanos());
    AT_ONCE.max(usize::try_from(due).unwrap_or(usize::MAX))
}

fn directory(path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open(path, flags, Mode::empty()).ok()
}

/// The first process that a `cgroup.procs` lists; `None` for one outside this pid namespace, which has the id 0.
fn first_process(list: &Path) -> Option<u32> {
    let mut start = [0; 16];
    let read = File::open(list).ok()?.read(&mut start).ok()?;
    let start = std::str::from_utf8(&start[..read]).ok()?;
    let (first, _) = start.split_once('\n')?;
    first.parse().ok().filter(|pid| *pid != 0)
}

/// From the text of `/proc/PID/net/dev` (proc_pid_net(5)), without `lo`, which cAdvisor leaves out as well.
fn interfaces(text: &str) -> Vec<InterfaceStats> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let named = lines.map(|(name, counters)| (name.trim(), counters));
    named
        .filter(|(name, _)| *name != "lo")
        .filter_map(|(name, counters)| interface(name, counters))
        .collect()
}

fn interface(name: &str, counters: &str) -> Option<InterfaceStats> {
    let numbers = counters.split_ascii_whitespace().map(|n| n.parse().ok());
    let numbers: Vec<u64> = numbers.collect::<Option<_>>()?;
    // Four that are not shown stand between what was received and what was sent.
    let (received, sent) = (numbers.get(..4)?, numbers.get(8..12)?);
    Some(InterfaceStats {
        name: name.to_owned(),
        rx_bytes: received[0],
        rx_packets: received[1],
        rx_errors: received[2],
        rx_dropped: received[3],
        tx_bytes: sent[0],
        tx_packets: sent[1],
        tx_errors: sent[2],
        tx_dropped: sent[3],
    })
}

#[cfg(test)]
mod tests;
