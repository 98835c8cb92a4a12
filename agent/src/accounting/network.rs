//! The counters of the pods' network interfaces, as cAdvisor reads them: `/proc/PID/net/dev` of a process of the pod.
//!
//! The kernel counts them for every network namespace anyhow. Reading costs some 20 us a pod, and finding a process of it
//! some 30 more, so that on a node with many pods a pass reads some of them: those that were read longest ago, and each at
//! least every [`FRESH`].

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::File,
    io::Read as _,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::Path,
    time::{Duration, Instant},
};

use podwarden_cgroup::{CgroupPath, Tree};
use podwarden_policy::PodUid;
use rustix::fs::{Mode, OFlags, open, openat};

use crate::{
    accounting::index::PodEntry,
    api::types::{InterfaceStats, NetworkStats, PodStats},
    base::clock,
};

/// Pods that every pass reads, if there are so many.
const AT_ONCE: usize = 32;

/// No pod's figures are older, apart from the time between two passes.
const FRESH: Duration = Duration::from_secs(10);

/// As [`FRESH`], for a pod none of whose tasks ran, while there is no reader: the kernel may still count what it forwards
/// or drops for the pod.
const FRESH_ASLEEP: Duration = Duration::from_secs(60);

/// For so long a pod is read by the same process, as long as it runs: it may have left the pod's cgroups.
const SAME_PROCESS: Duration = Duration::from_secs(60);

/// The interface that the kubelet's Summary API takes for a pod's own.
const DEFAULT: &str = "eth0";

/// What was read of each pod.
#[derive(Debug, Default)]
pub struct PodNetworks {
    known: HashMap<PodUid, Known>,
    last_pass: Option<Instant>,
    text: String,
}

#[derive(Debug)]
struct Known {
    process: Option<Process>,
    at: Instant,
    /// A task of the pod has run since, as far as has been looked.
    ran: bool,
    stats: Option<NetworkStats>,
}

/// A process of a pod. That its directory is open keeps neither it nor its network.
#[derive(Debug)]
struct Process {
    directory: OwnedFd,
    found: Instant,
}

impl PodNetworks {
    /// Puts the figures beside the others of each pod; `entries` are the pods' cgroups. Without a reader `ran` has the
    /// pods whose tasks ran since the last pass.
    pub fn pass(
        &mut self,
        tree: &Tree,
        entries: &BTreeMap<PodUid, PodEntry>,
        pods: &mut [PodStats],
        ran: Option<&HashSet<PodUid>>,
    ) {
        let now = Instant::now();
        for uid in ran.into_iter().flatten() {
            if let Some(known) = self.known.get_mut(uid) {
                known.ran = true;
            }
        }
        let since = self.last_pass.replace(now).map(|last| now - last);
        self.known.retain(|uid, _| entries.contains_key(uid));
        let due = |pod: &&PodStats| {
            let known = self.known.get(&pod.pod_ref.uid);
            ran.is_none() || known.is_none_or(|known| is_due(now - known.at, known.ran))
        };
        let mut oldest_first: Vec<&PodStats> = pods.iter().filter(due).collect();
        oldest_first.sort_by_key(|pod| self.known.get(&pod.pod_ref.uid).map(|known| known.at));
        let node = self.node();
        for pod in oldest_first.into_iter().take(quota(pods.len(), since)) {
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
                ran: false,
                // A pod between two containers keeps what it had.
                stats: stats.or(had),
            };
            self.known.insert(uid.clone(), known);
        }
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

/// Whether a pod is read without a reader whose figures have this age.
fn is_due(age: Duration, ran: bool) -> bool {
    age >= if ran { FRESH } else { FRESH_ASLEEP }
}

/// How many of `pods` a pass reads that comes `since` after the last one.
fn quota(pods: usize, since: Option<Duration>) -> usize {
    let Some(since) = since else { return pods };
    let due = (pods as u128 * since.as_nanos()).div_ceil(FRESH.as_nanos());
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
    let [
        rx_bytes,
        rx_packets,
        rx_errors,
        rx_dropped,
        _,
        _,
        _,
        _,
        transmitted @ ..,
    ] = &numbers[..]
    else {
        return None;
    };
    let [tx_bytes, tx_packets, tx_errors, tx_dropped, ..] = transmitted else {
        return None;
    };
    Some(InterfaceStats {
        name: name.to_owned(),
        rx_bytes: *rx_bytes,
        rx_packets: *rx_packets,
        rx_errors: *rx_errors,
        rx_dropped: *rx_dropped,
        tx_bytes: *tx_bytes,
        tx_packets: *tx_packets,
        tx_errors: *tx_errors,
        tx_dropped: *tx_dropped,
    })
}

#[cfg(test)]
mod tests {
    use podwarden_cgroup::{Hierarchies, Version};
    use podwarden_policy::QosClass;

    use super::*;

    /// A name may touch its first counter, and old aliases have a colon of their own no more.
    const TEXT: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 1104 12 0 0 0 0 0 0 1104 12 0 0 0 0 0 0
  eth0:1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16
  net1: 18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
";

    #[test]
    fn interfaces_are_as_the_file_says() {
        let found = interfaces(TEXT);
        let names: Vec<_> = found.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["eth0", "net1"]);
        let eth0 = &found[0];
        let received = [
            eth0.rx_bytes,
            eth0.rx_packets,
            eth0.rx_errors,
            eth0.rx_dropped,
        ];
        let sent = [
            eth0.tx_bytes,
            eth0.tx_packets,
            eth0.tx_errors,
            eth0.tx_dropped,
        ];
        assert_eq!((received, sent), ([1, 2, 3, 4], [9, 10, 11, 12]));
        assert_eq!(found[1].rx_bytes, u64::MAX);
        assert_eq!(interfaces("  eth0: 1 2 3\n"), []);
    }

    #[test]
    fn a_pod_is_read_by_the_same_process_until_it_ends_or_a_minute_has_passed() {
        let dir = tempfile::tempdir().unwrap();
        let mount = dir.path().to_owned();
        let hierarchies = Hierarchies {
            version: Version::V2,
            v2_mount: Some(mount),
            controllers: BTreeMap::new(),
        };
        let tree = Tree::new(hierarchies, "").unwrap();
        let mut networks = PodNetworks::default();
        let (entry, pod) = (PodEntry::new(QosClass::Burstable), PodStats::default());
        let own = || Process {
            directory: directory(Path::new("/proc/self")).unwrap(),
            found: Instant::now(),
        };
        let start = Instant::now();
        let mut look = |process: Process, at| {
            let found = networks.look(&tree, &entry, &pod, Some(process), at);
            found.is_some()
        };
        assert!(look(own(), start));
        // The cgroup has no process.
        assert!(!look(own(), start + 2 * SAME_PROCESS));
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let path = format!("/proc/{}", child.id());
        let process = || Process {
            directory: directory(Path::new(&path)).unwrap(),
            found: start,
        };
        let ended = process();
        assert!(look(process(), start));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!look(ended, start));
    }

    #[test]
    fn each_pod_is_read_in_ten_seconds() {
        assert_eq!(quota(1000, None), 1000);
        assert_eq!(quota(1000, Some(FRESH)), 1000);
        assert_eq!(quota(1000, Some(Duration::from_secs(1))), 100);
        assert_eq!(quota(1000, Some(Duration::from_millis(100))), AT_ONCE);
        assert_eq!(quota(10, Some(Duration::from_millis(100))), AT_ONCE);
    }

    #[test]
    fn without_a_reader_a_pod_that_sleeps_is_read_once_a_minute() {
        let seconds = Duration::from_secs;
        assert!(!is_due(seconds(9), true));
        assert!(is_due(seconds(10), true));
        assert!(!is_due(seconds(59), false));
        assert!(is_due(seconds(60), false));
    }

    #[test]
    fn this_process_is_in_some_network() {
        let mut networks = PodNetworks::default();
        let own = directory(Path::new("/proc/self")).unwrap();
        let thread = directory(Path::new("/proc/thread-self")).unwrap();
        let inode = networks.interfaces(&own);
        assert!(inode.is_some());
        assert!(networks.text.contains("lo:"));
        assert_eq!(networks.interfaces(&thread), inode);
    }
}
