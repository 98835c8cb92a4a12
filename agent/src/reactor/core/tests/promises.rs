//! What dead pods hold is promised ([`podwarden_policy::promise`]).

use super::*;

/// Pod `b` is evicted, no process is left in it, and it holds 400,000 bytes.
fn one_dead() -> Fake {
    let mut fake = three_pods(60);
    fake.arm(PODS, LEVEL, true);
    fake.uses("kubepods", LEVEL);
    assert_eq!(chosen(&fake.step()), [(2, true)]);
    fake.uses("b", 400_000);
    fake.empty(1);
    fake.swept(1);
    assert_eq!(freed(&fake.step()), Some(true));
    fake
}

#[test]
fn memory_that_outlives_its_processes_costs_no_other_pod() {
    let mut fake = one_dead();
    for _ in 0..10 {
        assert_eq!(fake.step(), []);
    }
    // The living may use what was theirs before.
    fake.uses("kubepods", LEVEL + 399_999);
    assert_eq!(chosen(&fake.step()), []);
    assert!(!fake.killed("a") && !fake.killed("c"));
    // It comes back, as far as it does.
    fake.uses("b", 0);
    fake.uses("kubepods", LEVEL - 1);
    assert_eq!(fake.step(), []);
}

#[test]
fn what_the_living_grow_meanwhile_counts() {
    let mut fake = one_dead();
    fake.uses("kubepods", LEVEL + 400_000);
    assert_eq!(chosen(&fake.step()), [(1, true)]);
}

#[test]
fn growth_is_measured_on_of_the_same_scope_when_another_is_armed_before_it() {
    let tier = (ScopeName::BestEffort, "besteffort", LEVEL, LEVEL);
    let mut fake = three_pods(60);
    fake.cgroup("besteffort", LEVEL);
    fake.arm_scopes(&[tier], PODS, true);
    assert_eq!(chosen(&fake.step()), [(2, true)]);
    fake.step();
    let measured = fake.core.living[0];
    assert_ne!(measured, Living::default());
    let all = (ScopeName::Kubepods, "kubepods", 2 * LEVEL, 2 * LEVEL);
    fake.arm_scopes(&[all, tier], PODS, true);
    assert_eq!(fake.core.living[..2], [Living::default(), measured]);
}

#[test]
fn what_grows_in_a_dead_pod_is_not_promised_and_it_is_evicted_again() {
    let mut fake = one_dead();
    fake.uses("b", 900_000);
    fake.uses("kubepods", LEVEL + 500_000);
    assert_eq!(chosen(&fake.step()), [(2, true)]);
}

#[test]
fn a_pod_is_evicted_once_while_it_is_dying() {
    let mut fake = three_pods(60);
    fake.arm(PODS, LEVEL, true);
    fake.uses("kubepods", LEVEL);
    assert_eq!(chosen(&fake.step()), [(2, true)]);
    // Most of it is free, and a process is left: it is the largest again, and evicted already.
    fake.uses("b", 40_000);
    fake.uses("a", 20_000);
    fake.uses("c", 10_000);
    fake.uses("kubepods", LEVEL + 50_000);
    let reports = fake.step();
    assert_eq!(freed(&reports), Some(true));
    assert_eq!(chosen(&reports), [(1, true)]);
}

#[test]
fn what_is_started_in_a_dying_pod_is_killed_and_costs_no_other_pod() {
    started_in_a_dying_pod(three_pods(60));
}

#[test]
fn what_is_started_in_a_dying_pod_is_killed_at_the_limit_on_evictions_too() {
    started_in_a_dying_pod(three_pods(1));
}

fn started_in_a_dying_pod(mut fake: Fake) {
    fake.arm(PODS, LEVEL, true);
    fake.uses("kubepods", LEVEL);
    assert_eq!(chosen(&fake.step()), [(2, true)]);
    fake.uses("b", 10_000);
    fake.uses("kubepods", LEVEL - 490_000);
    assert_eq!(freed(&fake.step()), Some(true));
    // Its container is started anew before anyone saw that no process was left.
    let ahead = fake.core.costs.ahead;
    fake.uses("b", 10_000 + ahead);
    fake.uses("kubepods", LEVEL + 50_000);
    let reports = fake.step();
    let again = |report: &Report| matches!(report, Report::KilledAgain { token: 2, .. });
    assert!(reports.iter().any(again), "{reports:?}");
    assert_eq!(chosen(&reports), []);
    assert_eq!(fs::read(fake.path("b", "cgroup.kill")).unwrap(), b"11");
    // What it filled is on its way, and comes back.
    assert_eq!(chosen(&fake.step()), []);
    fake.uses("b", 0);
    fake.uses("kubepods", LEVEL - 1);
    assert_eq!(freed(&fake.step()), Some(true));
    assert!(!fake.killed("a") && !fake.killed("c"));
}

#[test]
fn what_is_started_in_a_dying_pod_does_not_save_another_that_fills_more() {
    let mut fake = three_pods(60);
    fake.arm(PODS, LEVEL, true);
    fake.uses("kubepods", LEVEL);
    assert_eq!(chosen(&fake.step()), [(2, true)]);
    let ahead = fake.core.costs.ahead;
    fake.uses("b", 10_000);
    fake.uses("kubepods", LEVEL - 490_000);
    fake.step();
    fake.uses("b", 10_000 + ahead);
    fake.uses("a", 3 * ahead);
    fake.uses("kubepods", LEVEL + 2 * ahead);
    assert_eq!(chosen(&fake.step()), [(1, true)]);
}

#[test]
fn page_cache_that_the_scope_does_not_count_is_not_promised() {
    let mut fake = one_dead();
    // Of what is left, half is on the inactive list, of the scope as well.
    fake.caches("b", 200_000);
    fake.caches("kubepods", 200_000);
    fake.uses("kubepods", LEVEL + 399_999);
    assert_eq!(chosen(&fake.step()), []);
    fake.uses("kubepods", LEVEL + 400_000);
    assert_eq!(chosen(&fake.step()), [(1, true)]);
}

#[test]
fn a_slow_victim_does_not_block_the_next() {
    let mut fake = three_pods(60);
    fake.arm(PODS, LEVEL, true);
    fake.uses("kubepods", LEVEL + 100_000);
    assert_eq!(chosen(&fake.step()), [(2, true)]);
    assert_eq!(fake.step(), [], "it is being freed");
    // What is being freed will not bring the scope below its level.
    fake.uses("kubepods", LEVEL + 500_000);
    assert_eq!(chosen(&fake.step()), [(1, true)]);
    assert_eq!(fake.step(), [], "now it will");
}

#[test]
fn no_pod_within_its_request_goes_beside_memory_that_is_on_its_way() {
    let mut fake = three_pods(60);
    fake.request = 300_000;
    fake.arm(PODS, LEVEL, true);
    fake.uses("kubepods", LEVEL + 100_000);
    assert_eq!(chosen(&fake.step()), [(2, true)]);
    // What is being freed will not bring the scope below its level, and all that are left are within theirs.
    fake.uses("kubepods", LEVEL + 500_000);
    let reports = fake.step();
    assert!(matches!(reports[..], [Report::Awaited(_)]), "{reports:?}");
    // The memory came back, and was not enough.
    fake.uses("b", 0);
    fake.empty(1);
    fake.swept(1);
    assert_eq!(freed(&fake.step()), Some(true));
    std::thread::sleep(2 * fake.core.config.max_interval);
    assert_eq!(chosen(&fake.step()), [(1, true)]);
}
