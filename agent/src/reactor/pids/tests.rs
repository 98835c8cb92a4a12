//! The watch over process ids, on counts in files.

use podwarden_cgroup::{Controller, Hierarchies, Tree, Version};

use super::*;

const SECOND: u64 = 1_000_000_000;
const SLEEPS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

#[test]
fn this_machine_runs_tasks() {
    let tasks = Tasks::of_node().unwrap().count().unwrap();
    assert!((2..4_194_304).contains(&tasks), "{tasks}");
}

/// The node at a level that its tasks make true or not.
fn of_node(level: u64, target: u64) -> Pids {
    let level = PidLevel {
        tasks: Tasks::of_node().unwrap(),
        level,
        target,
    };
    Pids::new(vec![level], Vec::new(), Vec::new())
}

#[test]
fn the_sleep_shrinks_with_what_is_left() {
    let mut watch = PidWatch::default();
    assert_eq!(watch.look(&of_node(u64::MAX, u64::MAX), 5, 2, SLEEPS), None);
    assert!(!watch.is_due(99_000_000) && watch.is_due(100_000_005));
    let near = Tasks::of_node().unwrap().count().unwrap() + 100_000;
    assert_eq!(watch.look(&of_node(near, near), 0, 100, SLEEPS), None);
    assert!(watch.sleep(0) < Duration::from_millis(15), "{watch:?}");
}

#[test]
fn a_level_is_said_once_and_the_target_counts_from_then_on() {
    let mut watch = PidWatch::default();
    let found = watch.look(&of_node(1, 1), 0, 1, SLEEPS).unwrap();
    assert!(found.first && found.excess >= found.tasks);
    let further = of_node(u64::MAX, 1);
    let found = watch.look(&further, 1, 1, SLEEPS).unwrap();
    assert!(!found.first, "above its target");
    assert!(watch.no_candidate(1, SLEEPS.1));
    assert!(!watch.no_candidate(2, SLEEPS.1));
    watch.settle();
    assert_eq!(watch.look(&further, 3, 1, SLEEPS), None);
    assert_eq!(watch.look(&of_node(u64::MAX, u64::MAX), 4, 1, SLEEPS), None);
    assert!(watch.look(&of_node(1, 1), 5, 1, SLEEPS).is_some());
    assert!(watch.may_take_less(6));
    watch.evicted(6);
    assert!(!watch.may_take_less(7) && watch.may_take_less(6 + KUBELET_PACE_NS));
}

fn tree(dir: &tempfile::TempDir) -> Tree {
    let mount = dir.path().to_owned();
    let hierarchies = Hierarchies {
        version: Version::V2,
        v2_mount: Some(mount.clone()),
        controllers: [(Controller::Pids, mount)].into(),
    };
    Tree::new(hierarchies, "").unwrap()
}

/// Cgroups in files, each with so many tasks, and a level of 400 on the first that others are part of.
fn cgroups(tasks: &[u64]) -> (tempfile::TempDir, Arc<ArmedPlan>) {
    let dir = tempfile::tempdir().unwrap();
    let tree = tree(&dir);
    let reader = |index: usize| {
        let rel = format!("cgroup-{index}");
        std::fs::create_dir(dir.path().join(&rel)).unwrap();
        set(&dir, index, tasks[index]);
        UsageReader::processes(&tree, &(*rel).into()).unwrap()
    };
    let pods = (1..tasks.len()).map(|index| (index as u64, Arc::new(reader(index))));
    let plan = ArmedPlan {
        pids: Some(Pids::new(
            vec![level(reader(0))],
            pods.collect(),
            Vec::new(),
        )),
        ..ArmedPlan::default()
    };
    (dir, Arc::new(plan))
}

fn level(cgroup: UsageReader) -> PidLevel {
    PidLevel {
        tasks: Tasks::Cgroup(cgroup),
        level: 400,
        target: 360,
    }
}

fn set(dir: &tempfile::TempDir, index: usize, tasks: u64) {
    let path = dir.path().join(format!("cgroup-{index}/pids.current"));
    std::fs::write(path, format!("{tasks}\n")).unwrap();
}

fn pids(plan: &ArmedPlan) -> &Pids {
    plan.pids.as_ref().unwrap()
}

/// A pod of 390 processes was found beside one of 50, and killed.
fn killed_bomb() -> (tempfile::TempDir, Arc<ArmedPlan>, PidWatch) {
    let (dir, plan) = cgroups(&[450, 390, 50]);
    let mut watch = PidWatch::default();
    assert!(watch.look(pids(&plan), 0, 2, SLEEPS).is_some());
    watch.killed(&plan, 1, 0);
    (dir, plan, watch)
}

#[test]
fn processes_that_end_slowly_cost_no_other_pod() {
    let (dir, plan, mut watch) = killed_bomb();
    // One a second, for longer than a victim of which none ends is awaited.
    for second in 1..70 {
        let left = 390 - second;
        set(&dir, 1, left);
        set(&dir, 0, 50 + left);
        assert_eq!(watch.look(pids(&plan), second * SECOND, 2, SLEEPS), None);
    }
    let last = 69 * SECOND;
    let stays = last + LONGEST_WAIT_NS;
    assert_eq!(watch.look(pids(&plan), stays - 1, 2, SLEEPS), None);
    set(&dir, 2, 100);
    set(&dir, 0, 450);
    assert!(watch.look(pids(&plan), stays, 2, SLEEPS).is_some());
}

#[test]
fn a_plan_without_the_victim_changes_nothing() {
    let (dir, _, mut watch) = killed_bomb();
    let (_other, next) = cgroups(&[450, 0, 50]);
    let next = Pids::new(
        vec![level(
            UsageReader::processes(&tree(&dir), &"cgroup-0".into()).unwrap(),
        )],
        next.pids.as_ref().unwrap().processes()[1..].to_vec(),
        Vec::new(),
    );
    assert_eq!(watch.look(&next, 1, 2, SLEEPS), None);
}

#[test]
fn a_second_bomb_does_not_wait_for_the_end_of_the_first() {
    let (dir, plan, mut watch) = killed_bomb();
    assert_eq!(watch.look(pids(&plan), 1, 2, SLEEPS), None);
    set(&dir, 2, 410);
    set(&dir, 0, 800);
    let found = watch.look(pids(&plan), 2, 2, SLEEPS).unwrap();
    assert_eq!((found.tasks, found.excess), (800, 410 - 360 + 1));
    // What forks in it after its end was begun is no less a process.
    watch.killed(&plan, 2, 2);
    assert_eq!(watch.look(pids(&plan), 3, 2, SLEEPS), None);
    set(&dir, 2, 900);
    set(&dir, 0, 1290);
    assert!(watch.look(pids(&plan), 4, 2, SLEEPS).is_some());
}

#[test]
fn more_victims_than_are_remembered() {
    let tasks: Vec<u64> = std::iter::once(2000).chain((0..20).map(|_| 100)).collect();
    let (_dir, plan) = cgroups(&tasks);
    let mut watch = PidWatch::default();
    for victim in 1..=20 {
        watch.killed(&plan, victim, victim);
    }
    let rest = 2000 - 100 * MOST_ENDING as u64;
    let found = watch.look(pids(&plan), 21, 2, SLEEPS).unwrap();
    assert_eq!(found.excess, rest - 360 + 1);
}

#[test]
fn a_bomb_of_which_no_source_has_told_is_told_apart() {
    for (known, strangers, excess, theirs) in [
        (vec![50, 390], vec![], 10, None),
        (vec![50, 390], vec![20], 10, None),
        (vec![50, 20], vec![370, 10], 10, Some(380)),
        (vec![50, 20], vec![370], 371, None),
        (vec![], vec![370], 10, Some(370)),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let tree = tree(&dir);
        let reader = |(index, tasks): (usize, &u64)| {
            let rel = format!("cgroup-{index}");
            std::fs::create_dir(dir.path().join(&rel)).unwrap();
            set(&dir, index, *tasks);
            UsageReader::processes(&tree, &(*rel).into()).unwrap()
        };
        let all: Vec<u64> = known.iter().chain(&strangers).copied().collect();
        let mut readers: Vec<_> = all.iter().enumerate().map(reader).collect();
        let strangers = readers.split_off(known.len());
        let known = readers.into_iter().zip(1..);
        let known = known.map(|(reader, token)| (token, Arc::new(reader)));
        let pids = Pids::new(Vec::new(), known.collect(), strangers);
        assert_eq!(pids.is_of_strangers(excess), theirs, "{all:?}");
    }
}
