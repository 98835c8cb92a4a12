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

fn tree(mount: &Path) -> Tree {
    let hierarchies = Hierarchies {
        version: Version::V2,
        v2_mount: Some(mount.to_owned()),
        controllers: BTreeMap::new(),
    };
    Tree::new(hierarchies, "").unwrap()
}

#[test]
fn a_pod_is_read_by_the_same_process_until_it_ends_or_minutes_have_passed() {
    let dir = tempfile::tempdir().unwrap();
    let tree = tree(dir.path());
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
fn each_pod_is_read_in_ten_seconds_for_a_reader_and_in_a_minute_without() {
    let seconds = Duration::from_secs;
    assert_eq!(quota(1000, None, FRESH), 1000);
    assert_eq!(quota(1000, Some(FRESH), FRESH), 1000);
    assert_eq!(quota(1000, Some(seconds(1)), FRESH), 100);
    assert_eq!(quota(1200, Some(seconds(2)), FRESH_UNREAD), 40);
    let short = Some(Duration::from_millis(100));
    assert_eq!(quota(1000, short, FRESH), AT_ONCE);
    assert_eq!(quota(10, short, FRESH), AT_ONCE);
}

/// Pods whose cgroups have no process: when they were looked at is of interest.
struct Looks {
    tree: Tree,
    networks: PodNetworks,
    entries: BTreeMap<PodUid, PodEntry>,
    pods: Vec<PodStats>,
    now: Instant,
    _mount: tempfile::TempDir,
}

impl Looks {
    fn at(pods: usize) -> Self {
        let mount = tempfile::tempdir().unwrap();
        let uids = (0..pods).map(|n| PodUid::from(format!("{n:04}")));
        let pod = |uid: PodUid| {
            let mut pod = PodStats::default();
            pod.pod_ref.uid = uid;
            pod
        };
        Self {
            tree: tree(mount.path()),
            networks: PodNetworks::default(),
            entries: (uids.clone())
                .map(|uid| (uid, PodEntry::new(QosClass::Burstable)))
                .collect(),
            pods: uids.map(pod).collect(),
            now: Instant::now(),
            _mount: mount,
        }
    }

    /// How many pods a pass reads so long after the one before.
    fn pass(&mut self, seconds: u64, has_reader: bool) -> usize {
        self.now += Duration::from_secs(seconds);
        let Self {
            tree,
            entries,
            pods,
            now,
            ..
        } = self;
        self.networks.pass(*now, tree, entries, pods, has_reader);
        let known = self.networks.known.values_mut();
        let read = known.filter(|known| known.at == *now);
        // As if all had a process but the first.
        let with_process = read.map(|known| known.stats = Some(NetworkStats::default()));
        let count = with_process.count();
        let first = self.networks.known.get_mut(&PodUid::from("0000")).unwrap();
        first.stats = None;
        count
    }
}

#[test]
fn the_first_pass_for_a_reader_makes_up_for_the_time_without() {
    let mut looks = Looks::at(1000);
    assert_eq!(looks.pass(0, false), 1000, "every pod is new");
    assert_eq!(looks.pass(30, false), 0);
    assert_eq!(looks.pass(1, true), FIRST_FOR_READER);
    for left in [100, 100, 100, 100, 88 + 1] {
        assert_eq!(looks.pass(1, true), left);
    }
    assert_eq!(looks.pass(1, true), AT_ONCE, "none is ten seconds old");
    assert_eq!(looks.pass(1, false), 0);
    assert_eq!(looks.pass(53, false), 512 - 31, "a minute old");
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
