use podwarden_policy::colocation::{
    strategies,
    suppress::{MIN_QUOTA_US, cpuset},
};
use proptest::prelude::*;

use super::*;

const NODE: MilliCpu = MilliCpu(4000);

fn cpus(count: u32) -> Sets {
    let cpu = |id| cpuset::Cpu {
        id,
        core: id / 2,
        socket: 0,
        node: 0,
    };
    Sets {
        cpus: (0..count).map(cpu).collect(),
        present: (0..count).collect(),
        ..Sets::default()
    }
}

fn after(start: Instant, ms: u64) -> Instant {
    start + Duration::from_millis(ms)
}

#[test]
fn less_counts_at_once_and_more_once_a_second() {
    let (mut law, start) = (Law::default(), Instant::now());
    let mut step = |quantity, ms| {
        law.step(
            (Policy::CfsQuota, NODE),
            quantity,
            after(start, ms),
            &Sets::default(),
        );
        law.quota.unwrap()
    };
    assert_eq!(step(2600, 0), 260_000);
    assert_eq!(step(1000, 250), 100_000);
    assert_eq!(step(200, 500), 20_000);
    // Its first value counts as a step up.
    assert_eq!(step(2600, 750), 20_000);
    assert_eq!(step(2600, 1000), 60_000, "a tenth of the node");
    assert_eq!(step(2600, 1250), 60_000);
    assert_eq!(step(2600, 1999), 60_000);
    assert_eq!(step(2600, 2000), 100_000);
    assert_eq!(step(-500, 2001), MIN_QUOTA_US);
}

#[test]
fn cpus_stay_the_same_while_they_are_as_many_and_free() {
    let (mut law, start) = (Law::default(), Instant::now());
    let mut sets = cpus(4);
    let mut step = |sets: &Sets, quantity, ms| {
        law.step((Policy::Cpuset, NODE), quantity, after(start, ms), sets);
        assert_eq!(law.quota, None);
        law.cpus.clone().unwrap().into_iter().collect::<Vec<_>>()
    };
    assert_eq!(step(&sets, 4000, 0), [0, 1, 2, 3]);
    assert_eq!(step(&sets, 100, 250), [0, 1]);
    assert_eq!(step(&sets, 4000, 500), [0, 1], "a step up a second");
    assert_eq!(step(&sets, 4000, 1000), [0, 1, 2]);
    // Another pod gets one of them for itself.
    sets.excluded = [0].into();
    assert_eq!(step(&sets, 2000, 1250), [2, 3], "a whole core");
    // One goes offline.
    sets.cpus.remove(2);
    assert_eq!(step(&sets, 2000, 1500), [1, 3]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn a_share_is_between_the_floor_and_the_law_and_rises_by_a_step_a_second(
        rounds in prop::collection::vec((-2000i64..6000, 1u64..2000), 1..40),
    ) {
        let (mut law, start) = (Law::default(), Instant::now());
        let (mut ms, mut before, mut rises) = (0, None, Vec::new());
        let mut highest = 0;
        for (quantity, pause) in rounds {
            ms += pause;
            law.step((Policy::CfsQuota, NODE), quantity, after(start, ms), &Sets::default());
            let quota = law.quota.unwrap();
            let wanted = u64::try_from(quantity).unwrap_or(0) * 100;
            // A change below a hundredth of the node is not written.
            highest = wanted.max(MIN_QUOTA_US);
            prop_assert!(quota >= MIN_QUOTA_US);
            prop_assert!(quota < highest + 4000, "{quota} above {highest}");
            if before.is_some_and(|before| quota > before) {
                prop_assert!(quota <= before.unwrap() + 40_000);
                rises.push(ms);
            }
            before = Some(quota);
        }
        prop_assert!(highest > 0);
        prop_assert!(rises.windows(2).all(|two| two[1] - two[0] >= 1000), "{rises:?}");
    }

    /// `podwarden plan` shows what the agent does next from the same figures.
    #[test]
    fn the_recorded_round_is_the_laws_next_step(
        before in prop::option::of(2000u64..200_000),
        had in prop::option::of(prop::collection::btree_set(0u32..8, 2..8)),
        excluded in prop::collection::btree_set(0u32..8, 0..7),
        (node, pods, best_effort) in (0u64..8000, 0u64..8000, 0u64..4000),
        policy in prop::sample::select(vec![Policy::CfsQuota, Policy::Cpuset]),
    ) {
        let capacity = Capacity { capacity: MilliCpu(8000), reserved: MilliCpu(500) };
        let sets = Sets { excluded, ..cpus(8) };
        let usage = Usage {
            node: MilliCpu(node),
            pods: MilliCpu(pods),
            best_effort_pods: MilliCpu(best_effort),
            ..Usage::default()
        };
        let recorded = strategies::Suppress {
            node: capacity,
            threshold: Threshold::default(),
            policy,
            measured: Some(Measured { usage, sets: sets.clone(), quota_us: before, cpus: had.clone() }),
        };
        let mut law = Law { raised: None, quota: before, cpus: had.clone() };
        let quantity = suppress::quantity(capacity, usage, Threshold::default());
        prop_assert_eq!(recorded.quantity(), Some(quantity));
        law.step((policy, capacity.capacity), quantity, Instant::now(), &sets);
        let round = recorded.round().unwrap();
        match round.quota {
            Step::Keep => prop_assert_eq!(law.quota, before),
            Step::Set(next) => prop_assert_eq!(law.quota, Some(next)),
            Step::Restore => prop_assert_eq!(law.quota, None),
        }
        let count = |cpus: &BTreeSet<u32>| cpus.len();
        match round.cpus {
            Step::Keep => prop_assert_eq!(law.cpus, had),
            // Of as many the law keeps those that it has.
            Step::Set(next) => prop_assert_eq!(law.cpus.as_ref().map(count), Some(next.len())),
            Step::Restore => prop_assert_eq!(law.cpus, None),
        }
    }

    #[test]
    fn cpus_are_two_at_least_online_and_no_other_pods(
        rounds in prop::collection::vec((-2000i64..10_000, 1u64..2000, 0u32..8, any::<bool>()), 1..20),
    ) {
        let (mut law, start, mut ms) = (Law::default(), Instant::now(), 0);
        let mut sets = cpus(8);
        let mut before: Option<BTreeSet<u32>> = None;
        for (quantity, pause, cpu, excluded) in rounds {
            ms += pause;
            sets.excluded = if excluded { [cpu].into() } else { BTreeSet::new() };
            law.step((Policy::Cpuset, MilliCpu(8000)), quantity, after(start, ms), &sets);
            let now = law.cpus.clone().unwrap();
            prop_assert!(now.len() >= 2 && sets.allow(&now), "{now:?}");
            if let Some(before) = before {
                prop_assert!(now.len() <= before.len() + 1);
            }
            before = Some(now);
        }
    }
}
