//! Koordinator `pkg/koordlet/qosmanager/plugins/cpuevict/cpu_evict_test.go` and
//! `pkg/koordlet/qosmanager/plugins/util/evict_test.go`.

use std::collections::BTreeMap;

use podwarden_policy::{
    Bytes, CpuShares, CpuWeight, MilliCpu, PodUid,
    colocation::{
        class::Band,
        evict_cpu::{
            AcceptedEvictions, AllocatableThreshold, BandRequest, BestEffort, Candidate,
            EVICTION_POLICY_ANNOTATION, Satisfaction, covers_window, order,
            release_for_allocatable, release_for_satisfaction, release_for_usage,
        },
    },
    convert::shares_to_weight,
    settings::{CpuShare, Value as SettingValue, Version, table::CPU_SHARES},
};
use proptest::prelude::*;
use serde_json::Value;

use super::vectors::{Row, milli, number, requested, rows};

fn best_effort(from: &Value, limit: Option<u64>) -> BestEffort {
    BestEffort {
        limit: MilliCpu(limit.unwrap_or_else(|| number(&from["realLimitMilli"]))),
        used: MilliCpu(number(&from["usedMilli"])),
        request: MilliCpu(number(&from["requestMilli"])),
    }
}

#[test]
fn releases_for_satisfaction() {
    for Row {
        name,
        input,
        output,
    } in rows("cpuevict_be_satisfaction")
    {
        let config = &input["cfg"];
        let thresholds = Satisfaction::new(
            number(&config["cpuEvictBESatisfactionLowerPercent"]),
            number(&config["cpuEvictBESatisfactionUpperPercent"]),
            config["cpuEvictBEUsageThresholdPercent"].as_u64(),
        )
        .expect("thresholds");
        // The policy `evictByAllocatable` compares with what the node allocates, at least 1.
        let allocatable = config["cpuEvictPolicy"] == "evictByAllocatable";
        let limit = allocatable.then(|| number(&input["batchAllocatableMilli"]).max(1));
        let interval = number(&input["collectIntervalSec"]);
        let window = config["cpuEvictTimeWindowSeconds"]
            .as_u64()
            .unwrap_or(interval);
        let covered = covers_window(
            number(&input["avg"]["count"]),
            interval,
            window.max(interval),
        );
        let average = covered.then(|| best_effort(&input["avg"], limit));
        let now = best_effort(&input["current"], limit);
        let found = release_for_satisfaction(average, now, &thresholds).0;
        assert_eq!(found, number(&output["releaseBatchMilliCPU"]), "{name}");
    }
}

#[test]
fn releases_for_usage() {
    for Row {
        name,
        input,
        output,
    } in rows("cpuevict_used_threshold")
    {
        let found = release_for_usage(
            MilliCpu(number(&input["nodeCapacityMilliCPU"])),
            MilliCpu(number(&input["nodeUsedMilliCPU"])),
            number(&input["cfg"]["cpuEvictThresholdPercent"]),
            input["cfg"]["cpuEvictLowerPercent"].as_u64(),
        );
        assert_eq!(found.0, number(&output["releaseMilliCPU"]), "{name}");
    }
}

#[test]
fn thresholds() {
    for Row {
        name,
        input,
        output,
    } in rows("cpuevict_config_valid")
    {
        let lower = number(&input["cpuEvictBESatisfactionLowerPercent"]);
        let upper = number(&input["cpuEvictBESatisfactionUpperPercent"]);
        let valid = Satisfaction::new(lower, upper, None).is_ok();
        assert_eq!(Some(valid), output["valid"].as_bool(), "{name}");
    }
    for (lower, upper, text) in [
        (0, 50, "cpuEvictBESatisfactionLowerPercent: 0"),
        (61, 70, "use 1 to 60"),
        (10, 0, "cpuEvictBESatisfactionUpperPercent: 0"),
        (10, 100, "use 1 to 99"),
        (40, 30, "30 is below cpuEvictBESatisfactionLowerPercent, 40"),
    ] {
        let error = Satisfaction::new(lower, upper, None).expect_err(text);
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[test]
fn orders() {
    for Row {
        name,
        input,
        output,
    } in rows("cpuevict_be_order")
    {
        let pods = input["pods"].as_array().expect("a list");
        let mut candidates: Vec<Candidate> = pods
            .iter()
            .filter(|pod| pod["qos"] == "BE")
            .map(|pod| {
                let uid = pod["name"].as_str().expect("a name");
                Candidate {
                    uid: PodUid::from(uid),
                    priority: i32::try_from(number(&pod["priority"])).expect("a priority"),
                    request: MilliCpu(requested(pod, "batch_cpu_m")),
                    used: MilliCpu(milli(&input["podUsedCores"][uid])),
                    memory_request: Bytes::ZERO,
                }
            })
            .collect();
        order(&mut candidates);
        let found: Vec<&str> = candidates.iter().map(|one| one.uid.as_str()).collect();
        let expected = output["order"].as_array().expect("a list");
        assert!(found.iter().eq(expected.iter()), "{name}: {found:?}");
    }
}

#[test]
fn releases_for_allocatable() {
    let resources = [(Band::Batch, "batch_cpu_m"), (Band::Mid, "mid_cpu_m")];
    for Row {
        name,
        input,
        output,
    } in rows("cpuevict_allocatable")
    {
        let node = &input["nodeAllocatable"];
        let allocatable = resources
            .into_iter()
            .filter_map(|(band, resource)| Some((band, MilliCpu(node[resource].as_u64()?))));
        let pods: Vec<BandRequest> = input["pods"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|pod| {
                let priority = i32::try_from(number(&pod["priority"])).expect("a priority");
                let class_band = if pod["qos"] == "BE" {
                    Band::Batch
                } else {
                    Band::Prod
                };
                let band = Band::of_priority(priority).unwrap_or(class_band);
                let resource = resources.into_iter().find(|(of, _)| *of == band);
                let request = resource.map_or(0, |(_, resource)| requested(pod, resource));
                BandRequest {
                    band,
                    priority,
                    request: MilliCpu(request),
                }
            })
            .collect();
        let config = &input["cfg"];
        let priority = number(&config["allocatableEvictPriorityThreshold"]);
        let threshold = AllocatableThreshold {
            percent: number(&config["cpuAllocatableEvictThresholdPercent"]),
            lower_percent: number(&config["cpuAllocatableEvictLowerPercent"]),
            priority: i32::try_from(priority).expect("a priority"),
        };
        let found = release_for_allocatable(&allocatable.collect(), &pods, &threshold);
        let release = output["release"].as_object().expect("a table");
        let expected: BTreeMap<Band, MilliCpu> = resources
            .into_iter()
            .filter_map(|(band, resource)| Some((band, MilliCpu(release.get(resource)?.as_u64()?))))
            .collect();
        assert_eq!(expected.len(), release.len(), "{name}: another resource");
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn which_evictions_a_pod_accepts() {
    for Row {
        name,
        input,
        output,
    } in rows("eviction_policy_annotation")
    {
        let accepted = input["annotations"][EVICTION_POLICY_ANNOTATION]
            .as_str()
            .map_or(AcceptedEvictions::All, |text| {
                AcceptedEvictions::Only(serde_json::from_str(text).unwrap_or_default())
            });
        let policy = input["policy"].as_str().expect("a name");
        assert_eq!(
            Some(accepted.allows(policy)),
            output["allowed"].as_bool(),
            "{name}"
        );
    }
    assert!(AcceptedEvictions::All.allows("evictByCPUUsage"));
}

#[test]
fn weights_of_shares() {
    for Row {
        name,
        input,
        output,
    } in rows("cgroup_shares_to_weight")
    {
        let text = input["shares"].as_str().expect("a text");
        let value = CPU_SHARES.parse(Version::V1, &[text.as_bytes()]);
        let weight = match value {
            Some(SettingValue::Share(CpuShare::Shares(shares))) if shares >= CpuShares::MIN => {
                Some(shares_to_weight(shares))
            }
            // No file of the kernel holds less than its least.
            _ => None,
        };
        assert_eq!(weight.is_none(), output["error"] == true, "{name}");
        assert_eq!(weight, output["weight"].as_u64().map(CpuWeight), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// No more is released than is requested, nothing of satisfied best effort, and what is left is satisfied
    /// to the upper percentage.
    #[test]
    fn a_release_satisfies_the_rest(
        lower in 1..=60_u64,
        above in 0..40_u64,
        [limit, used, request] in prop::array::uniform3(0..200_000_u64),
    ) {
        let upper = (lower + above).min(99);
        let thresholds = Satisfaction::new(lower, upper, None).expect("thresholds");
        let figures = BestEffort { limit: MilliCpu(limit), used: MilliCpu(used), request: MilliCpu(request) };
        let release = release_for_satisfaction(Some(figures), figures, &thresholds).0;
        prop_assert!(release <= request);
        if release > 0 {
            prop_assert!(limit * 100 <= request * lower);
            prop_assert!(used * 100 >= limit * 90 || limit < 1000);
            // After it, the same limit serves request * upper at least, within one milli-CPU.
            prop_assert!((limit + release + 1) * 100 >= request * upper);
        }
        prop_assert_eq!(release_for_satisfaction(None, figures, &thresholds), MilliCpu::ZERO);
    }

    /// The order is a permutation that does not depend on the order of the input.
    #[test]
    fn an_order_is_one_of_the_input(
        figures in prop::collection::vec((0..3_i32, 0..4_u64, 0..4_u64), 0..8),
    ) {
        let candidates: Vec<Candidate> = figures
            .iter()
            .zip(0..)
            .map(|((priority, request, used), uid): (_, u8)| Candidate {
                uid: PodUid::from(format!("{uid}")),
                priority: *priority,
                request: MilliCpu(*request),
                used: MilliCpu(*used),
                memory_request: Bytes::ZERO,
            })
            .collect();
        let (mut one, mut other) = (candidates.clone(), candidates.clone());
        other.reverse();
        order(&mut one);
        order(&mut other);
        prop_assert_eq!(&one, &other);
        let mut uids: Vec<_> = one.into_iter().map(|one| one.uid).collect();
        uids.sort();
        let all: Vec<_> = candidates.into_iter().map(|one| one.uid).collect();
        prop_assert_eq!(uids, all);
    }
}
