//! The law by which pods give page cache back, and its bounds.

use podwarden_policy::{
    Bytes,
    colocation::proactive::{
        Decision, FIRST_REST_NANOS, Idle, LONGEST_REST_NANOS, PRESSURE_PPM, PROBE, Pace, Reading,
        step,
    },
};
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;
const INTERVAL: u64 = 6 * SECOND;
const MIB: u64 = 1 << 20;

/// A pod of 1 GiB whose 600 MiB of page cache are not used.
fn cold(at: u64) -> Reading {
    Reading {
        at,
        usage: Bytes::gibi(1),
        cache: Bytes::mebi(600),
        ..Reading::default()
    }
}

#[test]
fn a_step_is_one_percent_of_usage_and_less_under_pressure() {
    let usage = Bytes(100_000);
    assert_eq!(step(usage, 1, 0), Bytes(1_000));
    assert_eq!(step(usage, 1, 250), Bytes(750));
    assert_eq!(step(usage, 1, PRESSURE_PPM), Bytes::ZERO);
    assert_eq!(step(usage, 1, u64::MAX), Bytes::ZERO);
    assert_eq!(step(usage, 10, 500), Bytes(5_000));
}

#[test]
fn steps_begin_with_a_probe_and_double_up_to_the_law() {
    let mut pace = Pace::default();
    assert_eq!(pace.decide(cold(1), 1), Decision::First);
    let steps: Vec<_> = (1..6)
        .map(|n| pace.decide(cold(1 + n * INTERVAL), 1))
        .collect();
    let law = step(Bytes::gibi(1), 1, 0);
    let wanted = [
        Bytes(MIB),
        Bytes(2 * MIB),
        Bytes(4 * MIB),
        Bytes(8 * MIB),
        law,
    ];
    assert_eq!(steps, wanted.map(Decision::Take));
}

#[test]
fn a_refault_stops_it_for_longer_each_time() {
    let mut pace = Pace::default();
    pace.decide(cold(0), 1);
    let mut at = INTERVAL;
    assert_eq!(pace.decide(cold(at), 1), Decision::Take(PROBE));
    let mut refaults = 0;
    let mut rest = FIRST_REST_NANOS;
    for _ in 0..10 {
        at += INTERVAL;
        refaults += 1;
        let reading = |at| Reading {
            refaults,
            ..cold(at)
        };
        assert_eq!(pace.decide(reading(at), 1), Decision::Refaulted);
        assert_eq!(pace.decide(reading(at + rest - 1), 1), Decision::Resting);
        at += rest;
        assert_eq!(pace.decide(reading(at), 1), Decision::Take(PROBE));
        rest = (rest * 2).min(LONGEST_REST_NANOS);
    }
    // After so long without one, the next rest is short again.
    at += LONGEST_REST_NANOS;
    refaults += 1;
    let reading = |at| Reading {
        refaults,
        ..cold(at)
    };
    pace.decide(reading(at), 1);
    let after = pace.decide(reading(at + FIRST_REST_NANOS), 1);
    assert_eq!(after, Decision::Take(PROBE));
}

#[test]
fn pressure_stops_it_and_the_next_step_is_a_probe() {
    let mut pace = Pace::default();
    pace.decide(cold(0), 1);
    for n in 1..5 {
        pace.decide(cold(n * INTERVAL), 1);
    }
    // 0.1 % of 6 s.
    let stalled = |at, stalled_nanos| Reading {
        stalled_nanos,
        ..cold(at)
    };
    let now = pace.decide(stalled(5 * INTERVAL, INTERVAL / 1_000), 1);
    assert_eq!(now, Decision::Pressure);
    let now = pace.decide(stalled(6 * INTERVAL, INTERVAL / 1_000), 1);
    assert_eq!(now, Decision::Take(PROBE));
}

#[test]
fn what_is_protected_or_no_clean_cache_stays() {
    let take = |reading: Reading| {
        let mut pace = Pace::default();
        pace.decide(reading, 10);
        pace.decide(
            Reading {
                at: INTERVAL,
                ..reading
            },
            10,
        )
    };
    let protected = Bytes::mebi(600);
    assert_eq!(
        take(Reading {
            protected,
            ..cold(0)
        }),
        Decision::Nothing
    );
    let cache = Bytes(4096);
    assert_eq!(take(Reading { cache, ..cold(0) }), Decision::Take(cache));
    assert_eq!(
        take(Reading {
            cache: Bytes::ZERO,
            ..cold(0)
        }),
        Decision::Nothing
    );
}

#[test]
fn a_pod_is_cold_once_it_has_not_worked_for_so_long() {
    let mut idle = Idle::default();
    let for_nanos = 60 * SECOND;
    assert!(
        !idle.is_cold(0, 0, for_nanos),
        "what it did before is not known"
    );
    // 0.9 % of a CPU.
    let used = |at: u64| at / 1_000 * 9;
    for at in (6..60).step_by(6).map(|s| s * SECOND) {
        assert!(!idle.is_cold(at, used(at), for_nanos));
    }
    assert!(idle.is_cold(60 * SECOND, used(60 * SECOND), for_nanos));
    // It works again: 1 % of a CPU and more.
    let now = 66 * SECOND;
    let worked = used(60 * SECOND) + 60_000_000;
    assert!(!idle.is_cold(now, worked, for_nanos));
    assert!(!idle.is_cold(now + 59 * SECOND, worked, for_nanos));
    assert!(idle.is_cold(now + 60 * SECOND, worked, for_nanos));
}

prop_compose! {
    fn reading()(
        after in 0_u64..20 * SECOND,
        usage in prop_oneof![0..1_u64 << 40, Just(u64::MAX)],
        cache in prop_oneof![0..1_u64 << 40, Just(u64::MAX)],
        protected in prop_oneof![3 => Just(0), 1 => 0..1_u64 << 40],
        stalled in prop_oneof![3 => Just(0), 1 => 0..40_000_000_u64],
        refaulted in prop_oneof![5 => Just(0), 1 => 1..1_000_u64],
    ) -> Reading {
        Reading {
            at: after,
            usage: Bytes(usage),
            cache: Bytes(cache),
            protected: Bytes(protected),
            stalled_nanos: stalled,
            refaults: refaulted,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]
    /// The generated times, stalls and refaults are differences.
    #[test]
    fn no_step_is_above_its_bounds_and_none_follows_a_refault(
        percent in 1_u64..=10,
        readings in prop::collection::vec(reading(), 2..60),
    ) {
        let mut pace = Pace::default();
        let mut now = Reading::default();
        let mut quiet_from = 0;
        let (mut first, mut takes) = (true, 0_u32);
        for more in readings {
            let before = now;
            now = Reading {
                at: before.at + more.at,
                stalled_nanos: before.stalled_nanos + more.stalled_nanos,
                refaults: before.refaults + more.refaults,
                ..more
            };
            let decision = pace.decide(now, percent);
            if !first && more.refaults > 0 {
                prop_assert_eq!(decision, Decision::Refaulted);
                quiet_from = now.at + FIRST_REST_NANOS;
            }
            if let Decision::Take(take) = decision {
                prop_assert!(!take.is_zero());
                prop_assert!(now.at >= quiet_from, "a rest is at least the first");
                prop_assert!(take <= step(now.usage, percent, 0), "the law");
                prop_assert!(take.saturating_add(now.protected) <= now.usage, "protected");
                prop_assert!(take.saturating_add(now.protected) <= now.cache, "clean cache");
                let waited = u128::from(more.stalled_nanos) * 1_000;
                prop_assert!(waited < u128::from(more.at), "pressure");
                prop_assert!(u128::from(take.0) <= u128::from(PROBE.0) << takes, "doubled at most");
                takes += 1;
            }
            if matches!(decision, Decision::Refaulted | Decision::Pressure) {
                takes = 0;
            }
            first = false;
        }
    }

    #[test]
    fn more_pressure_takes_no_more(
        usage in any::<u64>(),
        percent in 1_u64..=10,
        pressure in 0_u64..2_000,
        more in 0_u64..2_000,
    ) {
        let at = |pressure| step(Bytes(usage), percent, pressure);
        prop_assert!(at(pressure + more) <= at(pressure));
        prop_assert!(at(pressure) <= Bytes(usage).percent(percent));
    }
}
