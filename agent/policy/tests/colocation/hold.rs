//! The law by which best effort is held back while a protected pod waits.

use podwarden_policy::{
    MilliCpu,
    colocation::hold::{Bounds, Hold, QUIET_NANOS, SETTLE_NANOS},
};
use proptest::prelude::*;

const NODE: Bounds = Bounds {
    cpus: MilliCpu(2000),
    floor: MilliCpu(100),
};

#[test]
fn a_wait_halves_what_best_effort_uses_and_quiet_gives_it_back() {
    let mut hold = Hold::default();
    assert!(hold.waited(1, MilliCpu(1800), &NODE));
    assert_eq!(hold.limit(), Some(MilliCpu(900)));
    // It began before the step.
    assert!(!hold.waited(SETTLE_NANOS, MilliCpu(900), &NODE));
    assert!(hold.waited(SETTLE_NANOS + 1, MilliCpu(900), &NODE));
    assert_eq!(hold.limit(), Some(MilliCpu(450)));
    let last = SETTLE_NANOS + 1;
    assert!(!hold.rises(last + QUIET_NANOS - 1, &NODE));
    let due = hold.due().expect("a step back is due");
    assert_eq!(due, last + QUIET_NANOS);
    let steps: Vec<_> = (0..8)
        .map(|step| {
            assert!(hold.rises(due + step * QUIET_NANOS, &NODE));
            hold.limit()
        })
        .collect();
    assert_eq!(steps[..2], [Some(MilliCpu(650)), Some(MilliCpu(850))]);
    assert_eq!(steps[7], None);
    assert_eq!(hold.due(), None);
}

#[test]
fn best_effort_that_uses_no_more_than_its_floor_is_left_alone() {
    let mut hold = Hold::default();
    assert!(!hold.waited(1, NODE.floor, &NODE));
    assert_eq!(hold, Hold::default());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]
    #[test]
    fn the_limit_stays_within_its_bounds_falls_by_waits_and_rises_by_steps(
        cpus in 1_u64..512_000,
        floor_percent in 1_u64..=100,
        events in prop::collection::vec((0_u64..150_000_000, prop::option::of(0_u64..600_000)), 1..60),
    ) {
        let bounds = Bounds { cpus: MilliCpu(cpus), floor: MilliCpu(cpus * floor_percent / 100) };
        let mut hold = Hold::default();
        let mut now = 1;
        for (elapsed, used) in events {
            now += elapsed;
            let before = hold.limit();
            let changed = match used {
                Some(used) => hold.waited(now, MilliCpu(used), &bounds),
                None => hold.rises(now, &bounds),
            };
            let after = hold.limit();
            prop_assert_eq!(changed, before != after);
            if let Some(limit) = after {
                prop_assert!(limit >= bounds.floor && limit <= bounds.cpus, "{limit}");
            }
            let amount = |limit: Option<MilliCpu>| limit.map_or(u64::MAX, |limit| limit.0);
            match used {
                Some(_) => prop_assert!(amount(after) <= amount(before)),
                None => {
                    prop_assert!(amount(after) >= amount(before));
                    if let (Some(before), Some(after)) = (before, after) {
                        prop_assert!(after.0 - before.0 <= (cpus / 10).max(1));
                    }
                }
            }
        }
        // Quiet gives everything back, whatever came before.
        for _ in 0..20 {
            now += QUIET_NANOS;
            hold.rises(now, &bounds);
        }
        prop_assert_eq!(hold.limit(), None);
    }
}
