//! The laws of `policy::promise`.

use podwarden_policy::promise::{Freed, Living, Promise, STALLED_NS, TEARDOWN_NS, Waiting};
use proptest::prelude::*;

const START: u64 = 1_000;
const SECOND: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;

fn victim() -> Promise {
    Promise::new(1_000_000, START)
}

#[test]
fn most_of_it_is_all_of_it() {
    let mut promise = victim();
    assert_eq!(
        promise.look(START + 1, 100_001, false, false),
        Freed::NotYet
    );
    assert_eq!(promise.look(START + 2, 100_000, false, false), Freed::All);
    assert_eq!(promise.promised(), 100_000, "the rest is on its way");
    assert_eq!(promise.cost(START + 50), Some((900_000, 50)));
}

#[test]
fn a_cgroup_that_is_gone_is_free() {
    let mut promise = victim();
    assert_eq!(promise.look(START, 0, false, false), Freed::All);
    assert!(promise.is_over());
}

#[test]
fn page_cache_of_the_dead_is_waited_for_but_reported_soon() {
    let mut promise = victim();
    assert_eq!(promise.look(START + 1, 600_000, true, false), Freed::NotYet);
    assert_eq!(promise.look(START + 2, 600_000, true, true), Freed::All);
    let mut promise = victim();
    promise.look(START + 1, 600_000, true, false);
    let late = START + 1 + SECOND / 4;
    assert_eq!(promise.look(late - 1, 600_000, true, false), Freed::NotYet);
    assert_eq!(promise.look(late, 600_000, true, false), Freed::All);
    assert_eq!(promise.cost(late), None, "it says nothing of the next");
}

#[test]
fn what_teardown_gives_back_is_promised_until_the_kubelet_would_give_up() {
    let mut promise = victim();
    promise.look(START + 1, 600_000, true, true);
    promise.look(START + TEARDOWN_NS, 500_000, true, true);
    assert_eq!(promise.promised(), 500_000);
    promise.look(START + 1 + TEARDOWN_NS, 400_000, true, true);
    assert_eq!(promise.promised(), 0, "it counts again");
    assert!(promise.is_over());
}

#[test]
fn the_living_are_stuck_only_when_nothing_moves() {
    let mut promise = victim();
    let mut at = START;
    for left in [900_000, 800_000, 700_000] {
        at += STALLED_NS - 1;
        assert_eq!(promise.look(at, left, false, false), Freed::NotYet);
        assert_eq!(promise.promised(), left);
    }
    // Growing again is no progress.
    assert_eq!(promise.look(at + 1, 750_000, false, false), Freed::NotYet);
    assert_eq!(promise.promised(), 700_000);
    at += STALLED_NS;
    assert_eq!(promise.look(at, 700_000, false, false), Freed::Stuck);
    assert!(promise.is_over());
}

#[test]
fn a_victim_is_as_fast_as_others_until_it_is_seen_to_be_slow() {
    let mut promise = Promise::new(1_000 * MIB, 0);
    assert_eq!(promise.due(SECOND / 2, 77), 77);
    promise.look(SECOND, 900 * MIB, false, false);
    assert_eq!(promise.rate(), 100 * MIB);
    assert_eq!(promise.due(SECOND, 77), 77);
    // Nothing more has come for a second.
    promise.look(2 * SECOND, 900 * MIB, false, false);
    assert_eq!((promise.rate(), promise.due(2 * SECOND, 77)), (0, u64::MAX));
    promise.look(3 * SECOND, 800 * MIB, true, true);
    assert_eq!(
        (promise.rate(), promise.due(3 * SECOND, 77)),
        (0, 0),
        "teardown has no rate"
    );
}

/// The rate at `at` milliseconds, where `first` mebibytes a second are filled for 300 ms and `then` so many.
fn rate_after(first: u64, then: u64, at: u64) -> u64 {
    let mut living = Living::default();
    for millis in 0..=at {
        let rest = 100_000 + first * millis.min(300) + then * millis.saturating_sub(300);
        living.observe(millis * 1_000_000, rest * MIB / 1000, MIB);
    }
    living.rate() / MIB
}

#[test]
fn what_begins_to_fill_or_rests_is_not_averaged_with_the_time_before() {
    // Of the average it would be 667 and 286.
    assert!((3_900..=4_000).contains(&rate_after(1, 4_000, 400)));
    assert!(rate_after(400, 1, 420) <= 50);
    // What goes on is measured as exactly as before.
    assert!((396..=400).contains(&rate_after(400, 400, 420)));
}

#[test]
fn the_rate_of_the_living_is_measured_from_the_kill_on() {
    let mut living = Living::default();
    living.observe(0, 100 * MIB, MIB);
    living.observe(1_000_000, 110 * MIB, MIB);
    assert_eq!(living.rate(), 0, "too early to tell");
    living.observe(10_000_000, 111 * MIB, MIB);
    assert_eq!(living.rate(), 1_000 * MIB);
    living.observe(20_000_000, 90 * MIB, MIB);
    assert_eq!(living.rate(), 0);
}

/// 100 MiB above the level, which a victim that holds 1 GiB will cover.
fn waiting() -> Waiting {
    Waiting {
        used: 2_100 * MIB,
        promised: 1_024 * MIB,
        floor: 2_000 * MIB,
        level: 2_000 * MIB,
        limit: Some(2_500 * MIB),
        takes: SECOND / 10,
        ahead: MIB,
        due: SECOND / 10,
        ..Waiting::default()
    }
}

#[test]
fn a_second_victim_is_allowed_where_the_first_comes_too_late() {
    assert_eq!(waiting().shortfall(), None);
    // 10 GiB/s fill 1 GiB until the first is free.
    let fast = Waiting {
        growth: 10 << 30,
        ..waiting()
    };
    assert_eq!(fast.shortfall(), Some(100 * MIB));
    // The first is 100 GiB large and will take ten seconds more; 92 MiB/s are fine, 100 are not.
    let large = |growth| Waiting {
        due: 10 * SECOND,
        growth: growth * MIB,
        limit: None,
        ..waiting()
    };
    assert_eq!(large(92).shortfall(), None);
    assert!(large(93).shortfall().is_some());
    // It gives back nothing: that is time enough where nothing grows.
    let stuck = |growth| Waiting {
        slow: 1_024 * MIB,
        due: 0,
        growth,
        limit: None,
        ..waiting()
    };
    assert_eq!(stuck(0).shortfall(), None);
    assert_eq!(stuck(1).shortfall(), Some(100 * MIB));
}

#[test]
fn a_second_victim_is_allowed_where_the_limit_comes_first() {
    // Shared memory that waits for teardown, and 400 MiB of room.
    let shared = |growth: u64| Waiting {
        due: 0,
        growth: growth * MIB,
        takes: SECOND,
        ..waiting()
    };
    assert_eq!(shared(0).shortfall(), None);
    assert_eq!(shared(400).shortfall(), None);
    assert_eq!(shared(401).shortfall(), Some(MIB));
    // As fast as it is freed.
    assert_eq!(
        Waiting {
            freeing: 401 * MIB,
            ..shared(401)
        }
        .shortfall(),
        None
    );
    // At the limit nothing grows any more.
    let full = Waiting {
        limit: Some(2_100 * MIB),
        ..shared(0)
    };
    assert_eq!(full.shortfall(), Some(0));
}

prop_compose! {
    fn situation()(
        used in 0_u64..1 << 40,
        promised in 0_u64..1 << 40,
        slow in 0_u64..1 << 40,
        reclaim in 0_u64..1 << 30,
        level in 1_u64..1 << 40,
        room in prop::option::of(0_u64..1 << 40),
        growth in 0_u64..1 << 36,
        freeing in 0_u64..1 << 36,
        due in 0_u64..100 * SECOND,
        takes in 0_u64..100 * SECOND,
    ) -> Waiting {
        Waiting {
            used,
            promised,
            slow: slow.min(promised),
            floor: level.saturating_sub(reclaim),
            level,
            limit: room.map(|room| level + room),
            growth,
            freeing,
            due,
            takes,
            ahead: MIB,
        }
    }
}

proptest! {
    #[test]
    fn a_promise_is_never_more_than_what_is_there_and_ends(
        looks in prop::collection::vec((1_u64..3 * SECOND, 0_u64..2_000_000, any::<bool>()), 1..60),
        empties in 0_usize..60,
    ) {
        let (mut promise, mut at, mut least) = (victim(), START, 1_000_000);
        let mut empty_since = None;
        for (number, (step, left, swept)) in looks.into_iter().enumerate() {
            at += step;
            least = least.min(left);
            if number >= empties {
                empty_since.get_or_insert(at);
            }
            promise.look(at, left, empty_since.is_some(), swept && empty_since.is_some());
            prop_assert!(promise.promised() <= left.min(least));
            if empty_since.is_some_and(|since| at - since >= TEARDOWN_NS) {
                prop_assert_eq!(promise.promised(), 0);
            }
        }
    }

    #[test]
    fn below_the_floor_nothing_is_asked_for_and_at_it_without_promises_all_is(
        situation in situation(),
    ) {
        if situation.used < situation.floor {
            prop_assert_eq!(situation.shortfall(), None);
        }
        let alone = Waiting { promised: 0, slow: 0, ..situation };
        if situation.used >= situation.floor {
            prop_assert_eq!(alone.shortfall(), Some(situation.used - situation.floor));
        }
    }

    #[test]
    fn what_the_kernel_charges_ahead_is_no_growth(
        looks in prop::collection::vec((1_u64..40_000_000, 0_u64..=96 * MIB), 1..200),
    ) {
        let (mut living, mut at) = (Living::default(), 0);
        for (step, charged) in looks {
            at += step;
            living.observe(at, 1_000 * MIB + charged, 96 * MIB);
            prop_assert_eq!(living.rate(), 0);
        }
    }

    #[test]
    fn without_growth_there_is_time(situation in situation()) {
        let rests = Waiting { growth: 0, ..situation };
        let is_full = rests.limit.is_some_and(|limit| limit.saturating_sub(rests.used) <= rests.ahead);
        if rests.rest() < rests.floor && !is_full {
            prop_assert_eq!(rests.shortfall(), None);
        }
    }

    #[test]
    fn more_growth_less_room_and_less_promised_never_make_it_wait(
        situation in situation(),
        more in 0_u64..1 << 30,
    ) {
        if situation.shortfall().is_some() {
            let faster = Waiting { growth: situation.growth.saturating_add(more), ..situation };
            prop_assert!(faster.shortfall().is_some());
            let nearer = Waiting {
                limit: situation.limit.map(|limit| limit.saturating_sub(more)),
                ..situation
            };
            prop_assert!(nearer.shortfall().is_some());
            let less = Waiting {
                promised: situation.promised.saturating_sub(more),
                slow: situation.slow.min(situation.promised.saturating_sub(more)),
                ..situation
            };
            // Of the slow part none is expected in time anyway.
            prop_assert!(less.shortfall().is_some() || situation.slow > 0);
        }
    }
}

#[test]
fn memory_is_mostly_shared_where_more_than_half_of_it_is() {
    let of = podwarden_policy::promise::is_mostly_shared;
    assert!(of(51, 100) && of(100, 100) && of(u64::MAX, u64::MAX));
    assert!(!of(50, 100) && !of(0, 100) && !of(0, 0));
}
