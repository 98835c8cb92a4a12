use super::*;

/// Three pods of which `b` uses most, `mib` of it, and kubepods at 15/16 of its limit or just below.
fn short(mib: u64, short: bool) -> Fake {
    let mut fake = three_pods(60);
    fake.uses("b", mib * MIB);
    fake.limits("kubepods", 1600 * MIB);
    fake.uses("kubepods", 1500 * MIB - u64::from(!short));
    fake.arm_at(1 << 40, PODS, 1 << 40, true);
    fake
}

#[test]
fn tasks_that_wait_for_memory_cost_the_first_pod_that_is_worth_it() {
    let mut fake = short(500, true);
    assert_eq!(fake.step(), []);
    fake.core.stalled(0, now());
    let reports = fake.step();
    assert_eq!(chosen(&reports), [(2, true)]);
    let Some(Report::Crossed(crossing)) = reports.first() else {
        panic!("{reports:?}");
    };
    assert_eq!(
        (crossing.scope, crossing.detector, crossing.level),
        (ScopeName::Pressure, Detector::PsiSome, 1500 * MIB)
    );
    // Once it is free, notices within the window are old ones.
    fake.uses("b", 0);
    assert_eq!(freed(&fake.step()), Some(true));
    fake.core.stalled(0, now());
    assert_eq!(fake.step(), []);
}

#[test]
fn waiting_for_memory_of_a_pods_own_costs_none() {
    let mut fake = short(500, false);
    fake.core.stalled(0, now());
    assert_eq!(fake.step(), []);
}

#[test]
fn on_a_node_without_free_memory_a_pod_goes() {
    let mut fake = short(500, false);
    fs::write(
        fake.dir.path().join("meminfo"),
        "MemTotal: 16 kB\nMemFree: 1 kB\n",
    )
    .unwrap();
    fake.core.stalled(0, now());
    assert_eq!(chosen(&fake.step()), [(2, true)]);
}

#[test]
fn a_pod_that_would_free_nothing_is_left_alone_although_tasks_wait() {
    let mut fake = short(3, true);
    fake.core.stalled(0, now());
    let reports = fake.step();
    assert_eq!(chosen(&reports), []);
    assert!(matches!(
        reports[..],
        [Report::Crossed(_), Report::NoCandidate(_)]
    ));
    // Said once, although the kernel goes on noticing.
    fake.core.stalled(0, now());
    assert_eq!(fake.step(), []);
    assert!(!fake.killed("a") && !fake.killed("b") && !fake.killed("c"));
}

#[test]
fn a_trigger_that_there_is_not_says_nothing() {
    let mut fake = short(500, true);
    fake.core.stalled(7, now());
    fake.core.limit_reached(3, now());
    fake.core.notified(3, now());
    assert_eq!(fake.step(), []);
}

#[test]
fn no_pod_goes_for_a_stranger_that_makes_tasks_wait() {
    let mut fake = short(500, true);
    fake.cgroup("stranger", 100 * MIB);
    let arm = |fake: &mut Fake, strangers, pods: &[&'static str]| {
        fake.strangers = strangers;
        fake.arm_at(1 << 40, pods, 1 << 40, true);
    };
    arm(&mut fake, vec!["stranger"], PODS);
    assert_eq!(fake.step(), []);
    fake.uses("stranger", 700 * MIB);
    fake.core.stalled(0, now());
    let reports = fake.step();
    assert_eq!(chosen(&reports), []);
    assert!(
        matches!(
            reports[..],
            [Report::Crossed(_), Report::StrangersGrow(_, usage)] if usage == 700 * MIB
        ),
        "{reports:?}"
    );
    fake.core.stalled(0, now());
    assert_eq!(fake.step(), [], "noticed again at once");
    // A source has told of it.
    let told = ["a", "b", "c", "stranger"];
    arm(&mut fake, Vec::new(), &told);
    fake.core.stalled(0, now() + 1_000_000_000);
    assert_eq!(chosen(&fake.step()), [(4, true)]);
}

#[test]
fn a_stranger_that_rests_keeps_no_pod_from_going_for_tasks_that_wait() {
    let mut fake = short(500, true);
    // Too small to be the reason.
    fake.cgroup("stranger", 3 * MIB);
    fake.strangers = vec!["stranger"];
    fake.arm_at(1 << 40, PODS, 1 << 40, true);
    fake.core.stalled(0, now());
    assert_eq!(chosen(&fake.step()), [(2, true)]);
}
