use super::*;

#[test]
fn the_limit_on_evictions_is_kept_and_said_once() {
    let mut fake = three_pods(1);
    fake.arm(PODS, LEVEL, true);
    fake.uses("kubepods", LEVEL);
    assert_eq!(chosen(&fake.step()), [(2, true)]);
    fake.uses("b", 0);
    let reports = fake.step();
    assert!(
        matches!(reports[..], [Report::Freed { .. }, Report::RateLimited(_)]),
        "{reports:?}"
    );
    assert_eq!(fake.step(), []);
    assert!(!fake.killed("a") && !fake.killed("c"));
}

#[test]
fn no_candidate_is_said_once_and_a_reclaim_that_cannot_be_is_given_up() {
    let mut fake = three_pods(60);
    fake.arm(&["b"], LEVEL / 2, true);
    fake.uses("kubepods", LEVEL);
    assert_eq!(chosen(&fake.step()), [(1, true)]);
    fake.uses("b", 0);
    let reports = fake.step();
    assert!(
        matches!(reports[..], [Report::Freed { .. }, Report::NoCandidate(_)]),
        "{reports:?}"
    );
    assert_eq!(fake.step(), []);
    // Below the level, above the target: no candidate could give more, so it is over.
    fake.uses("kubepods", LEVEL - 1);
    assert_eq!(fake.step(), []);
    fake.uses("kubepods", LEVEL);
    assert!(matches!(fake.step()[0], Report::Crossed(_)), "a new one");
}

#[test]
fn reports_that_find_the_queue_full_are_counted_and_the_kill_is_done() {
    let mut fake = three_pods(60);
    fake.reports = {
        // One place, taken by the first report.
        let (producer, reports) = rtrb::RingBuffer::new(1);
        fake.core.reports = producer;
        reports
    };
    fake.arm(PODS, LEVEL, true);
    fake.uses("kubepods", LEVEL);
    let reports = fake.step();
    assert!(matches!(reports[..], [Report::Crossed(_)]), "{reports:?}");
    assert_eq!(fake.shared.lost.load(Ordering::Relaxed), 1);
    assert!(fake.killed("b"));
}
