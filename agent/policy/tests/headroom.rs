//! The laws of `headroom`, and worked examples.

use podwarden_policy::headroom::{FillRate, HALF_LIFE_NS, ReapCost, filled, level};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Two CPUs' batches.
const AHEAD: u64 = 512 << 10;

/// Looks every `step` at a fill of `rate` bytes per second from 0, for `ns`.
fn fill(rate: u64, step: u64, ns: u64) -> FillRate {
    let mut seen = FillRate::default();
    for at in (0..=ns).step_by(usize::try_from(step).unwrap()) {
        seen.observe(at, filled(rate, at), AHEAD);
    }
    seen
}

#[test]
fn a_steady_filler_is_seen_within_ten_milliseconds() {
    for (rate, step) in [(GIB, MS), (4 * GIB, MS), (GIB, 5 * MS)] {
        let seen = fill(rate, step, 10 * MS).at(10 * MS);
        assert!(
            seen <= rate && seen >= rate * 8 / 10,
            "{rate} every {step}: {seen}"
        );
    }
}

#[test]
fn a_slow_filler_is_seen_too() {
    let rate = 100 * MIB;
    let seen = fill(rate, MS, 200 * MS).at(200 * MS);
    assert!(seen <= rate && seen >= rate * 8 / 10, "{seen}");
}

#[test]
fn what_is_charged_ahead_is_no_growth() {
    let mut seen = FillRate::default();
    for at in 0..1000 {
        // Every CPU takes a batch and gives it back.
        seen.observe(at * MS, GIB + at % 3 * (AHEAD / 2), AHEAD);
    }
    assert_eq!(seen.at(1000 * MS), 0);
}

#[test]
fn a_rate_fades() {
    let seen = fill(GIB, MS, 20 * MS);
    let at = |ns| seen.at(20 * MS + ns);
    let now = at(0);
    assert_eq!(at(HALF_LIFE_NS), now / 2);
    assert_eq!(at(2 * HALF_LIFE_NS), now / 4);
    assert_eq!(at(40 * HALF_LIFE_NS), 0);
    assert_eq!(at(u64::MAX / 2), 0);
}

#[test]
fn memory_that_was_freed_ends_a_measurement() {
    let mut seen = FillRate::default();
    seen.observe(0, GIB, AHEAD);
    seen.observe(10 * MS, 0, AHEAD);
    seen.observe(20 * MS, GIB / 2, AHEAD);
    let rate = seen.at(20 * MS);
    assert!(rate > 49 * GIB && rate <= 50 * GIB, "{rate}");
}

/// What is in use is known at the last look alone; before, no more than that all of usage was at most.
#[test]
fn a_bound_is_enough_to_measure_from() {
    for (rate, step) in [(300 * MIB, MS), (300 * MIB, 200_000), (2 * GIB, MS)] {
        let mut seen = FillRate::default();
        let end = 100 * MS;
        for at in (0..end).step_by(usize::try_from(step).unwrap()) {
            seen.bound(at, filled(rate, at), AHEAD);
            assert_eq!(seen.at(at), 0, "a bound is no growth");
        }
        seen.observe(end, filled(rate, end), AHEAD);
        let found = seen.at(end);
        assert!(
            found <= rate && found >= rate * 8 / 10,
            "{rate} every {step}: {found}"
        );
    }
}

#[test]
fn page_cache_that_came_before_is_no_growth() {
    let mut seen = FillRate::default();
    for ms in 0..100 {
        seen.bound(ms * MS, 100 * MIB + filled(GIB, ms * MS), AHEAD);
    }
    // All of that was page cache.
    seen.observe(100 * MS, 100 * MIB, AHEAD);
    assert_eq!(seen.at(100 * MS), 0);
}

#[test]
fn the_cost_of_reaping_is_learned_within_bounds() {
    let mut cost = ReapCost::default();
    assert_eq!(cost.of(GIB), 100 * MS);
    assert_eq!(cost.of(GIB / 2), 50 * MS);
    cost.learn(GIB, 500 * MS);
    assert_eq!(cost.of(GIB), 300 * MS, "slow at once");
    for _ in 0..60 {
        cost.learn(2 * GIB, 120 * MS);
    }
    assert!((60 * MS..62 * MS).contains(&cost.of(GIB)), "{cost:?}");
    let before = cost;
    cost.learn(MIB, 900 * MS);
    assert_eq!(cost, before, "too small to tell");
    for _ in 0..30 {
        cost.learn(GIB, u64::MAX);
    }
    assert!(cost.of(GIB) <= 1000 * MS);
    for _ in 0..60 {
        cost.learn(u64::MAX, 0);
    }
    assert!((10 * MS..11 * MS).contains(&cost.of(GIB)), "{cost:?}");
}

#[test]
fn worked_example() {
    // 500 MiB/s against a limit 16 MiB above the level; a victim of 256 MiB takes 25 ms, noticing 5 ms.
    let limit = 512 * MIB;
    let headroom = filled(500 * MIB, ReapCost::default().of(256 * MIB) + 5 * MS);
    assert_eq!(headroom, 15 * MIB);
    assert_eq!(
        level(limit - 16 * MIB, Some(limit), headroom, 50 * MIB),
        limit - 16 * MIB
    );
    // At 2 GiB/s it would take 61 MiB.
    let headroom = filled(2 * GIB, ReapCost::default().of(256 * MIB) + 5 * MS);
    let armed = level(limit - 16 * MIB, Some(limit), headroom, 50 * MIB);
    assert_eq!(armed, limit - headroom);
    assert_eq!(
        level(limit - 16 * MIB, Some(limit), headroom, 8 * MIB),
        limit - 24 * MIB
    );
    assert_eq!(
        level(limit - 16 * MIB, None, headroom, 50 * MIB),
        limit - 16 * MIB
    );
}

proptest! {
    #[test]
    fn the_level_stays_within_its_bounds(
        configured: u64, limit in any::<Option<u64>>(), headroom: u64, cap: u64
    ) {
        let armed = level(configured, limit, headroom, cap);
        prop_assert!(armed <= configured);
        prop_assert!(armed >= configured.saturating_sub(cap));
        if limit.is_none_or(|limit| headroom <= limit.saturating_sub(configured) && limit >= configured) {
            prop_assert_eq!(armed, configured, "there is room enough");
        }
    }

    #[test]
    fn more_headroom_never_raises_the_level(
        configured: u64, limit: u64, a: u64, b: u64, cap: u64
    ) {
        let (less, more) = (a.min(b), a.max(b));
        prop_assert!(level(configured, Some(limit), more, cap) <= level(configured, Some(limit), less, cap));
    }

    /// However usage moves and whenever it is looked at, no rate is above the steepest growth between
    /// two looks that are a millisecond apart.
    #[test]
    fn no_rate_is_made_up(
        steps in prop::collection::vec((1u64..20 * MS, 0u64..64 * MIB, any::<bool>()), 1..60),
    ) {
        let mut seen = FillRate::default();
        let (mut now, mut usage) = (0, 512 * MIB);
        let mut looks = vec![(now, usage)];
        seen.observe(now, usage, 0);
        for (step, moved, up) in steps {
            now += step;
            usage = if up { usage + moved } else { usage.saturating_sub(moved) };
            seen.observe(now, usage, 0);
            looks.push((now, usage));
            let steepest = looks
                .iter()
                .flat_map(|a| looks.iter().map(move |b| (a, b)))
                .filter(|(a, b)| b.0 >= a.0 + MS && b.1 > a.1)
                .map(|(a, b)| u128::from(b.1 - a.1) * 1_000_000_000 / u128::from(b.0 - a.0))
                .max()
                .unwrap_or(0);
            prop_assert!(u128::from(seen.at(now)) <= steepest);
        }
    }

    #[test]
    fn a_rate_never_rises_by_itself(rate in 0..64 * GIB, a in 0..10_000 * MS, b in 0..10_000 * MS) {
        let seen = fill(rate, MS, 20 * MS);
        prop_assert!(seen.at(20 * MS + a.max(b)) <= seen.at(20 * MS + a.min(b)));
    }
}
