//! Foreign writes: what counts as one, and how often it is answered.

#[path = "support/pods.rs"]
mod support;

use std::{collections::BTreeMap, time::Duration};

use podwarden_policy::{
    Bytes, CpuShares, MilliCpu, Node,
    desired::{self, Desired},
    drift::{BURST, FIRST_PAUSE, Judgement, LONGEST_PAUSE, REFILL, Tracker},
    limits::Limit,
    name::CgroupName,
    plan::{self, Action, Ownership, Snapshot},
    settings::{CpuShare, Observed, Setting, Value},
};
use proptest::prelude::*;
use support::pod;

const PAGE: Bytes = Bytes(4096);
const MI: u64 = 1 << 20;

/// A Burstable pod with a memory limit of 64 MiB on a node of 8 GiB, and the kernel's part of it.
struct Node1 {
    snapshot: Snapshot,
    desired: Vec<Desired>,
    pod: CgroupName,
    files: BTreeMap<CgroupName, Observed>,
    tracker: Tracker,
}

impl Node1 {
    fn new() -> Self {
        let node = Node {
            cpu_capacity: MilliCpu(2000),
            memory_capacity: Bytes::gibi(8),
            ..Node::default()
        };
        let mut snapshot = Snapshot::new(node, CgroupName::new(["kubepods"]));
        snapshot.pods = vec![pod("a", &[["100m", "64Mi", "", "64Mi"]])];
        let desired = desired::tree(&snapshot);
        let name = desired.last().unwrap().name.clone();
        let fresh = Observed {
            ours: true,
            cpu: Some(CpuShare::Shares(CpuShares(1024))),
            memory_limit: Some(Limit::Unlimited),
            pids_limit: Some(Limit::Unlimited),
            memory_usage: Some(Bytes(MI)),
            ..Observed::default()
        };
        let mut this = Self {
            snapshot,
            pod: name.clone(),
            files: desired
                .iter()
                .map(|d| (d.name.clone(), fresh.clone()))
                .collect(),
            desired,
            tracker: Tracker::default(),
        };
        this.look(0.0);
        this.look(0.0);
        assert_eq!(
            this.observed().memory_limit,
            Some(Limit::At(Bytes(64 * MI)))
        );
        this
    }

    fn observed(&mut self) -> &mut Observed {
        self.files.get_mut(&self.pod).unwrap()
    }

    /// Looks at everything at this second, and writes what is admitted.
    fn look(&mut self, seconds: f64) -> Judgement {
        self.look_at(Duration::from_secs_f64(seconds))
    }

    fn look_at(&mut self, now: Duration) -> Judgement {
        let actions = plan::corrections(&self.snapshot, &self.desired, &self.files);
        let judgement = self
            .tracker
            .judge(now, PAGE, &self.desired, &self.files, actions);
        for (action, _) in &judgement.admitted {
            let Action::Write {
                cgroup, setting, ..
            } = action
            else {
                panic!("only writes are expected: {action:?}");
            };
            let file = self.files.get_mut(cgroup).unwrap();
            match *setting {
                Setting::CpuShares(shares) => file.cpu = Some(CpuShare::Shares(shares)),
                Setting::MemoryLimit(limit) => file.memory_limit = Some(limit),
                other => panic!("not in this test: {other:?}"),
            }
        }
        judgement
    }

    fn spoil(&mut self) {
        self.observed().memory_limit = Some(Limit::At(Bytes(900 * MI)));
    }
}

/// How many deviations were corrected.
fn corrected(judgement: &Judgement) -> usize {
    let deviations = judgement.admitted.iter().filter_map(|(_, d)| d.as_ref());
    deviations.count()
}

#[test]
fn a_foreign_value_is_a_deviation_and_goes_with_old_and_new() {
    let mut node = Node1::new();
    node.spoil();
    let judgement = node.look(1.0);
    let (_, deviation) = &judgement.admitted[0];
    let deviation = deviation.as_ref().unwrap();
    assert_eq!(deviation.cgroup, node.pod);
    assert_eq!(deviation.property, "memory limit");
    assert_eq!(deviation.found, Value::Limit(Limit::At(Bytes(900 * MI))));
    assert_eq!(deviation.wanted, Value::Limit(Limit::At(Bytes(64 * MI))));
    assert!(!deviation.contested);
    assert_eq!(node.look(1.0), Judgement::default());
}

#[test]
fn ones_own_steps_and_first_values_are_none() {
    let mut node = Node1::new();
    // Usage is above the limit that is wanted, so it stays above usage and follows it down.
    node.observed().memory_usage = Some(Bytes(800 * MI));
    node.spoil();
    assert_eq!(corrected(&node.look(1.0)), 1);
    for (at, usage) in [(2.0, 500), (3.0, 300), (4.0, 100), (5.0, 1)] {
        node.observed().memory_usage = Some(Bytes(usage * MI));
        let judgement = node.look(at);
        assert_eq!(judgement.admitted.len(), 1, "at {usage} MiB");
        assert_eq!(corrected(&judgement), 0, "at {usage} MiB");
    }
    assert_eq!(
        node.observed().memory_limit,
        Some(Limit::At(Bytes(64 * MI)))
    );
}

#[test]
fn what_cannot_be_lowered_yet_is_a_deviation_once_it_can() {
    let mut node = Node1::new();
    node.observed().memory_usage = Some(Bytes(63 * MI));
    // Above what is wanted and below usage with its margin: it must stay.
    node.observed().memory_limit = Some(Limit::At(Bytes(70 * MI)));
    assert_eq!(node.look(1.0), Judgement::default());
    node.observed().memory_usage = Some(Bytes(MI));
    assert_eq!(corrected(&node.look(2.0)), 1);
}

#[test]
fn a_contest_over_what_cannot_be_lowered_is_looked_at_once_a_pause() {
    let mut node = Node1::new();
    for _ in 0..=BURST {
        node.spoil();
        node.look(1.0);
    }
    node.observed().memory_usage = Some(Bytes(63 * MI));
    node.observed().memory_limit = Some(Limit::At(Bytes(70 * MI)));
    let next = node.tracker.next_look().unwrap();
    assert_eq!(node.look_at(next), Judgement::default());
    assert_eq!(node.tracker.next_look(), Some(next + FIRST_PAUSE));
    let name = node.pod.clone();
    node.tracker.forget(&name);
    assert_eq!(
        (node.tracker.contested(), node.tracker.next_look()),
        (0, None)
    );
}

#[test]
fn a_changed_pod_is_none() {
    let mut node = Node1::new();
    node.snapshot.pods = vec![pod("a", &[["200m", "32Mi", "", "32Mi"]])];
    node.desired = desired::tree(&node.snapshot);
    let judgement = node.look(1.0);
    assert!(judgement.admitted.len() >= 2);
    assert_eq!(corrected(&judgement), 0);
}

#[test]
fn a_refused_write_is_no_deviation_afterwards() {
    let mut node = Node1::new();
    node.spoil();
    let judgement = node.look(1.0);
    node.spoil();
    node.tracker.refused(&judgement.admitted[0].0);
    let judgement = node.look(2.0);
    assert_eq!((judgement.admitted.len(), corrected(&judgement)), (1, 0));
}

#[test]
fn a_contest_is_said_once_and_paused_and_ends() {
    let mut node = Node1::new();
    let mut now = 1.0;
    for _ in 0..BURST {
        node.spoil();
        assert_eq!(corrected(&node.look(now)), 1);
        now += 0.01;
    }
    node.spoil();
    let judgement = node.look(now);
    assert_eq!((judgement.admitted.len(), judgement.began.len()), (0, 1));
    assert_eq!(node.tracker.contested(), 1);
    assert!(node.tracker.is_contested(&node.pod));
    let mut pause = FIRST_PAUSE;
    let mut next = node.tracker.next_look().unwrap();
    assert_eq!(next, Duration::from_secs_f64(now) + pause);
    for _ in 0..10 {
        // Nothing happens in the pause, and nothing is said again.
        let judgement = node.look_at(next - Duration::from_millis(1));
        assert_eq!(judgement, Judgement::default());
        assert!(node.tracker.due(next - Duration::from_millis(1)).is_empty());
        assert_eq!(node.tracker.due(next), [&node.pod]);
        let judgement = node.look_at(next);
        assert_eq!((corrected(&judgement), judgement.began.len()), (1, 0));
        assert!(judgement.admitted[0].1.as_ref().unwrap().contested);
        node.spoil();
        pause = (2 * pause).min(LONGEST_PAUSE);
        assert_eq!(node.tracker.next_look(), Some(next + pause));
        next += pause;
    }
    assert_eq!(pause, LONGEST_PAUSE);
    // The other one gives up: one last correction, and a pause later it is over.
    assert_eq!(corrected(&node.look_at(next)), 1);
    assert_eq!(node.look_at(next + pause / 2), Judgement::default());
    let judgement = node.look_at(next + pause);
    assert_eq!(judgement.ended.len(), 1);
    assert_eq!(judgement.ended[0].corrections, 11);
    assert_eq!(node.tracker.contested(), 0);
    assert_eq!(node.tracker.next_look(), None);
    node.spoil();
    assert_eq!(corrected(&node.look_at(next + 2 * pause)), 1);
}

#[test]
fn a_writer_once_a_minute_is_corrected_each_time() {
    let mut node = Node1::new();
    for minute in 1..200 {
        node.spoil();
        let judgement = node.look(60.0 * f64::from(minute));
        assert_eq!((corrected(&judgement), judgement.began.len()), (1, 0));
    }
}

#[test]
fn other_files_of_a_contested_cgroup_are_corrected() {
    let mut node = Node1::new();
    for _ in 0..=BURST {
        node.spoil();
        node.look(1.0);
    }
    node.observed().cpu = Some(CpuShare::Shares(CpuShares(7)));
    let judgement = node.look(1.1);
    assert_eq!(corrected(&judgement), 1);
    assert_eq!(
        judgement.admitted[0].1.as_ref().unwrap().property,
        "cpu shares"
    );
}

#[test]
fn what_is_gone_is_forgotten() {
    let mut node = Node1::new();
    for _ in 0..=BURST {
        node.spoil();
        node.look(1.0);
    }
    node.tracker.retain(|_| false);
    assert_eq!(
        (node.tracker.contested(), node.tracker.next_look()),
        (0, None)
    );
    // A new cgroup of that name begins anew.
    assert_eq!(corrected(&node.look(1.1)), 0);
}

/// Beside a kubelet everything but what the operator gave away is left as it is.
#[test]
fn nothing_of_a_kubelets_is_a_deviation() {
    let mut node = Node1::new();
    node.snapshot.ownership = Ownership::Assist;
    node.snapshot.node.qos_reserved_memory_percent = Some(100);
    node.desired = desired::tree(&node.snapshot);
    node.look(0.0);
    node.look(0.0);
    for observed in node.files.values_mut() {
        observed.cpu = Some(CpuShare::Shares(CpuShares(7)));
        observed.memory_limit = Some(Limit::At(Bytes(900 * MI)));
    }
    let judgement = node.look(1.0);
    let mut corrected: Vec<_> = judgement
        .admitted
        .iter()
        .filter_map(|(_, deviation)| deviation.as_ref())
        .map(|d| (d.cgroup.to_string(), d.property))
        .collect();
    corrected.sort();
    let limit = "memory limit";
    assert_eq!(
        corrected,
        [
            ("/kubepods/besteffort".to_owned(), limit),
            ("/kubepods/burstable".to_owned(), limit)
        ]
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// However often and however fast another process writes, corrections stay below the bound.
    #[test]
    fn corrections_are_bounded(steps in prop::collection::vec(1u64..3000, 1..400)) {
        let mut node = Node1::new();
        let mut now = Duration::from_secs(1);
        let (start, mut count) = (now, 0);
        for step in steps {
            node.spoil();
            count += corrected(&node.look_at(now)) as u128;
            now += Duration::from_millis(step);
        }
        let time = (now - start).as_nanos();
        let doublings = u128::from((LONGEST_PAUSE.as_secs() / FIRST_PAUSE.as_secs()).ilog2());
        let bound = u128::from(BURST)
            + time / REFILL.as_nanos()
            + doublings + 1
            + time / LONGEST_PAUSE.as_nanos();
        prop_assert!(count <= bound, "{count} corrections in {time} ns, at most {bound}");
    }

    /// After the last foreign write the value is right again within the longest pause.
    #[test]
    fn the_value_comes_back(writes in 1u32..200, step in 1u64..5000) {
        let mut node = Node1::new();
        let mut now = Duration::from_secs(1);
        for _ in 0..writes {
            node.spoil();
            node.look_at(now);
            now += Duration::from_millis(step);
        }
        node.look_at(now + LONGEST_PAUSE);
        prop_assert_eq!(node.observed().memory_limit, Some(Limit::At(Bytes(64 * MI))));
    }
}
