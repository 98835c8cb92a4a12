//! What holds for every input.

#[path = "support/kernel.rs"]
mod kernel;
#[path = "support/plan_laws.rs"]
mod plan_laws;
#[path = "support/tree.rs"]
mod tree;

use podwarden_policy::{
    Bytes, CpuShares, CpuWeight, MilliCpu, Pod, PodUid, QosClass,
    convert::{milli_to_shares, shares_to_weight, shares_to_weight_log, weight_to_shares},
    evict::{self, Exemptions, Ranking},
    limits,
    name::{self, CgroupName, ContainerName},
    plan::{Action, Snapshot, plan},
    qos,
    quantity::{parse_cpu, parse_memory},
    reserve::tier_limits,
    threshold::{ThresholdConfig, parse_duration},
};
use proptest::{collection::vec, option, prelude::*, sample::select};
use tree::{any_pod, any_snapshot};

fn working_set(seed: u64) -> impl Fn(&Pod) -> Option<Bytes> {
    move |pod: &Pod| {
        let byte = pod.uid.as_str().bytes().last().map_or(0, u64::from);
        let mixed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .rotate_left(byte as u32);
        (!mixed.is_multiple_of(5)).then_some(Bytes(mixed % (1 << 35)))
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        // A failure prints its smallest input, which belongs into a table test.
        failure_persistence: None,
        ..ProptestConfig::with_cases(10_000)
    })]

    #[test]
    fn weights_are_in_range_and_monotone(a in 0u64..300_000, b in 0u64..300_000) {
        let (low, high) = (CpuShares(a.min(b)), CpuShares(a.max(b)));
        for curve in [shares_to_weight, shares_to_weight_log] {
            prop_assert!(curve(low) <= curve(high));
            prop_assert!((CpuWeight::MIN..=CpuWeight::MAX).contains(&curve(low)));
        }
        let (low, high) = (MilliCpu(a), MilliCpu(a.saturating_add(b)));
        prop_assert!(milli_to_shares(low) <= milli_to_shares(high));
        prop_assert!((CpuShares::MIN..=CpuShares::MAX).contains(&milli_to_shares(high)));
    }

    #[test]
    fn a_weight_survives_the_way_to_shares(weight in 1u64..=10_000) {
        let shares = weight_to_shares(CpuWeight(weight));
        let back = shares_to_weight(shares);
        // The division rounds down both ways, so at most one is lost.
        prop_assert!(back == CpuWeight(weight) || back.0 + 1 == weight);
    }

    #[test]
    fn amounts_are_read_as_they_are_written(n in 0..=i64::MAX as u64) {
        prop_assert_eq!(parse_memory(&Bytes(n).to_string()), Ok(Bytes(n)));
        prop_assert_eq!(parse_cpu(&MilliCpu(n).to_string()), Ok(MilliCpu(n)));
    }

    #[test]
    fn quantities_round_up_by_less_than_one(digits in "[0-9]{1,12}", point in 0usize..12) {
        let point = point.min(digits.len());
        let text = format!("{}.{}", &digits[..point], &digits[point..]);
        let exact: u128 = digits.parse().expect("digits");
        let unit = 10u128.pow((digits.len() - point) as u32);
        for (suffix, factor) in [("", 1), ("Ki", 1 << 10), ("Gi", 1 << 30), ("k", 1000)] {
            let expected = (exact * factor).div_ceil(unit);
            let parsed = parse_memory(&format!("{text}{suffix}")).map(|b| u128::from(b.0));
            match parsed {
                Ok(parsed) => prop_assert_eq!(parsed, expected),
                Err(_) => prop_assert!(expected > i64::MAX as u128),
            }
        }
    }

    #[test]
    fn no_text_panics(text in "[-+.0-9eEinumkKMGTPishu% ]{0,24}|.{0,24}") {
        let _ = parse_cpu(&text);
        let _ = parse_memory(&text);
        let _ = parse_duration(&text);
        let _ = name::parse_pod(&text);
        let _ = name::parse_pod_path(&text);
        let _ = name::parse_container(&text);
        let _ = CgroupName::parse_systemd(&text);
        let config = ThresholdConfig {
            eviction_hard: [("memory.available".into(), text)].into(),
            ..ThresholdConfig::default()
        };
        if let Ok(thresholds) = config.parse() {
            for threshold in thresholds {
                prop_assert!(threshold.less_than.of(1 << 40) > 0 || threshold.less_than.of(u64::MAX) > 0);
            }
        }
    }

    #[test]
    fn names_are_read_as_they_are_written(components in vec("[a-z0-9][a-z0-9-]{0,8}", 0..5)) {
        let name = CgroupName::new(components);
        prop_assert_eq!(CgroupName::parse_cgroupfs(&name.to_cgroupfs()), name.clone());
        prop_assert_eq!(CgroupName::parse_systemd(&name.to_systemd()), name.clone());
        prop_assert_eq!(CgroupName::parse_systemd(&name.to_systemd_unit()), name);
    }

    #[test]
    fn a_pod_is_found_by_its_name(uid in "[a-f0-9][a-f0-9-]{0,35}", class in select(&QosClass::ALL)) {
        let uid = PodUid::new(uid);
        let name = name::kubepods(&CgroupName::root()).pod(class, &uid);
        let found = Some((class, uid));
        prop_assert_eq!(name::parse_pod_path(&name.to_cgroupfs()), found.clone());
        prop_assert_eq!(name::parse_pod_path(&name.to_systemd()), found.clone());
        prop_assert_eq!(name::parse_pod_path(&name.to_systemd_unit()), found);
    }

    #[test]
    fn a_container_is_found_by_its_name(
        id in "[a-f0-9]{1,64}",
        uid in "[a-f0-9][a-f0-9-]{0,35}",
        class in select(&QosClass::ALL),
        runtime in select(&["cri-containerd", "crio", "docker", "libpod"][..]),
        above in select(&["", "/docker/0a1b/kubelet", "/kubelet.slice/kubelet-a.slice"][..]),
    ) {
        let pod = name::kubepods(&CgroupName::root()).pod(class, &PodUid::new(uid.clone()));
        let known = ContainerName { runtime: Some(runtime), id: &id };
        let plain = ContainerName { runtime: None, id: &id };
        let scope = format!("{runtime}-{id}.scope");
        let swapped = format!("{}:{runtime}:{id}", pod.to_systemd_unit());
        for (path, expected) in [
            (format!("{above}{}/{id}", pod.to_cgroupfs()), plain),
            (format!("{above}{}/{scope}", pod.to_cgroupfs()), known),
            (format!("{above}{}/{scope}", pod.to_systemd()), known),
            (format!("{above}{}/{swapped}", pod.to_cgroupfs()), known),
        ] {
            let (of_pod, component) = path.rsplit_once('/').expect("two components");
            prop_assert_eq!(name::parse_container(component), Some(expected), "{}", path);
            let found = name::parse_pod_path(of_pod);
            prop_assert_eq!(found, Some((class, PodUid::new(uid.clone()))), "{}", path);
        }
    }

    #[test]
    fn reserves_shrink_by_tier(
        allocatable in any::<u64>(),
        guaranteed in any::<u64>(),
        burstable in any::<u64>(),
        percent in any::<u8>(),
    ) {
        let all = Bytes(allocatable);
        let limits = tier_limits(all, Bytes(guaranteed), Bytes(burstable), percent);
        prop_assert!(limits.besteffort <= limits.burstable);
        prop_assert!(limits.burstable <= all);
        let more = tier_limits(all, Bytes(guaranteed), Bytes(burstable), percent.saturating_add(1));
        prop_assert!(more.burstable <= limits.burstable);
        prop_assert!(more.besteffort <= limits.besteffort);
    }

    #[test]
    fn classes_mean_what_they_promise(pod in any_pod()) {
        let (requests, most) = (limits::pod_requests(&pod), limits::pod_limits(&pod));
        let config = limits::pod_config(&pod, &limits::LimitOptions::default());
        match qos::classify(&pod) {
            QosClass::BestEffort => {
                prop_assert_eq!(config.shares, CpuShares::MIN);
                prop_assert!(config.cpu_max.is_none() && config.memory_limit.is_none());
            }
            QosClass::Burstable => {}
            QosClass::Guaranteed => {
                prop_assert_eq!(requests.cpu, most.cpu);
                prop_assert_eq!(requests.memory, most.memory);
                prop_assert!(config.memory_limit.is_some_and(|limit| limit > Bytes::ZERO));
            }
        }
    }

    #[test]
    fn defaults_settle(pod in any_pod()) {
        let mut once = pod;
        once.apply_defaults();
        let mut twice = once.clone();
        twice.apply_defaults();
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn the_ranking_is_a_permutation_of_what_may_be_evicted(
        mut pods in vec(any_pod(), 0..12),
        seed in any::<u64>(),
        evict_static_pods in any::<bool>(),
        own in option::of(0u8..12),
        shuffle in any::<prop::sample::Index>(),
    ) {
        pods.sort_by(|a, b| a.uid.cmp(&b.uid));
        pods.dedup_by(|a, b| a.uid == b.uid);
        let exemptions = Exemptions {
            evict_static_pods,
            own_pod: own.map(|uid| PodUid::new(format!("u{uid}"))),
        };
        for ranking in [Ranking::QosFirst, Ranking::Kubelet] {
            let order = |pods: &[Pod]| -> Vec<PodUid> {
                evict::order(ranking, &exemptions, pods, working_set(seed))
                    .iter()
                    .map(|ranked| ranked.pod.uid.clone())
                    .collect()
            };
            let found = order(&pods);
            let mut members = found.clone();
            members.sort();
            let free = pods.iter().filter(|pod| exemptions.of(pod).is_none());
            prop_assert_eq!(members, free.map(|pod| pod.uid.clone()).collect::<Vec<_>>());
            if !pods.is_empty() {
                let mut turned = pods.clone();
                turned.rotate_left(shuffle.index(pods.len()));
                turned.reverse();
                prop_assert_eq!(order(&turned), found);
            }
        }
    }

    #[test]
    fn the_lower_class_goes_first(pods in vec(any_pod(), 2..12), seed in any::<u64>()) {
        let usage = working_set(seed);
        let order = evict::order(Ranking::QosFirst, &Exemptions::default(), &pods, &usage);
        let place = |ranked: &evict::Ranked<'_>| {
            let over = usage(ranked.pod).is_some_and(|u| u > ranked.candidate.memory_request);
            match qos::classify(ranked.pod) {
                QosClass::BestEffort => 0,
                QosClass::Burstable if over => 1,
                _ => 2,
            }
        };
        prop_assert!(order.is_sorted_by_key(place));
    }

    #[test]
    fn the_order_of_pods_does_not_matter(snapshot in any_snapshot(true)) {
        plan_laws::order_does_not_matter(&snapshot);
    }

    #[test]
    fn a_plan_done_leaves_nothing_to_do(
        (weights, snapshot) in any::<bool>().prop_flat_map(|w| (Just(w), any_snapshot(w))),
    ) {
        plan_laws::settles(&snapshot, weights);
    }

    #[test]
    fn on_the_way_no_child_exceeds_its_parent(snapshot in any_snapshot(false)) {
        plan_laws::children_fit_on_the_way(&snapshot, false);
    }

    #[test]
    fn no_limit_is_lowered_below_usage(snapshot in any_snapshot(true)) {
        plan_laws::lowers_nothing_below_usage(&snapshot);
    }

    #[test]
    fn what_others_made_is_left_alone(snapshot in any_snapshot(true)) {
        plan_laws::leaves_others_alone(&snapshot);
    }

    #[test]
    fn kubepods_is_never_limited_to_nothing(snapshot in any_snapshot(false)) {
        plan_laws::limits_kubepods_to_something(&snapshot);
    }

    #[test]
    fn a_snapshot_ranks_every_candidate_once(snapshot in any_snapshot(true)) {
        plan_laws::ranks_every_candidate_once(&snapshot);
    }

    #[test]
    fn containers_are_slowed_between_request_and_limit(snapshot in any_snapshot(true)) {
        plan_laws::slows_containers_between_request_and_limit(&snapshot);
    }

    #[test]
    fn snapshots_are_read_as_they_are_written(snapshot in any_snapshot(true)) {
        let text = serde_json::to_string(&snapshot).expect("serialises");
        let read: Snapshot = serde_json::from_str(&text).expect("reads back");
        prop_assert_eq!(&read, &snapshot);
        let actions = serde_json::to_string(&plan(&snapshot)).expect("serialises");
        let back: Vec<Action> = serde_json::from_str(&actions).expect("reads back");
        prop_assert_eq!(back, plan(&snapshot));
    }
}

/// The fuzzer begins with these: one that is no snapshot would begin with nothing.
#[test]
fn the_seeds_of_the_fuzzer_are_snapshots() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/snapshot");
    let seeds: Vec<_> = std::fs::read_dir(dir)
        .expect(dir)
        .map(|entry| entry.expect(dir).path())
        .collect();
    assert!(!seeds.is_empty(), "{dir} is empty");
    for seed in seeds {
        let text = std::fs::read_to_string(&seed).expect("readable");
        let snapshot: Snapshot = serde_json::from_str(&text).expect("a snapshot");
        for weights in [false, true] {
            plan_laws::all(&snapshot, weights);
        }
    }
}
