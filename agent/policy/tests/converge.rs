//! Convergence against a model of the kernel that answers a hard limit below usage by killing.
//!
//! More than 400 lines: the model of the kernel and the laws that are checked on it.

use podwarden_policy::{
    Bytes,
    converge::{Decision, Kernel, Look, Reading, Step, Steps, Terms, Tier, hold, press_alone},
    limits::Limit,
};
use proptest::{collection::vec, prelude::*};

const MARGIN: Bytes = Bytes::mebi(16);
const PAGE: Bytes = Bytes(4096);
const V1: Kernel = Kernel::V1 {
    reclaims_cache: true,
};
const V2: Kernel = Kernel::V2 {
    reclaims_cache: true,
    swaps: false,
};

fn terms(kernel: Kernel) -> Terms {
    Terms {
        steps: Steps::default(),
        kernel,
        page_size: PAGE,
        margin: MARGIN,
        piece: Bytes::mebi(32),
        high_at_rest: Limit::Unlimited,
    }
}

/// A tier that holds this much anonymous memory and page cache, unlimited.
fn tier(kernel: Kernel, anon: u64, cache: u64) -> Reading {
    Reading {
        usage: Bytes(anon + cache),
        cache: Bytes(cache),
        max: Limit::Unlimited,
        high: matches!(kernel, Kernel::V2 { .. }).then_some(Limit::Unlimited),
        level: None,
    }
}

fn mib(n: u64) -> u64 {
    n << 20
}

const fn at(n: u64) -> Limit<Bytes> {
    Limit::At(Bytes::mebi(n))
}

/// Carries a step out.
fn apply(reading: &mut Reading, step: Step) {
    match step {
        Step::Max(max) => reading.max = max,
        Step::High(high) => reading.high = Some(high),
        Step::Reclaim(bytes) => {
            reading.usage = reading.usage.saturating_sub(bytes);
            reading.cache = reading.cache.saturating_sub(bytes);
        }
    }
}

/// Steps until there is none; the steps and what to wait for then.
fn settle(tier: &mut Tier, reading: &mut Reading, terms: &Terms) -> (Vec<Step>, Look) {
    let mut steps = Vec::new();
    loop {
        let Decision { step, look } = tier.next(reading, terms);
        let Some(step) = step else {
            return (steps, look);
        };
        assert_eq!(look, Look::Again);
        assert!(steps.len() < 10_000, "no end: {reading:?}");
        apply(reading, step);
        steps.push(step);
    }
}

fn aimed(target: Limit<Bytes>) -> Tier {
    let mut tier = Tier::default();
    tier.aim(Some(target));
    tier
}

#[test]
fn v2_growth_is_slowed_at_once_and_the_hard_limit_comes_last() {
    let (terms, mut reading) = (terms(V2), tier(V2, mib(320), 0));
    let mut tier = aimed(at(200));
    let steps = settle(&mut tier, &mut reading, &terms);
    assert_eq!(steps, (vec![Step::High(at(300))], Look::Soon));
    assert_eq!(tier.gap(reading.usage), Bytes::mebi(120));
    reading.usage = Bytes::mebi(256);
    let steps = settle(&mut tier, &mut reading, &terms);
    assert_eq!(steps, (vec![Step::High(at(240))], Look::Soon));
    reading.usage = Bytes::mebi(184);
    let steps = settle(&mut tier, &mut reading, &terms);
    let last = vec![Step::High(at(184)), Step::Max(at(200))];
    assert_eq!(steps, (last, Look::OnChange));
    assert_eq!(tier.gap(reading.usage), Bytes::ZERO);
}

#[test]
fn v2_a_tier_is_slowed_no_more_once_a_critical_pod_is_in_it() {
    let (slowing, mut reading) = (terms(V2), tier(V2, mib(320), 0));
    let mut tier = aimed(at(200));
    settle(&mut tier, &mut reading, &slowing);
    assert_eq!(reading.high, Some(at(300)));
    let calm = Terms {
        steps: slowing.steps.without_slowing(),
        ..slowing
    };
    let steps = settle(&mut tier, &mut reading, &calm);
    assert_eq!(steps.0, [Step::High(Limit::Unlimited)], "above its target");
    reading.usage = Bytes::mebi(100);
    let steps = settle(&mut tier, &mut reading, &calm);
    assert_eq!(steps.0, [Step::Max(at(200))], "nor at rest");
    // And again when it has gone.
    let steps = settle(&mut tier, &mut reading, &slowing);
    assert_eq!(steps.0, [Step::High(at(184))]);
}

#[test]
fn v2_a_pod_is_slowed_alone_down_to_its_request() {
    let terms = terms(V2);
    let press = |usage, requests, high| {
        press_alone(Bytes::mebi(usage), Bytes::mebi(requests), high, &terms)
    };
    assert_eq!(press(320, 0, Limit::Unlimited), Some(at(300)), "as a tier");
    assert_eq!(press(320, 0, at(300)), None, "is there");
    assert_eq!(press(320, 310, Limit::Unlimited), Some(at(310)));
    assert_eq!(
        press(100, 128, Limit::Unlimited),
        Some(at(128)),
        "below its request"
    );
    assert_eq!(press(320, 0, at(200)), None, "lower, and not raised");
    let v1 = Terms {
        kernel: V1,
        ..terms
    };
    assert_eq!(
        press_alone(Bytes::mebi(320), Bytes::ZERO, Limit::Unlimited, &v1),
        None
    );
}

#[test]
fn v2_page_cache_is_dropped_in_pieces_and_no_more_than_needed() {
    let (terms, mut reading) = (terms(V2), tier(V2, mib(100), mib(200)));
    let (steps, look) = settle(&mut aimed(at(200)), &mut reading, &terms);
    let dropped: Vec<_> = steps
        .iter()
        .filter_map(|step| match step {
            Step::Reclaim(bytes) => Some(*bytes),
            _ => None,
        })
        .collect();
    assert!(dropped.iter().all(|piece| *piece <= terms.piece));
    assert_eq!(dropped.into_iter().sum::<Bytes>(), Bytes::mebi(116));
    assert_eq!((reading.max, look), (at(200), Look::OnChange));
}

#[test]
fn swap_is_not_asked_for() {
    let kernel = Kernel::V2 {
        reclaims_cache: false,
        swaps: true,
    };
    let (terms, mut reading) = (terms(kernel), tier(kernel, mib(300), mib(20)));
    let (steps, _) = settle(&mut aimed(at(200)), &mut reading, &terms);
    assert_eq!(steps, [Step::High(at(320))], "at usage, not below");
}

#[test]
fn cache_that_cannot_be_dropped_is_tried_less_and_less_often() {
    let (terms, mut reading) = (terms(V2), tier(V2, mib(100), mib(200)));
    let mut tier = aimed(at(200));
    let mut tries = Vec::new();
    for look in 0..100 {
        while let Some(step) = tier.next(&reading, &terms).step {
            if let Step::Reclaim(_) = step {
                tries.push(look);
                tier.failed(&step);
                break;
            }
            apply(&mut reading, step);
        }
    }
    assert_eq!(tries, [0, 2, 5, 10, 19, 36, 69]);
    // What works again is not slowed down.
    let (_, look) = settle(&mut tier, &mut { reading }, &terms);
    assert_eq!(look, Look::Soon);
}

#[test]
fn v1_is_capped_a_margin_above_the_reactors_level_and_only_below_one() {
    let (terms, mut reading) = (terms(V1), tier(V1, mib(300), 0));
    let mut tier = aimed(at(200));
    assert_eq!(
        settle(&mut tier, &mut reading, &terms),
        (vec![], Look::Soon)
    );
    reading.level = Some(Bytes::mebi(316));
    let steps = settle(&mut tier, &mut reading, &terms);
    assert_eq!(steps, (vec![Step::Max(at(332))], Look::Soon));
    // The reactor's level first, then the limit.
    reading.usage = Bytes::mebi(250);
    let steps = settle(&mut tier, &mut reading, &terms);
    assert_eq!(steps, (vec![], Look::Soon));
    reading.level = Some(Bytes::mebi(266));
    let steps = settle(&mut tier, &mut reading, &terms);
    assert_eq!(steps, (vec![Step::Max(at(282))], Look::Soon));
    reading.usage = Bytes::mebi(150);
    let steps = settle(&mut tier, &mut reading, &terms);
    assert_eq!(steps, (vec![Step::Max(at(200))], Look::OnChange));
}

#[test]
fn v1_drops_page_cache_too_and_keeps_some_for_who_grows_meanwhile() {
    let (terms, mut reading) = (terms(V1), tier(V1, mib(100), mib(200)));
    reading.level = Some(Bytes::mebi(316));
    let (steps, look) = settle(&mut aimed(at(200)), &mut reading, &terms);
    let (first, last) = (Step::Max(at(332)), Step::Max(at(200)));
    assert_eq!((steps.first(), steps.last()), (Some(&first), Some(&last)));
    let dropped = &steps[1..steps.len() - 1];
    let pieces = [32, 32, 32, 20].map(|n| Step::Reclaim(Bytes::mebi(n)));
    assert_eq!((dropped, look), (&pieces[..], Look::OnChange));
    // Two margins of it stay, whatever is wanted.
    let mut reading = tier(V1, mib(300), mib(50));
    let (steps, look) = settle(&mut aimed(at(200)), &mut reading, &terms);
    let some = vec![Step::Reclaim(Bytes::mebi(18))];
    assert_eq!((steps, look), (some, Look::Soon));
}

#[test]
fn what_a_killed_agent_left_too_near_to_usage_is_raised_once() {
    let terms = terms(V1);
    let inherited = |target, found, max| {
        let mut reading = Reading {
            max,
            ..tier(V1, mib(300), 0)
        };
        let mut tier = aimed(target);
        tier.inherit(found);
        settle(&mut tier, &mut reading, &terms).0
    };
    let unlimited = Limit::Unlimited;
    let raised = [Step::Max(at(316))];
    assert_eq!(inherited(at(200), unlimited, at(300)), raised);
    assert_eq!(inherited(at(200), at(310), at(300)), [Step::Max(at(310))]);
    assert_eq!(inherited(at(200), at(300), at(300)), [], "as it was found");
    assert_eq!(inherited(at(310), unlimited, at(310)), [], "where it ends");
    assert_eq!(inherited(at(200), unlimited, at(320)), [], "room enough");
}

#[test]
fn raised_at_once_hard_limit_first() {
    let terms = terms(V2);
    let mut reading = Reading {
        max: at(200),
        high: Some(at(184)),
        ..tier(V2, mib(190), 0)
    };
    let mut tier = aimed(at(400));
    let (steps, look) = settle(&mut tier, &mut reading, &terms);
    assert_eq!(steps, [Step::Max(at(400)), Step::High(at(384))]);
    assert_eq!(look, Look::OnChange);
    tier.aim(Some(Limit::Unlimited));
    let (steps, _) = settle(&mut tier, &mut reading, &terms);
    let lifted = [Step::Max(Limit::Unlimited), Step::High(Limit::Unlimited)];
    assert_eq!(steps, lifted);
    tier.aim(None);
    reading.max = at(1);
    assert_eq!(settle(&mut tier, &mut reading, &terms).0, []);
}

#[test]
fn memory_high_is_taken_back_where_it_was_written_and_else_left_to_others() {
    let terms = terms(V2);
    let set = Some(at(300));
    let mut reading = Reading {
        high: set,
        ..tier(V2, mib(100), 0)
    };
    // It was not handed over.
    let unlimited = || aimed(Limit::Unlimited);
    assert_eq!(settle(&mut unlimited(), &mut reading, &terms).0, []);
    let mut ours = aimed(at(200));
    settle(&mut ours, &mut reading, &terms);
    assert_eq!(reading.high, Some(at(184)));
    ours.aim(Some(Limit::Unlimited));
    settle(&mut ours, &mut reading, &terms);
    assert_eq!(reading.high, Some(Limit::Unlimited));
    reading.high = set;
    assert_eq!(settle(&mut ours, &mut reading, &terms).0, [], "once");
    // Of an agent that was killed.
    let mut successor = unlimited();
    successor.inherit(Limit::Unlimited);
    settle(&mut successor, &mut reading, &terms);
    assert_eq!(reading.high, Some(Limit::Unlimited));
}

#[test]
fn a_foreign_hard_limit_is_left_until_it_is_admitted() {
    let (terms, mut reading) = (terms(V2), tier(V2, mib(100), 0));
    let mut tier = aimed(at(200));
    settle(&mut tier, &mut reading, &terms);
    for foreign in [at(4096), at(150)] {
        reading.max = foreign;
        assert_eq!(settle(&mut tier, &mut reading, &terms).0, []);
        tier.admit();
        let (steps, _) = settle(&mut tier, &mut reading, &terms);
        assert_eq!(steps, [Step::Max(at(200))]);
    }
}

#[test]
fn every_step_can_be_left_out() {
    let all = terms(V2);
    let without = |steps: Steps| {
        let (terms, mut reading) = (Terms { steps, ..all }, tier(V2, mib(150), mib(150)));
        let (steps, _) = settle(&mut aimed(at(200)), &mut reading, &terms);
        let has = |wanted: fn(&Step) -> bool| steps.iter().any(wanted);
        (
            has(|step| matches!(step, Step::High(high) if *high > at(184))),
            reading.high,
            has(|step| matches!(step, Step::Reclaim(_))),
        )
    };
    let defaults = Steps::default();
    assert_eq!(without(defaults), (true, Some(at(184)), true));
    let no_cap = Steps {
        cap_lower_tiers: false,
        ..defaults
    };
    assert_eq!(without(no_cap), (false, Some(at(184)), true));
    let no_high = Steps {
        memory_high: false,
        ..defaults
    };
    assert_eq!(without(no_high), (true, Some(Limit::Unlimited), true));
    let no_reclaim = Steps {
        memory_reclaim: false,
        ..defaults
    };
    assert!(matches!(without(no_reclaim), (true, _, false)));
}

#[test]
fn only_growth_is_answered_by_an_eviction() {
    let steps = Steps::default();
    let hold = |level, used, now: Option<u64>| {
        let level = hold(
            Bytes::mebi(level),
            Bytes::mebi(used),
            now.map(Bytes::mebi),
            MARGIN,
            steps,
        );
        level.0 >> 20
    };
    assert_eq!(hold(184, 100, Some(400)), 184, "below it anyway");
    assert_eq!(hold(184, 300, Some(1000)), 316, "it came down upon it");
    assert_eq!(hold(184, 300, None), 316, "found so");
    assert_eq!(hold(184, 250, Some(316)), 266, "it fell");
    assert_eq!(hold(184, 290, Some(266)), 266, "it grew: past it");
    assert_eq!(hold(184, 190, Some(184)), 184, "it grew to where it ends");
    assert_eq!(hold(384, 390, Some(266)), 384, "another target");
}

fn any_kernel() -> impl Strategy<Value = Kernel> {
    let v2 = (any::<bool>(), any::<bool>()).prop_map(|(reclaims_cache, swaps)| Kernel::V2 {
        reclaims_cache,
        swaps,
    });
    let v1 = any::<bool>().prop_map(|reclaims_cache| Kernel::V1 { reclaims_cache });
    prop_oneof![v1, v2]
}

fn any_steps() -> impl Strategy<Value = Steps> {
    any::<[bool; 3]>().prop_map(|[cap_lower_tiers, memory_high, memory_reclaim]| Steps {
        cap_lower_tiers,
        memory_high,
        memory_reclaim,
    })
}

fn any_limit() -> impl Strategy<Value = Limit<Bytes>> {
    prop_oneof![
        1 => Just(Limit::Unlimited),
        4 => (0u64..1 << 31).prop_map(|bytes| Limit::At(Bytes(bytes))),
    ]
}

/// What happens between two looks.
#[derive(Debug, Clone)]
enum Happens {
    /// Anonymous memory and page cache are these now.
    Load(u64, u64),
    /// The target is another.
    Target(Limit<Bytes>),
    /// A foreign write to the hard limit, which is answered or not.
    Foreign(Limit<Bytes>, bool),
    /// The reactor's level is another.
    Level(Option<u64>),
    Nothing,
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        4 => (0u64..1 << 31, 0u64..1 << 30).prop_map(|(anon, cache)| Happens::Load(anon, cache)),
        1 => any_limit().prop_map(Happens::Target),
        1 => (any_limit(), any::<bool>()).prop_map(|(limit, admit)| Happens::Foreign(limit, admit)),
        1 => proptest::option::of(0u64..1 << 31).prop_map(Happens::Level),
        1 => Just(Happens::Nothing),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(4_000)
    })]

    #[test]
    fn no_write_kills_nothing_is_written_twice_and_it_comes_to_rest(
        kernel in any_kernel(),
        steps in any_steps(),
        anon in 0u64..1 << 31,
        cache in 0u64..1 << 30,
        target in any_limit(),
        story in vec(happens(), 1..30),
    ) {
        let terms = Terms { steps, ..terms(kernel) };
        let is_v1 = matches!(kernel, Kernel::V1 { .. });
        let mut reading = tier(kernel, anon, cache);
        let mut tier = aimed(target);
        for event in story {
            let mut steady = true;
            match event {
                Happens::Load(anon, cache) => {
                    (reading.usage, reading.cache) = (Bytes(anon + cache), Bytes(cache));
                }
                Happens::Target(target) => {
                    steady = tier.target() == Some(target);
                    tier.aim(Some(target));
                }
                Happens::Foreign(limit, admit) => {
                    (reading.max, steady) = (limit, false);
                    if admit { tier.admit(); }
                }
                Happens::Level(level) => reading.level = level.map(Bytes),
                Happens::Nothing => {}
            }
            let before = reading;
            let mut at = reading;
            for round in 0.. {
                prop_assert!(round < 10_000, "no end: {at:?}");
                let Decision { step, look } = tier.next(&at, &terms);
                let Some(step) = step else {
                    prop_assert_ne!(look, Look::Again);
                    break;
                };
                prop_assert_eq!(look, Look::Again);
                match step {
                    Step::Max(max) => {
                        prop_assert_ne!(max, at.max, "written twice");
                        prop_assert!(max >= Limit::At(at.usage.saturating_add(MARGIN)), "below usage: {:?}", max);
                        if is_v1 && let (Some(level), Limit::At(max)) = (at.level, max) {
                            let target = tier.target().and_then(Limit::bound).unwrap_or_default();
                            prop_assert!(
                                at.max < Limit::At(max)
                                    || max <= target.max(Bytes::mebi(32))
                                    || max >= level.saturating_add(MARGIN),
                                "the kernel would come before the reactor"
                            );
                        }
                    }
                    Step::High(high) => {
                        prop_assert_ne!(Some(high), at.high, "written twice");
                        prop_assert!(!is_v1);
                    }
                    Step::Reclaim(bytes) => {
                        prop_assert!(!bytes.is_zero() && bytes <= terms.piece && bytes <= at.cache);
                        prop_assert!(steps.memory_reclaim);
                        let can = matches!(
                            kernel,
                            Kernel::V1 { reclaims_cache: true } | Kernel::V2 { reclaims_cache: true, .. }
                        );
                        prop_assert!(can, "{:?}", kernel);
                        if is_v1 {
                            // The limit is below usage for a moment: a task that grows then finds page cache.
                            prop_assert!(bytes.saturating_add(MARGIN) <= at.cache);
                        }
                    }
                }
                apply(&mut at, step);
            }
            reading = at;
            if steady && matches!(tier.target(), Some(Limit::At(_))) {
                let target = tier.target().unwrap_or(Limit::Unlimited).max(Limit::At(Bytes::mebi(32)));
                prop_assert!(reading.max <= before.max.max(target), "raised");
            }
        }
    }

    #[test]
    fn usage_that_falls_brings_the_limit_down_to_the_target(
        kernel in any_kernel(),
        steps in any_steps(),
        target in 0u64..1 << 31,
        mut falls in vec(0u64..1 << 31, 1..20),
    ) {
        let terms = Terms { steps, ..terms(kernel) };
        falls.sort_unstable_by(|a, b| b.cmp(a));
        let mut reading = tier(kernel, falls[0], 0);
        let mut tier = aimed(Limit::At(Bytes(target)));
        let (mut max, mut high) = (reading.max, reading.high);
        for usage in falls {
            reading.usage = Bytes(usage);
            reading.level = Some(Bytes(usage).saturating_add(MARGIN));
            settle(&mut tier, &mut reading, &terms);
            prop_assert!(reading.max <= max, "raised");
            // Without the margin below the limit it is lifted in the end.
            prop_assert!(reading.high <= high || !steps.memory_high, "raised");
            (max, high) = (reading.max, reading.high);
        }
        reading.usage = Bytes::ZERO;
        let (_, look) = settle(&mut tier, &mut reading, &terms);
        let reached = Bytes(target).round_down(PAGE).max(Bytes::mebi(32));
        prop_assert_eq!((reading.max, look), (Limit::At(reached), Look::OnChange));
    }
}

#[test]
fn the_margin_grows_with_the_cpus() {
    use podwarden_policy::plan::{CHARGE_BATCH, DEFAULT_MARGIN, margin};
    for cpus in [0, 1, 2, 16, 32] {
        assert_eq!(margin(cpus), DEFAULT_MARGIN, "{cpus}");
    }
    assert_eq!(margin(33), Bytes(33 * (512 << 10)));
    assert_eq!(margin(512), Bytes::mebi(256));
    assert!(margin(u32::MAX) > CHARGE_BATCH);
}

/// `(class, critical)` of a pod.
fn pods() -> impl Strategy<Value = Vec<podwarden_policy::Pod>> {
    let pod = (0..3_u8, any::<bool>(), any::<bool>()).prop_map(|(class, critical, node)| {
        let limit = (class > 0).then_some(Bytes::mebi(64));
        let cpu = (class > 1).then_some(podwarden_policy::MilliCpu(100));
        let resources = podwarden_policy::Resources {
            memory_request: limit,
            memory_limit: limit.filter(|_| class > 1),
            cpu_request: cpu,
            cpu_limit: cpu,
            ..podwarden_policy::Resources::default()
        };
        podwarden_policy::Pod {
            critical: critical && !node,
            priority: if critical && node { 2_000_001_000 } else { 0 },
            containers: vec![podwarden_policy::Container {
                resources,
                ..podwarden_policy::Container::default()
            }],
            ..podwarden_policy::Pod::default()
        }
    });
    vec(pod, 0..12)
}

proptest! {
    /// Law: no critical pod is below a `memory.high` that convergence wrote, whatever is in force and used.
    #[test]
    fn no_critical_pod_is_slowed(
        pods in pods(),
        usage in 0..4096_u64,
        high in 0..4096_u64,
        target in 0..4096_u64,
    ) {
        use podwarden_policy::{QosClass, converge::may_be_slowed, qos::classify};
        for class in [QosClass::Burstable, QosClass::BestEffort] {
            let holds = pods.iter().any(|pod| classify(pod) == class && pod.is_critical());
            prop_assert_eq!(may_be_slowed(class, &pods), !holds);
            if !holds {
                continue;
            }
            let calm = Terms { steps: Steps::default().without_slowing(), ..terms(V2) };
            let mut reading = Reading { high: Some(at(high)), ..tier(V2, mib(usage), 0) };
            let mut tier = aimed(at(target));
            // As an agent that was killed may have left it.
            tier.inherit(Limit::Unlimited);
            settle(&mut tier, &mut reading, &calm);
            prop_assert_eq!(reading.high, Some(Limit::Unlimited));
        }
    }
}
