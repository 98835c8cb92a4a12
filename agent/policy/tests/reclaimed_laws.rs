//! What holds of reclaimed resources and of predictions for every input.

use std::collections::BTreeMap;

use podwarden_policy::{
    Bytes, MilliCpu,
    colocation::{
        class::Band,
        memory_evict,
        predict::{self, Histogram, Model, Peaks, SLOTS, Scale},
        reclaimed::{self, Amounts, Facts, Percents, Policy, Strategy as Rules, Workload},
        resctrl,
    },
};
use proptest::{collection::vec, option, prelude::*, sample::select};

fn any_amounts() -> impl Strategy<Value = Amounts> {
    (0u64..200_000, 0u64..1 << 40)
        .prop_map(|(cpu, memory)| Amounts::new(MilliCpu(cpu), Bytes(memory)))
}

fn few_amounts() -> impl Strategy<Value = Amounts> {
    (0u64..4_000, 0u64..1 << 34)
        .prop_map(|(cpu, memory)| Amounts::new(MilliCpu(cpu), Bytes(memory)))
}

fn any_workload() -> impl Strategy<Value = Workload> {
    (
        select(Band::ALL.to_vec()),
        any::<bool>(),
        few_amounts(),
        option::of(few_amounts()),
        few_amounts(),
        few_amounts(),
    )
        .prop_map(|(band, exclusive, request, used, batch, mid)| Workload {
            band,
            exclusive,
            request,
            used,
            holds_batch: if band == Band::Batch {
                batch
            } else {
                Amounts::default()
            },
            holds_mid: if band == Band::Mid {
                mid
            } else {
                Amounts::default()
            },
        })
}

fn any_facts() -> impl Strategy<Value = Facts> {
    (
        any_amounts(),
        few_amounts(),
        few_amounts(),
        any_amounts(),
        option::of(few_amounts()),
        vec(any_workload(), 0..12),
    )
        .prop_map(
            |(capacity, reserved, system, used, reclaimable, workloads)| Facts {
                capacity,
                reserved,
                system,
                used,
                reclaimable,
                workloads,
            },
        )
}

fn any_rules() -> impl Strategy<Value = Rules> {
    let policy = || {
        select(vec![
            Policy::Usage,
            Policy::Request,
            Policy::MaxUsageRequest,
        ])
    };
    let percents =
        |most: u32| (0..=most, 0..=most).prop_map(|(cpu, memory)| Percents { cpu, memory });
    (
        percents(100),
        (policy(), policy()),
        option::of(0u32..=100),
        option::of(0u32..=100),
        percents(100),
        0u32..=100,
        option::of(percents(100)),
    )
        .prop_map(
            |(reclaim, policies, cpu, memory, mid_ceiling, mid_unallocated, mid_static)| Rules {
                reclaim,
                cpu_policy: policies.0,
                memory_policy: policies.1,
                batch_cpu_ceiling: cpu,
                batch_memory_ceiling: memory,
                mid_ceiling,
                mid_unallocated,
                mid_static,
            },
        )
}

fn below(a: Amounts, b: Amounts) -> bool {
    a.cpu <= b.cpu && a.memory <= b.memory
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(10_000)
    })]

    #[test]
    fn never_above_what_is_there(facts in any_facts(), rules in any_rules()) {
        let batch = reclaimed::batch(&facts, &rules);
        let open = facts.capacity.minus(batch.margin).minus(facts.reserved);
        prop_assert!(below(batch.law, open));
        prop_assert!(below(batch.offered, open.max(batch.held)));
        let mid = reclaimed::mid(&facts, &rules);
        prop_assert!(below(mid.law, facts.capacity));
        prop_assert!(below(mid.offered, facts.capacity.max(mid.held)));
    }

    #[test]
    fn never_below_what_is_held(facts in any_facts(), rules in any_rules()) {
        let held = |of: fn(&Workload) -> Amounts| {
            facts.workloads.iter().fold(Amounts::default(), |sum, w| sum.plus(of(w)))
        };
        prop_assert!(below(held(|w| w.holds_batch), reclaimed::batch(&facts, &rules).offered));
        prop_assert!(below(held(|w| w.holds_mid), reclaimed::mid(&facts, &rules).offered));
    }

    #[test]
    fn more_use_never_raises_it(
        facts in any_facts(),
        rules in any_rules(),
        more in few_amounts(),
        at in any::<proptest::sample::Index>(),
    ) {
        let mut busier = facts.clone();
        busier.system = busier.system.plus(more);
        busier.used = busier.used.plus(more);
        if !busier.workloads.is_empty() {
            let workload = at.get_mut(&mut busier.workloads);
            workload.used = workload.used.map(|used| used.plus(more));
        }
        let batch = |facts| reclaimed::batch(facts, &rules).offered;
        prop_assert!(below(batch(&busier), batch(&facts)));
        let mid = |facts| reclaimed::mid(facts, &rules).offered;
        prop_assert!(below(mid(&busier), mid(&facts)));
    }

    #[test]
    fn equal_snapshots_give_equal_values(facts in any_facts(), rules in any_rules()) {
        let mut turned = facts.clone();
        turned.workloads.reverse();
        prop_assert_eq!(reclaimed::batch(&facts, &rules), reclaimed::batch(&turned, &rules));
        prop_assert_eq!(reclaimed::mid(&facts, &rules), reclaimed::mid(&turned, &rules));
    }

    #[test]
    fn figures_never_arrive_as_a_surprise(facts in any_facts(), mut rules in any_rules(), at in any::<proptest::sample::Index>()) {
        // Under the larger of both, first figures only lower what is offered: the request counted before.
        rules.cpu_policy = Policy::MaxUsageRequest;
        rules.memory_policy = Policy::MaxUsageRequest;
        let mut fresh = facts;
        if !fresh.workloads.is_empty() {
            at.get_mut(&mut fresh.workloads).used = None;
        }
        let mut known = fresh.clone();
        for workload in &mut known.workloads {
            workload.used = workload.used.or(Some(few(workload)));
        }
        let batch = |facts| reclaimed::batch(facts, &rules).offered;
        prop_assert!(below(batch(&known), batch(&fresh)));
    }

    #[test]
    fn what_is_given_back_brings_requests_to_the_lower_level(
        offered in 1u64..1 << 45,
        requested in 0u64..1 << 45,
        threshold in 1u32..=100,
        step in 1u32..=100,
    ) {
        let lower = threshold.saturating_sub(step);
        let release = memory_evict::overcommitted(Some(Bytes(offered)), Bytes(requested), threshold, lower);
        let above = u128::from(requested) * 100 > u128::from(offered) * u128::from(threshold);
        prop_assert_eq!(release.is_some(), above);
        if let Some(release) = release {
            let left = requested.saturating_sub(release.0);
            prop_assert!(u128::from(left) * 100 <= u128::from(offered) * u128::from(lower));
        }
    }

    #[test]
    fn masks_are_whole_ways_of_the_root(ways in 1u32..=64, start in -5i32..=105, end in -5i32..=105) {
        let root = if ways == 64 { u64::MAX } else { (1 << ways) - 1 };
        match resctrl::l3_mask(root, start, end) {
            Err(_) => prop_assert!(start < 0 || end > 100 || start >= end),
            Ok(mask) => {
                prop_assert!(mask != 0 && mask & !root == 0);
                let run = mask >> mask.trailing_zeros();
                prop_assert_eq!(run & run.wrapping_add(1), 0);
            }
        }
    }
}

fn few(workload: &Workload) -> Amounts {
    Amounts::new(
        MilliCpu(workload.request.cpu.0 / 2),
        Bytes(workload.request.memory.0 * 2),
    )
}

/// The exact percentile of samples of equal weight.
fn exact(samples: &[u64], percent: usize) -> u64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank - 1]
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(1_000)
    })]

    #[test]
    fn a_percentile_is_never_below_the_samples(
        samples in vec(0u64..4_000_000_000, 1..300),
        percent in select(vec![50u32, 60, 90, 95, 98, 100]),
        scale in select(vec![Scale::Cpu, Scale::Memory]),
    ) {
        let most = if scale == Scale::Cpu { 1024 * 1_000_000 } else { 1 << 41 };
        let samples: Vec<_> = samples.into_iter().map(|s| s % most).collect();
        let mut histogram = Histogram::new(scale);
        for sample in &samples {
            histogram.add(*sample, 0);
        }
        let got = histogram.percentile(percent);
        let want = exact(&samples, percent as usize);
        prop_assert!(got >= want, "{got} < {want}");
        let distinct: BTreeMap<u64, ()> = samples.iter().map(|s| (*s, ())).collect();
        if distinct.len() <= SLOTS {
            let first = if scale == Scale::Cpu { 25_000 } else { 5 << 20 };
            prop_assert!(got <= want + want / 20 + first + 1, "{got} far above {want}");
        }
    }

    #[test]
    fn clocks_that_step_make_nothing_heavier(
        steps in vec((0u64..1 << 33, 0u64..64_000_000), 1..200),
    ) {
        let mut model = Model::default();
        let mut most = 0;
        for (now, cpu) in steps {
            model.train(cpu, cpu << 8, now);
            most = most.max(cpu);
            prop_assert!(model.is_sound());
        }
        let (cpu, memory) = model.peak(0, 0).unwrap();
        prop_assert!(cpu <= most + most / 20 + 25_001);
        prop_assert!(memory <= (most << 8) + (most << 8) / 20 + (5 << 20) + 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(5_000)
    })]

    #[test]
    fn what_is_reclaimable_is_never_above_what_pods_leave(
        capacity in any_amounts(),
        pods in vec((few_amounts(), option::of(few_amounts())), 0..12),
        tier in option::of(any_amounts()),
        system in option::of(few_amounts()),
        more in few_amounts(),
        at in any::<proptest::sample::Index>(),
    ) {
        let of = |pods: &[(Amounts, Option<Amounts>)], tier: Option<Amounts>| {
            let mut peaks = Peaks::default();
            for (request, peak) in pods {
                peaks.add(*request, *peak);
            }
            peaks.reclaimable(capacity, tier, system)
        };
        let got = of(&pods, tier);
        prop_assert_eq!(got.is_some(), tier.is_some() && system.is_some());
        let Some(got) = got else { return Ok(()) };
        // A pod that was not measured for long enough gives nothing.
        let warm = pods.iter().filter_map(|(request, peak)| Some(request.minus((*peak)?)));
        prop_assert!(below(got, warm.fold(Amounts::default(), Amounts::plus)));
        prop_assert!(below(got.plus(tier.unwrap()), capacity.max(tier.unwrap())));
        // A higher peak of a pod or of the tier never raises it, and the order of pods is nothing to it.
        let mut turned = pods.clone();
        turned.reverse();
        prop_assert_eq!(of(&turned, tier), Some(got));
        prop_assert!(below(of(&pods, tier.map(|tier| tier.plus(more))).unwrap(), got));
        if !pods.is_empty() {
            let (request, peak) = at.get_mut(&mut turned);
            *peak = Some(peak.unwrap_or(*request).plus(more));
            prop_assert!(below(of(&turned, tier).unwrap(), got));
        }
    }
}

#[test]
fn half_of_the_weight_is_lost_in_a_half_life() {
    let minute = 60;
    let mut histogram = Histogram::new(Scale::Cpu);
    // A day at 2 CPUs, then at 0.1: after k half-lives, the old samples weigh 1/2^k of what they did.
    let day = 24 * 3600;
    for now in (0..day).step_by(minute) {
        histogram.add(2_000_000, now);
    }
    assert!(histogram.percentile(95) >= 2_000_000);
    let mut forgotten = None;
    for now in (day..day * 8).step_by(minute) {
        histogram.add(100_000, now);
        if forgotten.is_none() && histogram.percentile(95) < 200_000 {
            forgotten = Some(now - day);
        }
    }
    // Old weight W(1 - 2^-2) x 2^-k against W(1 - 2^-k): 5 % at k = log2(16) = 4 half-lives, within one for the rounding.
    let hours = forgotten.expect("it is forgotten") / 3600;
    assert!((4 * 12 - 12..=4 * 12 + 12).contains(&hours), "{hours} h");
}

#[test]
fn a_cold_model_predicts_nothing_and_a_warm_one_with_margin() {
    let mut model = Model::default();
    for now in (0..predict::COLD_START_S).step_by(60) {
        model.train(1_000_000, 1 << 30, now);
    }
    assert_eq!(
        model.peak(predict::COLD_START_S, predict::MARGIN_PERCENT),
        None
    );
    model.train(1_000_000, 1 << 30, predict::COLD_START_S);
    let (cpu, memory) = model
        .peak(predict::COLD_START_S, predict::MARGIN_PERCENT)
        .unwrap();
    assert!((1_100_000..1_200_000).contains(&cpu), "{cpu}");
    assert!(
        ((1 << 30) / 10 * 11..(1 << 30) / 10 * 12).contains(&memory),
        "{memory}"
    );
    // A clock that leaps trains for ten minutes at most.
    let mut leapt = Model::default();
    leapt.train(1_000_000, 1 << 30, 0);
    leapt.train(1_000_000, 1 << 30, 1 << 40);
    assert_eq!(leapt.peak(601, 0), None);
}

#[test]
fn a_model_is_a_few_hundred_bytes_and_survives_a_file() {
    let mut model = Model::default();
    for at in 0..100_000_u64 {
        // Every bucket of both scales.
        model.train(at * 10_240, at << 24, at);
    }
    let text = serde_json::to_string(&model).unwrap();
    assert!(text.len() < 2048, "{} bytes", text.len());
    let back: Model = serde_json::from_str(&text).unwrap();
    assert!(back.is_sound());
    assert_eq!(back, model);
    let broken = text.replace(
        "\"cpu\":{\"scale\":\"cpu\"",
        "\"cpu\":{\"scale\":\"memory\"",
    );
    assert_ne!(broken, text);
    let broken: Model = serde_json::from_str(&broken).unwrap();
    assert!(!broken.is_sound());
}
