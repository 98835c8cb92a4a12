use super::*;

const LEVEL: u64 = 1000;
const RETRY: Duration = Duration::from_nanos(100);

fn look(at: u64, usage: u64) -> Look {
    Look {
        at,
        usage,
        working_set: usage,
    }
}

fn above(watch: &mut Watch, at: u64) -> Next {
    watch.above(LEVEL, look(at, LEVEL), at, RETRY)
}

fn decide(crossed: u64, detector: Detector, first: bool) -> Next {
    Next::Decide {
        crossed,
        detector,
        first,
    }
}

#[test]
fn a_level_below_usage_at_the_first_look_is_crossed_now() {
    assert_eq!(
        above(&mut Watch::default(), 5_000),
        decide(5_000, Detector::Sampler, true)
    );
}

#[test]
fn the_sampler_interpolates_from_the_last_look_below() {
    let mut watch = Watch::default();
    watch.below(look(100, 0));
    assert_eq!(
        watch.above(LEVEL, look(300, 2000), 290, RETRY),
        decide(200, Detector::Sampler, true)
    );
}

#[test]
fn the_kernels_stamp_is_used_once_and_never_later_than_the_wake() {
    let mut watch = Watch::default();
    watch.below(look(10, 1));
    watch.reported(50, Detector::Charge, 55);
    watch.notified(54, Detector::EventFd);
    assert_eq!(above(&mut watch, 60), decide(50, Detector::Charge, true));
    assert_eq!(above(&mut watch, 70), decide(70, Detector::Sampler, false));
    // What is said while above belongs to no later crossing.
    watch.notified(75, Detector::MemoryEvents);
    watch.below(look(80, 0));
    assert_eq!(
        watch.above(LEVEL, look(100, 2000), 100, RETRY),
        decide(90, Detector::Sampler, true)
    );
}

#[test]
fn a_stamp_of_a_crossing_that_passed_is_forgotten() {
    let mut watch = Watch::default();
    watch.reported(50, Detector::Charge, 51);
    watch.below(look(60, 0));
    assert_eq!(
        watch.above(LEVEL, look(80, 2000), 80, RETRY),
        decide(70, Detector::Sampler, true)
    );
}

#[test]
fn no_candidate_is_said_once_and_asked_again_after_a_while_or_with_a_new_plan() {
    let mut watch = Watch::default();
    above(&mut watch, 1_000);
    assert!(watch.no_candidate(1_000));
    assert_eq!(above(&mut watch, 1_099), Next::Rest);
    assert_eq!(
        above(&mut watch, 1_100),
        decide(1_100, Detector::Sampler, false)
    );
    assert!(!watch.no_candidate(1_100));
    let mut watch = watch.replanned();
    assert_eq!(
        above(&mut watch, 1_101),
        decide(1_101, Detector::Sampler, false)
    );
    assert!(!watch.no_candidate(1_101));
    watch.below(look(1_102, 0));
    above(&mut watch, 1_103);
    assert!(watch.no_candidate(1_103), "another crossing");
}

#[test]
fn observe_mode_says_a_crossing_once() {
    let mut watch = Watch::default();
    above(&mut watch, 10);
    watch.settle();
    assert_eq!(above(&mut watch, 1_000_000), Next::Rest);
    assert_eq!(above(&mut watch.replanned(), 1_000_001), Next::Rest);
    watch.below(look(1_000_002, 0));
    assert_ne!(above(&mut watch, 1_000_003), Next::Rest);
}

#[test]
fn the_kernel_is_armed_above_the_cache_and_left_alone_after_a_report() {
    let mut watch = Watch::default();
    let cached = Look {
        at: 10,
        usage: 1_500,
        working_set: 600,
    };
    watch.below(cached);
    let wanted = |watch: &Watch, look| watch.usage_to_arm(LEVEL, None, look, RETRY);
    assert_eq!(wanted(&watch, cached), Some(1_900));
    watch.armed(1_900);
    assert_eq!(wanted(&watch, cached), None);
    // A report that did not hold: silent, then armed again although no crossing came of it.
    watch.reported(20, Detector::Charge, 21);
    watch.below(look(22, 999));
    assert_eq!(wanted(&watch, look(22, 999)), None);
    assert_eq!(wanted(&watch, look(121, 999)), Some(LEVEL));
    let left = watch.sleep(LEVEL, 22, 1, RETRY, Duration::from_secs(1));
    assert_eq!(left, Duration::from_nanos(99));
}

#[test]
fn the_kernel_is_not_armed_while_above() {
    let mut watch = Watch::default();
    above(&mut watch, 10);
    let wanted = watch.usage_to_arm(LEVEL, None, look(20, LEVEL), RETRY);
    assert_eq!(wanted, None);
}

#[test]
fn page_cache_up_to_the_limit_does_not_put_the_level_where_no_charge_comes() {
    let mut watch = Watch::default();
    let cached = |usage| Look {
        at: 10,
        usage,
        working_set: 100,
    };
    watch.below(cached(1_200));
    let wanted =
        |watch: &Watch, usage, most| watch.usage_to_arm(LEVEL, Some(most), cached(usage), RETRY);
    assert_eq!(
        wanted(&watch, 1_200, 1_500),
        Some(1_500),
        "2,100 is never reached"
    );
    assert_eq!(wanted(&watch, 1_200, 3_000), Some(2_100));
    // At the limit every charge would report, and say nothing.
    assert_eq!(wanted(&watch, 1_500, 1_500), None);
    assert_eq!(wanted(&watch, 2_000, 3_000), Some(2_900));
}

#[test]
fn once_acted_the_target_counts_until_it_is_reached() {
    let target = 700;
    let mut watch = Watch::default();
    let floor = |watch: &Watch| watch.floor(LEVEL, target);
    assert_eq!(floor(&watch), LEVEL);
    above(&mut watch, 10);
    assert_eq!(floor(&watch), LEVEL);
    watch.acted();
    assert_eq!(floor(&watch), target);
    let next = watch.above(LEVEL, look(20, 800), 20, RETRY);
    assert_eq!(next, decide(20, Detector::Sampler, false));
    assert_eq!(floor(&watch), target);
    watch.below(look(30, 699));
    assert_eq!(floor(&watch), LEVEL);
    assert_eq!(watch.floor(LEVEL, LEVEL + 1), LEVEL);
}

#[test]
fn sleeps_by_phase() {
    let (shortest, longest) = (Duration::from_millis(1), Duration::from_millis(100));
    let mut watch = Watch::default();
    let sleep = |watch: &Watch| watch.sleep(LEVEL, 0, 1, shortest, longest);
    above(&mut watch, 10);
    assert_eq!(sleep(&watch), shortest, "decide again soon");
    watch.no_candidate(10);
    assert_eq!(sleep(&watch), longest);
    watch.settle();
    assert_eq!(sleep(&watch), longest);
    watch.acted();
    assert_eq!(sleep(&watch), shortest);
}
