//! The loop's decisions on a tree of ordinary files that looks like cgroup v2: killing is a `1` in
//! `cgroup.kill`, dying is a smaller number in `memory.current`.

use std::{fs, path::PathBuf, time::Duration};

use arc_swap::ArcSwap;
use nix::sys::eventfd::{EfdFlags, EventFd};
use podwarden_cgroup::{Controller, Hierarchies, KillHandle, MemoryReader, PsiKind, Tree, Version};
use podwarden_policy::{evict::Candidate, model::QosClass, threshold::Amount, units::Bytes};

use super::*;
use crate::reactor::{
    free::FreeMemory,
    growth::Seen,
    plan::{Notice, Pressure, ScopeName, StallTrigger, Stranger, Victim, VictimFiles},
    reap,
    report::Detector,
};

mod bursts;
mod order;
mod promises;
mod refusals;
mod stalls;
mod told;
mod worth;

const LEVEL: u64 = 1_000_000;
const MIB: u64 = 1 << 20;
/// No process has this id: above the largest `pid_max`.
const ABSENT: &str = "4194400\n4194401\n";

/// A tree in files, and a core to step.
struct Fake {
    dir: tempfile::TempDir,
    tree: Tree,
    core: Core,
    shared: Arc<Shared>,
    reports: rtrb::Consumer<Report>,
    /// What each pod requests, bytes.
    request: u64,
    /// The cgroups of pods that no source has told of.
    strangers: Vec<&'static str>,
    /// CPUs online.
    cpus: u32,
    handed: reap::Idle,
}

fn config(per_minute: u32) -> ReactorConfig {
    ReactorConfig {
        real_time: false,
        min_interval: Duration::from_millis(1),
        max_interval: Duration::from_millis(100),
        max_evictions_per_minute: per_minute,
        max_headroom: Amount::Percent(10_000_000),
    }
}

impl Fake {
    fn new(per_minute: u32, reports: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(
            dir.path().join("meminfo"),
            "MemTotal: 16 kB\nMemFree: 2 kB\n",
        )
        .unwrap();
        let mount = dir.path().to_owned();
        let hierarchies = Hierarchies {
            version: Version::V2,
            v2_mount: Some(mount.clone()),
            controllers: [Controller::Memory, Controller::Pids]
                .map(|controller| (controller, mount.clone()))
                .into(),
        };
        let tree = Tree::new(hierarchies, "").unwrap();
        let shared = Arc::new(Shared {
            plan: ArcSwap::default(),
            control: EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap(),
            bell: EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap(),
            stop: false.into(),
            lost: 0.into(),
            trace: Arc::default(),
            beat: 0.into(),
            ended: false.into(),
        });
        let (producer, reports) = rtrb::RingBuffer::new(reports);
        let (reaper, handed) = reap::idle();
        let shared_too = Arc::clone(&shared);
        let core = Core::new(shared_too, producer, reaper, config(per_minute)).unwrap();
        Self {
            dir,
            tree,
            core,
            shared,
            reports,
            request: 0,
            strangers: Vec::new(),
            cpus: 2,
            handed,
        }
    }

    fn path(&self, rel: &str, file: &str) -> PathBuf {
        self.dir.path().join(rel).join(file)
    }

    fn cgroup(&self, rel: &str, usage: u64) {
        fs::create_dir_all(self.dir.path().join(rel)).unwrap();
        for (file, text) in [
            ("memory.max", "max\n"),
            ("cgroup.procs", ABSENT),
            ("cgroup.kill", ""),
        ] {
            fs::write(self.path(rel, file), text).unwrap();
        }
        self.uses(rel, usage);
        self.caches(rel, 0);
    }

    fn uses(&self, rel: &str, usage: u64) {
        fs::write(self.path(rel, "memory.current"), format!("{usage}\n")).unwrap();
    }

    fn caches(&self, rel: &str, inactive_file: u64) {
        self.holds(rel, 0, inactive_file, 0);
    }

    fn holds(&self, rel: &str, anon: u64, inactive: u64, active: u64) {
        let text =
            format!("anon {anon}\nshmem 0\ninactive_file {inactive}\nactive_file {active}\n");
        fs::write(self.path(rel, "memory.stat"), text).unwrap();
    }

    fn killed(&self, rel: &str) -> bool {
        fs::read(self.path(rel, "cgroup.kill")).unwrap() == b"1"
    }

    fn limits(&self, rel: &str, limit: u64) {
        fs::write(self.path(rel, "memory.max"), format!("{limit}\n")).unwrap();
    }

    /// As [`Self::arm_at`], at [`LEVEL`].
    fn arm(&mut self, pods: &[&str], target: u64, enforce: bool) {
        self.arm_at(LEVEL, pods, target, enforce);
    }

    /// BestEffort pods, tokens from 1, and kubepods with its level.
    fn arm_at(&mut self, level: u64, pods: &[&str], target: u64, enforce: bool) {
        self.arm_scope(
            ScopeName::Kubepods,
            "kubepods",
            level,
            pods,
            target,
            enforce,
        );
    }

    /// The same with another scope, and with a stall trigger that never fires.
    fn arm_scope(
        &mut self,
        name: ScopeName,
        rel: &str,
        level: u64,
        pods: &[&str],
        target: u64,
        enforce: bool,
    ) {
        self.arm_scopes(&[(name, rel, level, target)], pods, enforce);
    }

    /// Scopes, each with its cgroup, level and target.
    fn arm_scopes(&mut self, scopes: &[(ScopeName, &str, u64, u64)], pods: &[&str], enforce: bool) {
        let open = |rel: &str| MemoryReader::open(&self.tree, &rel.into()).unwrap();
        let victim = |(index, rel): (usize, &&str)| Victim {
            token: index as u64 + 1,
            uid: (*rel).into(),
            place: QosClass::BestEffort,
            candidate: Candidate {
                qos: QosClass::BestEffort,
                priority: 0,
                memory_request: Bytes(self.request),
                working_set: None,
            },
            files: Arc::new(VictimFiles {
                path: (**rel).into(),
                memory: open(rel),
                kill: KillHandle::open(&self.tree, &(**rel).into()).unwrap(),
                seen: Seen::default(),
            }),
        };
        let stranger = |rel: &&str| {
            let (path, memory) = ((*rel).into(), open(rel));
            Arc::new(Stranger {
                path,
                place: QosClass::BestEffort,
                memory,
                seen: Seen::default(),
            })
        };
        let id = |name| ScopeName::LEVELS.iter().position(|level| *level == name);
        let scope = |&(name, rel, level, target): &(_, &str, _, _)| Scope {
            name,
            level,
            target,
            memory: open(rel),
            memory_id: id(name).map_or(0, |index| index as u64 + 1),
            notice: Notice::default(),
            events: None,
        };
        let plan = ArmedPlan {
            scopes: scopes.iter().map(scope).map(Arc::new).collect(),
            victims: pods.iter().enumerate().map(victim).collect(),
            strangers: self.strangers.iter().map(stranger).collect(),
            pressure: Some(Arc::new(Pressure {
                memory: open("kubepods"),
                memory_id: 1,
                free: FreeMemory::at(&self.dir.path().join("meminfo")).unwrap(),
                triggers: vec![StallTrigger {
                    kind: PsiKind::Some,
                    window: Duration::from_secs(1),
                    notice: EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap().into(),
                }],
            })),
            cpus: self.cpus,
            enforce,
            ..ArmedPlan::default()
        };
        self.shared.plan.store(Arc::new(plan));
        self.core.take_plan();
    }

    fn step(&mut self) -> Vec<Report> {
        self.core.step(now());
        self.handed.kill_forked();
        std::iter::from_fn(|| self.reports.pop().ok()).collect()
    }

    fn empty(&self, number: u64) {
        self.handed.empty(number);
    }

    fn swept(&self, number: u64) {
        self.handed.swept(number);
    }
}

/// Pod `b` uses most.
fn three_pods(per_minute: u32) -> Fake {
    let fake = Fake::new(per_minute, 64);
    fake.cgroup("kubepods", LEVEL - 1);
    for (rel, usage) in [("a", 200_000), ("b", 500_000), ("c", 100_000)] {
        fake.cgroup(rel, usage);
    }
    fake
}

const PODS: &[&str] = &["a", "b", "c"];

/// The tokens of who was chosen, with whether it was killed.
fn chosen(reports: &[Report]) -> Vec<(u64, bool)> {
    let chosen = reports.iter().filter_map(|report| match report {
        Report::Chosen(chosen) => Some((chosen.token, chosen.outcome.is_some())),
        _ => None,
    });
    chosen.collect()
}

fn freed(reports: &[Report]) -> Option<bool> {
    reports.iter().find_map(|report| match report {
        Report::Freed { at, .. } => Some(at.is_some()),
        _ => None,
    })
}

#[test]
fn below_the_level_nothing_happens() {
    let mut fake = three_pods(60);
    fake.arm(PODS, LEVEL, true);
    assert_eq!(fake.step(), []);
    // Page cache that no process uses is no reason.
    fake.uses("kubepods", LEVEL + 1000);
    fake.caches("kubepods", 2000);
    assert_eq!(fake.step(), []);
}

#[test]
fn a_notice_that_comes_after_the_plan_is_listened_to() {
    let mut fake = three_pods(60);
    fake.arm(PODS, LEVEL, true);
    assert_eq!(fake.core.listening, [false; SCOPES]);
    let notice = EventFd::from_value_and_flags(1, EfdFlags::EFD_NONBLOCK).unwrap();
    fake.core.plan.scopes[0].notice.came(notice.into());
    fake.core.take_plan();
    let mut buffer = poll::buffer();
    let tokens: Vec<_> = fake.core.poll.wait(&mut buffer).unwrap().collect();
    assert_eq!(tokens, [NOTIFY]);
    fake.core.notified(0, now());
    // The next plan has none, and nothing rings any more.
    fake.arm(PODS, LEVEL, true);
    assert_eq!(fake.core.listening, [false; SCOPES]);
}

#[test]
fn one_at_a_time_and_then_afresh() {
    let mut fake = three_pods(60);
    fake.arm(PODS, LEVEL, true);
    fake.step();
    fake.uses("kubepods", LEVEL + 400_000);
    let reports = fake.step();
    assert!(matches!(reports[0], Report::Crossed(_)), "{reports:?}");
    assert_eq!(chosen(&reports), [(2, true)]);
    assert!(fake.killed("b") && !fake.killed("a") && !fake.killed("c"));
    // Killed is not freed.
    assert_eq!(fake.step(), []);
    fake.uses("b", 0);
    fake.uses("kubepods", LEVEL);
    // Meanwhile another has grown past the one that was next.
    fake.uses("c", 300_000);
    let reports = fake.step();
    assert_eq!(freed(&reports), Some(true));
    assert_eq!(chosen(&reports), [(3, true)], "decided afresh");
    fake.uses("c", 0);
    fake.uses("kubepods", LEVEL - 1);
    assert_eq!(chosen(&fake.step()), []);
    assert!(!fake.killed("a"));
}

#[test]
fn the_minimum_reclaim_is_brought_about() {
    let mut fake = three_pods(60);
    fake.arm(PODS, LEVEL - 300_000, true);
    fake.uses("kubepods", LEVEL - 1);
    assert_eq!(fake.step(), [], "the target counts only once it has acted");
    fake.uses("kubepods", LEVEL);
    assert_eq!(chosen(&fake.step()), [(2, true)]);
    fake.uses("b", 0);
    fake.uses("kubepods", LEVEL - 250_000);
    assert_eq!(chosen(&fake.step()), [(1, true)]);
    fake.uses("a", 0);
    fake.uses("kubepods", LEVEL - 300_001);
    assert_eq!(chosen(&fake.step()), []);
    assert!(!fake.killed("c"));
}

#[test]
fn a_pod_without_processes_is_passed_by() {
    let mut fake = three_pods(60);
    fs::write(fake.path("b", "cgroup.procs"), "").unwrap();
    fake.arm(PODS, LEVEL, true);
    fake.uses("kubepods", LEVEL);
    assert_eq!(chosen(&fake.step()), [(1, true)]);
}

#[test]
fn an_evicted_pod_with_new_processes_is_evicted_again() {
    let mut fake = three_pods(60);
    fake.arm(PODS, LEVEL, true);
    for _ in 0..2 {
        fake.uses("kubepods", LEVEL);
        fake.uses("b", 500_000);
        assert_eq!(chosen(&fake.step()), [(2, true)]);
        fake.uses("kubepods", 0);
        fake.uses("b", 0);
        assert_eq!(freed(&fake.step()), Some(true));
    }
}

#[test]
fn page_cache_of_the_dead_does_not_hold_it_up() {
    let mut fake = three_pods(60);
    fake.arm(PODS, LEVEL, true);
    fake.uses("kubepods", LEVEL);
    fake.step();
    fake.uses("b", 400_000);
    assert_eq!(freed(&fake.step()), None, "a process may be in it");
    fake.empty(1);
    assert_eq!(freed(&fake.step()), None, "the cache may go");
    fake.swept(1);
    fake.uses("kubepods", LEVEL - 1);
    assert_eq!(freed(&fake.step()), Some(true));
}
