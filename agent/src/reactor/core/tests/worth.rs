//! An eviction has to be worth it ([`podwarden_policy::worth`]).

use super::*;

/// Twenty pods that hold a little each and do not grow.
fn small_pods(fake: &Fake) -> Vec<String> {
    let names: Vec<_> = (0..20).map(|i| format!("small-{i:02}")).collect();
    for name in &names {
        fake.cgroup(name, 10_000_000);
    }
    names
}

/// A level far above what a sample's noise is.
const HIGH: u64 = 1_000_000_000;

/// Steps once at `usage`, below the level, and samples twice, so that a decision has a past to compare with.
fn settle(fake: &mut Fake, rel: &str, usage: u64) {
    fake.uses(rel, usage);
    fake.step();
    let plan = Arc::clone(&fake.core.plan);
    for seconds in [5, 10] {
        let later = now() + seconds * 1_000_000_000;
        fake.core.growths.sample(&plan, later);
    }
}

/// Frees a victim's memory and leaves the scope where it was.
fn frees(fake: &mut Fake, pods: &[String], token: u64, rel: &str, scope: u64) {
    fake.uses(&pods[usize::try_from(token).unwrap() - 1], 0);
    fake.uses(rel, scope);
}

fn others_grow(reports: &[Report]) -> bool {
    let grow = |report: &Report| matches!(report, Report::OthersGrow(..));
    reports.iter().any(grow)
}

#[test]
fn growth_that_is_no_candidates_costs_one_pod() {
    for name in [ScopeName::Kubepods, ScopeName::Node] {
        let mut fake = Fake::new(60, 64);
        fake.cgroup("kubepods", 0);
        let pods = small_pods(&fake);
        let names: Vec<&str> = pods.iter().map(String::as_str).collect();
        fake.arm_scope(name, "kubepods", HIGH, &names, HIGH, true);
        settle(&mut fake, "kubepods", HIGH - 100_000_000);
        fake.core.node.make_due();
        fake.uses("kubepods", HIGH + 1_000_000);
        let first = chosen(&fake.step());
        assert_eq!(first.len(), 1, "{name:?}");
        // What it had is free, and what grows has filled it again.
        frees(&mut fake, &pods, first[0].0, "kubepods", HIGH + 2_000_000);
        fake.core.node.make_due();
        let reports = fake.step();
        assert_eq!(chosen(&reports), [], "{name:?}");
        assert!(others_grow(&reports), "{name:?}: {reports:?}");
        fake.core.node.make_due();
        assert_eq!(fake.step(), [], "{name:?}: said once");
    }
}

#[test]
fn the_candidate_that_fills_goes_before_small_ones_that_rank_ahead() {
    let mut fake = Fake::new(60, 64);
    fake.cgroup("kubepods", 0);
    let mut pods = small_pods(&fake);
    // It ranks last: it holds the least.
    fake.cgroup("filler", 1_000_000);
    pods.push("filler".to_owned());
    let names: Vec<&str> = pods.iter().map(String::as_str).collect();
    fake.arm_at(HIGH, &names, HIGH, true);
    settle(&mut fake, "kubepods", HIGH - 5_000_000);
    fake.uses("filler", 9_000_000);
    fake.uses("kubepods", HIGH + 11_000_000);
    assert_eq!(chosen(&fake.step()), [(21, true)]);
}

#[test]
fn growth_of_a_candidate_keeps_no_pause() {
    let mut fake = three_pods(60);
    fake.arm(PODS, LEVEL, true);
    fake.uses("kubepods", LEVEL);
    let plan = Arc::clone(&fake.core.plan);
    fake.core.growths.sample(&plan, now() + 1_000_000_000);
    assert_eq!(chosen(&fake.step()), [(2, true)]);
    fake.uses("b", 0);
    fake.uses("a", 10_000_000);
    assert_eq!(chosen(&fake.step()), [(1, true)]);
}

#[test]
fn a_candidate_that_grows_lasts_longer_than_a_larger_one_where_others_grow() {
    const MB: u64 = 1_000_000;
    let mut fake = Fake::new(60, 64);
    let (before, now_used) = ([800, 590, 1], [800, 750, 181]);
    let names = ["first", "lasts", "filler"];
    for (name, usage) in names.iter().zip(before) {
        fake.cgroup(name, usage * MB);
    }
    let level = 3000 * MB;
    fake.cgroup("kubepods", 0);
    fake.arm_at(level, &names, level, true);
    let (plan, at) = (Arc::clone(&fake.core.plan), now());
    let look = Look {
        at,
        usage: level - 740 * MB,
        working_set: level - 740 * MB,
    };
    fake.core.growths.looked(ScopeName::Kubepods, look, level);
    for seconds in [8, 2] {
        fake.core
            .growths
            .sample(&plan, at - seconds * 1_000_000_000);
    }
    // 160 and 180 MB of the growth are theirs, 400 MB are not: 925 MB in ten seconds.
    for (name, usage) in names.iter().zip(now_used) {
        fake.uses(name, usage * MB);
    }
    fake.uses("kubepods", level + MB);
    assert_eq!(chosen(&fake.step()), [(2, true)]);
}

#[test]
fn no_pod_goes_for_one_of_which_no_source_has_told() {
    const MB: u64 = 1_000_000;
    let mut fake = Fake::new(60, 64);
    fake.cgroup("kubepods", 0);
    fake.cgroup("stranger", MB);
    let mut pods = small_pods(&fake);
    let arm = |fake: &mut Fake, pods: &[String], strangers| {
        fake.strangers = strangers;
        let names: Vec<&str> = pods.iter().map(String::as_str).collect();
        fake.arm_at(HIGH, &names, HIGH, true);
    };
    arm(&mut fake, &pods, vec!["stranger"]);
    settle(&mut fake, "kubepods", HIGH - 100 * MB);
    fake.uses("stranger", 150 * MB);
    fake.uses("kubepods", HIGH + 49 * MB);
    let reports = fake.step();
    let is_said = |report: &Report| matches!(report, Report::StrangersGrow(..));
    assert_eq!(chosen(&reports), []);
    assert!(reports.iter().any(is_said), "{reports:?}");
    // Once it rests neither.
    settle(&mut fake, "kubepods", HIGH + 49 * MB);
    assert_eq!(fake.step(), [], "said once");
    // Told of, it is the one that goes.
    pods.push("stranger".to_owned());
    arm(&mut fake, &pods, Vec::new());
    assert_eq!(chosen(&fake.step()), [(21, true)]);
}

#[test]
fn a_stranger_that_rests_keeps_no_pod_from_going() {
    let mut fake = three_pods(60);
    fake.cgroup("stranger", 900_000);
    fake.strangers = vec!["stranger"];
    fake.arm(PODS, LEVEL, true);
    let settled = LEVEL - 300_000;
    settle(&mut fake, "kubepods", settled);
    // What grew is a pod that is known.
    fake.uses("b", 800_000);
    fake.uses("kubepods", LEVEL);
    assert_eq!(chosen(&fake.step()), [(2, true)]);
}
