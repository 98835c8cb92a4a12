//! The order of candidates, and pods with nothing to kill.

use podwarden_cgroup::UsageReader;
use podwarden_policy::evict;

use super::{super::evict::Evicted, *};
use crate::reactor::pids::Pids;

/// Pods `p000` and on, each with so much usage and inactive page cache.
fn pods(fake: &Fake, figures: impl Iterator<Item = (u64, u64)>) -> Vec<String> {
    let named = figures.enumerate().map(|(number, (usage, cache))| {
        let name = format!("p{number:03}");
        fake.cgroup(&name, usage);
        fake.caches(&name, cache);
        name
    });
    named.collect()
}

#[test]
fn candidates_come_out_in_the_order_of_their_working_sets() {
    let mut fake = Fake::new(60, 64);
    fake.cgroup("kubepods", 0);
    let mut random = fastrand::Rng::with_seed(7);
    let figures: Vec<_> = (0..150)
        .map(|_| {
            let usage = random.u64(1..50) * 1000;
            // Some have nothing but page cache.
            (usage, random.u64(0..50).min(usage / 1000) * 1000)
        })
        .collect();
    let names = pods(&fake, figures.iter().copied());
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    fake.arm(&names, LEVEL, true);
    let plan = Arc::clone(&fake.core.plan);
    for least in [0, 20_000] {
        let mut expected: Vec<_> = figures
            .iter()
            .enumerate()
            .map(|(position, (usage, cache))| (position, usage - cache))
            .filter(|(_, working_set)| *working_set >= least.max(1))
            .map(|(position, working_set)| {
                let candidate = Candidate {
                    working_set: Some(Bytes(working_set)),
                    ..plan.victims[position].candidate
                };
                (
                    evict::rank(plan.ranking, &candidate),
                    &plan.victims[position].uid,
                    position,
                )
            })
            .collect();
        expected.sort();
        let mut order = Order::default();
        order.fill(
            &plan,
            ScopeName::Kubepods,
            None,
            |_, _| Skip::No,
            Least::Used(least),
        );
        let found: Vec<_> = std::iter::from_fn(|| order.next(&plan, None, Least::Used(least)))
            .map(|choice| {
                (
                    choice.rank,
                    &plan.victims[choice.position].uid,
                    choice.position,
                )
            })
            .collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn page_cache_of_a_pod_is_no_gain_in_a_tier() {
    let first = |scope| {
        let mut fake = Fake::new(60, 64);
        // Two read files, and one leaks.
        for (rel, anon, active) in [("a", 200, 8000), ("b", 6000, 0), ("c", 200, 8000)] {
            fake.cgroup(rel, (anon + active) * MIB);
            fake.holds(rel, anon * MIB, 0, active * MIB);
        }
        fake.cgroup("kubepods", 22_400 * MIB);
        fake.holds("kubepods", 6400 * MIB, 0, 16_000 * MIB);
        let level = 6300 * MIB;
        fake.arm_scope(scope, "kubepods", level, &["a", "b", "c"], level, true);
        chosen(&fake.step())
    };
    assert_eq!(first(ScopeName::BestEffort), [(2, true)]);
    assert_eq!(first(ScopeName::Kubepods), [(1, true)], "its working set");
}

#[test]
fn pods_with_nothing_to_kill_are_tried_once_and_remembered() {
    let mut fake = Fake::new(60, 64);
    fake.cgroup("kubepods", 0);
    // 500 that are dead rank ahead of those that live.
    let dead = pods(&fake, (0..500).map(|number| (2_000_000 + number, 0)));
    for name in &dead {
        fs::write(fake.path(name, "cgroup.procs"), "").unwrap();
    }
    for name in ["x", "y"] {
        fake.cgroup(name, 1_000_000);
    }
    let names: Vec<&str> = dead.iter().map(String::as_str).chain(["x", "y"]).collect();
    fake.arm(&names, LEVEL, true);
    fake.uses("kubepods", LEVEL);
    assert_eq!(chosen(&fake.step()), [(501, true)]);
    fake.uses("x", 0);
    // Would one of them be tried again, it would be killed.
    for name in &dead {
        fs::write(fake.path(name, "cgroup.procs"), ABSENT).unwrap();
    }
    assert_eq!(chosen(&fake.step()), [(502, true)]);
    fake.uses("y", 0);
    assert_eq!(chosen(&fake.step()), []);
    // A process has started in one.
    fake.uses("p007", 2_000_007 + (300 << 10));
    fake.arm(&names, LEVEL, true);
    assert_eq!(chosen(&fake.step()), [(8, true)]);
}

#[test]
fn one_that_fills_and_cannot_be_killed_leaves_the_first_in_its_place() {
    let mut fake = three_pods(60);
    // It fills, and has nothing to kill.
    fake.cgroup("d", 100);
    fs::write(fake.path("d", "cgroup.procs"), "").unwrap();
    fake.arm(&["a", "b", "c", "d"], LEVEL, true);
    fake.step();
    let plan = Arc::clone(&fake.core.plan);
    fake.core.growths.sample(&plan, now() + 5_000_000_000);
    fake.core.growths.sample(&plan, now() + 10_000_000_000);
    fake.uses("d", 499_000);
    fake.uses("kubepods", LEVEL + 600_000);
    assert_eq!(chosen(&fake.step()), [(2, true)]);
}

/// Nothing can be written to `cgroup.kill`. For the next plan.
fn jam(fake: &Fake, names: &[String]) {
    for name in names {
        let kill = fake.path(name, "cgroup.kill");
        fs::remove_file(&kill).unwrap();
        std::os::unix::fs::symlink("/dev/full", &kill).unwrap();
    }
}

/// No list of processes can be read, so that `cgroup.kill` has to do.
fn refuse(fake: &Fake, names: &[String]) {
    for name in names {
        let list = fake.path(name, "cgroup.procs");
        fs::remove_file(&list).unwrap();
        fs::create_dir(&list).unwrap();
    }
}

/// They can be killed from now on.
fn allow(fake: &Fake, names: &[String]) {
    for name in names {
        let list = fake.path(name, "cgroup.procs");
        fs::remove_dir(&list).unwrap();
        fs::write(&list, ABSENT).unwrap();
    }
}

#[test]
fn pods_that_cannot_be_killed_are_tried_once_however_many() {
    let mut fake = Fake::new(60, 1024);
    fake.cgroup("kubepods", 0);
    let refused = pods(&fake, (0..500).map(|number| (2_000_000 + number, 0)));
    for name in ["x", "y"] {
        fake.cgroup(name, 1_000_000);
    }
    let names = refused.iter().map(String::as_str);
    let names: Vec<&str> = names.chain(["x", "y"]).collect();
    jam(&fake, &refused);
    fake.arm(&names, LEVEL, true);
    refuse(&fake, &refused);
    fake.uses("kubepods", LEVEL);
    let reports = fake.step();
    assert_eq!(chosen(&reports), [(501, true)]);
    let failed = |report: &&Report| matches!(report, Report::NotKilled { .. });
    assert_eq!(reports.iter().filter(failed).count(), 500);
    fake.uses("x", 0);
    allow(&fake, &refused);
    let reports = fake.step();
    assert_eq!(
        chosen(&reports),
        [(502, true)],
        "none of them was tried again"
    );
    assert_eq!(reports.iter().filter(failed).count(), 0);
}

#[test]
fn pods_with_nothing_to_kill_do_not_save_the_others_where_others_grow() {
    let mut fake = Fake::new(60, 64);
    fake.cgroup("kubepods", 0);
    // Their death would last, if there were anything to kill.
    let dead = pods(&fake, (0..500).map(|number| (800_000_000 + number, 0)));
    for name in &dead {
        fs::write(fake.path(name, "cgroup.procs"), "").unwrap();
    }
    fake.cgroup("x", 1_000_000);
    let names: Vec<&str> = dead.iter().map(String::as_str).chain(["x"]).collect();
    fake.arm_scope(ScopeName::Node, "kubepods", LEVEL, &names, LEVEL, true);
    // More than the death of one that lives gives.
    fake.uses("kubepods", LEVEL + 500_000_000);
    fake.core.node.make_due();
    assert_eq!(chosen(&fake.step()), [(501, true)]);
}

#[test]
fn pods_with_nothing_to_kill_are_tried_once_where_process_ids_run_out() {
    let mut fake = Fake::new(60, 64);
    fake.cgroup("kubepods", 0);
    let dead = pods(&fake, (0..500).map(|_| (1_000_000, 0)));
    let all = dead.iter().map(String::as_str);
    let names: Vec<&str> = all.chain(["x", "y"]).collect();
    for (name, tasks) in dead
        .iter()
        .map(|name| (&**name, 3000))
        .chain([("x", 2000), ("y", 1000)])
    {
        fake.cgroup(name, 1_000_000);
        fs::write(fake.path(name, "pids.current"), format!("{tasks}\n")).unwrap();
    }
    for name in &dead {
        fs::write(fake.path(name, "cgroup.procs"), "").unwrap();
    }
    fake.arm(&names, LEVEL, true);
    let processes = |(index, name): (usize, &&str)| {
        let reader = UsageReader::processes(&fake.tree, &(**name).into()).unwrap();
        (index as u64 + 1, Arc::new(reader))
    };
    let pids = Pids::new(
        Vec::new(),
        names.iter().enumerate().map(processes).collect(),
        Vec::new(),
    );
    let crossing = Crossing {
        scope: ScopeName::Pids,
        level: 1,
        headroom: 0,
        fill_rate: 0,
        usage: 1,
        working_set: 1,
        target: 1,
        detector: Detector::Sampler,
        crossed: 0,
        wake: 0,
    };
    let plan = Arc::clone(&fake.core.plan);
    for token in [501, 502] {
        let done = fake.core.end_processes(&plan, &pids, crossing, 1000);
        assert_eq!(done, Evicted::Killed);
        assert_eq!(chosen(&fake.step()), [(token, true)]);
        // Would one of them be tried again, it would be killed.
        for name in &dead {
            fs::write(fake.path(name, "cgroup.procs"), ABSENT).unwrap();
        }
    }
}
