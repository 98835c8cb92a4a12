use super::*;

#[test]
fn a_pod_has_its_time_and_is_killed_once() {
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let mut time = Time {
        until: after(5),
        killed: None,
    };
    assert_eq!(time.next(false, after(4)), Next::Wait);
    assert_eq!(time.next(true, after(4)), Next::Ended);
    assert_eq!(time.next(false, after(5)), Next::Kill);
    time.killed = Some(after(5));
    assert_eq!(time.next(false, after(34)), Next::Wait);
    assert_eq!(time.next(true, after(34)), Next::Ended);
    assert_eq!(time.next(false, after(35)), Next::GiveUp);
}

#[test]
fn the_pause_doubles_while_evictions_change_nothing() {
    let (mut pace, start) = (Pace::default(), Instant::now());
    assert!(pace.allows(start));
    let mut pauses = Vec::new();
    for has_helped in [
        false, false, false, true, false, false, false, false, false, false,
    ] {
        pace.over(has_helped, start);
        assert_eq!(pace.is_slower(), !has_helped);
        assert!(!pace.allows(start + pace.pause - kill::LOOK) && pace.allows(start + pace.pause));
        pauses.push(pace.pause.as_secs());
    }
    assert_eq!(pauses, [20, 40, 80, 10, 20, 40, 80, 160, 300, 300]);
}

#[test]
fn the_time_of_a_pod_goes_on_with_the_next_agent() {
    let told = |ago: u64, grace| {
        let mut eviction = Eviction::default();
        eviction.pod.uid = "a".into();
        let ago = ago * 1_000_000_000;
        eviction.timeline.killed_nanos = Some(monotonic().saturating_sub(ago));
        eviction.grace_seconds = grace;
        eviction
    };
    let mut graceful = Graceful::new(60);
    assert!(!graceful.recall(&told(1, None)), "it was killed");
    assert!(!graceful.recall(&told(31, Some(30))), "its time is over");
    assert_eq!(graceful.due(), None);
    assert!(graceful.recall(&told(10, Some(30))));
    let left = graceful.recalled[&PodUid::from("a")].duration_since(Instant::now());
    assert!((15..=20).contains(&left.as_secs()), "{left:?}");
    assert_eq!(graceful.due(), Some(kill::LOOK));
    let late = Instant::now() + left + kill::LONGEST;
    assert!(graceful.overdue(late - kill::LOOK).is_empty());
    assert!(graceful.recall(&told(10, Some(30))));
    assert!(graceful.cut_short(&"a".into(), Instant::now()));
    assert!(!graceful.cut_short(&"a".into(), Instant::now()));
}

#[test]
fn a_pod_that_gains_too_little_gives_way_once_one_has_not_helped() {
    let of = |used: &[Option<u64>], missing| {
        choose(missing, |least| {
            let uses = |used: &Option<u64>| used.unwrap_or(0) >= least;
            used.iter().position(uses)
        })
    };
    let used = [Some(4), None, Some(100), Some(200)];
    assert_eq!(of(&used, None), Some(0));
    assert_eq!(of(&used, Some(50)), Some(2));
    // None is enough.
    assert_eq!(of(&used, Some(1000)), Some(0));
    assert_eq!(
        [None, Some(0)].map(|missing| of(&[], missing)),
        [None, None]
    );
}
