//! Koordinator `pkg/koordlet/qosmanager/plugins/cpusuppress/cpu_suppress_test.go`.

use std::collections::BTreeSet;

use podwarden_policy::{
    MilliCpu,
    colocation::suppress::{
        Capacity, MIN_QUOTA_US, Policy, Round, Step, Threshold, Usage,
        cpuset::{self, Cpu, Node},
        next_quota, quantity, round,
    },
    limits::Limit,
};
use proptest::prelude::*;
use serde_json::Value;

use super::vectors::{Row, milli, number, rows};

fn capacity(node: &Value) -> Capacity {
    let [capacity, allocatable] =
        ["capacity", "allocatable"].map(|list| node[list]["cpu_m"].as_u64().unwrap_or(0));
    Capacity {
        capacity: MilliCpu(capacity),
        reserved: MilliCpu(capacity - allocatable),
    }
}

/// A pod that has usage and no object counts among the pods, and not as BE.
fn usage(input: &Value) -> Usage {
    let used = |of: &str| input[of].as_object().expect("a table").clone();
    let (pods, host) = (used("podUsedCores"), used("hostAppUsedCores"));
    let best_effort = |list: &str, name: &str| {
        let mut all = input[list].as_array().into_iter().flatten();
        all.any(|one| one["name"] == name && one["qos"] == "BE")
    };
    let sum = |table: &serde_json::Map<String, Value>, list: Option<&str>| {
        let counted = table
            .iter()
            .filter(|(name, _)| list.is_none_or(|list| best_effort(list, name)));
        MilliCpu(counted.map(|(_, cores)| milli(cores)).sum())
    };
    Usage {
        node: MilliCpu(milli(&input["nodeUsedCores"])),
        pods: sum(&pods, None),
        best_effort_pods: sum(&pods, Some("pods")),
        host: sum(&host, None),
        best_effort_host: sum(&host, Some("hostApps")),
    }
}

#[test]
fn quantities() {
    for Row {
        name,
        input,
        output,
    } in rows("cpusuppress_quantity")
    {
        let threshold = Threshold {
            percent: number(&input["thresholdPercent"]),
            min_percent: input["minPercent"].as_u64(),
        };
        let found = quantity(capacity(&input["node"]), usage(input), threshold);
        assert_eq!(Some(found), output["beSuppressMilliCPU"].as_i64(), "{name}");
    }
}

fn limit(quota: &Value) -> Limit<u64> {
    quota.as_u64().map_or(Limit::Unlimited, Limit::At)
}

#[test]
fn quotas() {
    for Row {
        name,
        input,
        output,
    } in rows("cpusuppress_adjust_cfs_quota")
    {
        assert_eq!(number(&input["periodUs"]), 100_000, "{name}");
        let current = limit(&input["currentQuotaUs"]);
        let quantity = input["quantityMilli"].as_i64().expect("a number");
        let capacity = MilliCpu(number(&input["nodeCapacityMilliCPU"]));
        let found = next_quota(quantity, current, capacity);
        // On purpose: a tier without a quota does not stay so because 3,300 us is near -1.
        if name == "derived.cpusuppress_adjust_cfs_quota 55" {
            assert_eq!(limit(&output["quotaUs"]), Limit::Unlimited, "{name}");
            assert_eq!(found, Some(3300), "{name}");
            continue;
        }
        let stays = found.map_or(current, Limit::At);
        assert_eq!(stays, limit(&output["quotaUs"]), "{name}");
    }
}

fn topology(input: &Value) -> Vec<Cpu> {
    let list = input["topology_cpu_core_socket_node"].as_array();
    let number = |of: &Value| u32::try_from(number(of)).expect("a CPU");
    list.expect("a list")
        .iter()
        .map(|cpu| Cpu {
            id: number(&cpu[0]),
            core: number(&cpu[1]),
            socket: number(&cpu[2]),
            node: number(&cpu[3]),
        })
        .collect()
}

#[test]
fn cpus_in_the_order_in_which_they_are_picked() {
    for Row {
        name,
        input,
        output,
    } in rows("cpusuppress_cpuset_pick")
    {
        let wanted = usize::try_from(number(&input["cpus"])).expect("a number");
        let found = cpuset::pick(wanted, &topology(input)).unwrap_or_default();
        let expected = output["cpusInPickOrder"].as_array();
        let expected = expected.into_iter().flatten().map(number);
        let found = found.into_iter().map(u64::from);
        assert!(found.clone().eq(expected.clone()), "{name}: {found:?}");
    }
}

/// `0-2,4` as numbers.
fn parse(list: &Value) -> BTreeSet<u32> {
    let text = list.as_str().unwrap_or_default();
    let number = |text: &str| text.parse::<u32>().expect(text);
    let ranges = text.split(',').filter(|range| !range.is_empty());
    ranges
        .flat_map(|range| match range.split_once('-') {
            Some((first, last)) => number(first)..=number(last),
            None => number(range)..=number(range),
        })
        .collect()
}

#[test]
fn cpus_after_a_round() {
    for Row {
        name,
        input,
        output,
    } in rows("cpusuppress_adjust_cpuset")
    {
        let mut excluded = parse(&input["lseCpus"]);
        excluded.extend(parse(&input["reservedCpus"]));
        if input["systemQosExclusive"] == true {
            excluded.extend(parse(&input["systemQosCpus"]));
        }
        let (present, lsr) = (parse(&input["oldBECpuset"]), parse(&input["lsrCpus"]));
        let node = Node {
            cpus: &topology(input),
            present: &present,
            excluded: &excluded,
            lsr: &lsr,
        };
        let quantity = input["quantityMilli"].as_i64().expect("a number");
        let found = cpuset::next(quantity, &node);
        let found = found.map_or(present.clone(), BTreeSet::from_iter);
        assert_eq!(found, parse(&output["beCpuset"]), "{name}");
    }
}

/// The 16 CPUs of the suite of whole rounds: four sockets, two NUMA nodes, pairs of hyper-threads.
fn sixteen() -> Vec<Cpu> {
    let cpu = |id| Cpu {
        id,
        core: id / 2,
        socket: id / 4,
        node: id / 8,
    };
    (0..16).map(cpu).collect()
}

#[test]
fn whole_rounds() {
    for Row {
        name,
        input,
        output,
    } in rows("cpusuppress_round")
    {
        let node = capacity(&input["node"]);
        let config = &input["threshold"];
        let policy = match config["cpuSuppressPolicy"].as_str() {
            _ if config["enable"] == false => None,
            Some("cfsQuota") => Some(Policy::CfsQuota),
            _ => Some(Policy::Cpuset),
        };
        let threshold = Threshold {
            percent: number(&config["cpuSuppressThresholdPercent"]),
            min_percent: None,
        };
        let mut input = input.clone();
        input["hostAppUsedCores"] = Value::Object(serde_json::Map::new());
        let allowed =
            (!input["nodeUsedCores"].is_null()).then(|| quantity(node, usage(&input), threshold));
        let (cpus, nothing) = (sixteen(), BTreeSet::new());
        let present = parse(&input["preBECpuset"]);
        let quota = limit(&input["preBEQuotaUs"]);
        let node_cpus = Node {
            cpus: &cpus,
            present: &present,
            excluded: &nothing,
            lsr: &nothing,
        };
        let Round {
            quota: quota_step,
            cpus: cpus_step,
        } = round(policy, allowed, node.capacity, quota, &node_cpus);
        let status = |of: &str| output[of].as_str().map(str::to_owned);
        let state = |keep: bool, restore: bool| match (keep, restore) {
            (true, _) => None,
            (_, true) => Some("recovered".to_owned()),
            _ => Some("using".to_owned()),
        };
        assert_eq!(
            state(quota_step == Step::Keep, quota_step == Step::Restore),
            status("quotaPolicyStatus"),
            "{name}"
        );
        assert_eq!(
            state(cpus_step == Step::Keep, cpus_step == Step::Restore),
            status("cpusetPolicyStatus"),
            "{name}"
        );
        let quota = match quota_step {
            Step::Keep => quota,
            Step::Set(quota) => Limit::At(quota),
            Step::Restore => Limit::Unlimited,
        };
        assert_eq!(quota, limit(&output["beQuotaUs"]), "{name}");
        let cpus = match cpus_step {
            Step::Keep => present,
            Step::Set(cpus) => BTreeSet::from_iter(cpus),
            Step::Restore => parse(&input["nodeCpuset"]),
        };
        assert_eq!(cpus, parse(&output["beCpuset"]), "{name}");
    }
}

fn any_usage() -> impl Strategy<Value = Usage> {
    let cpu = || (0..200_000_u64).prop_map(MilliCpu);
    (cpu(), cpu(), cpu(), cpu(), cpu()).prop_map(|(node, pods, best_effort, host, part)| Usage {
        node,
        pods,
        best_effort_pods: best_effort.min(pods),
        host,
        best_effort_host: part.min(host),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// Rounds in a row: the quota is never below the floor, never above the law, and rises by at most a tenth
    /// of the node at a time.
    #[test]
    fn a_quota_stays_within_its_law(
        cpus in 1..256_u64,
        percent in 1..=100_u64,
        min_percent in prop::option::of(0..=100_u64),
        start in prop::option::of(0..30_000_000_u64),
        rounds in prop::collection::vec(any_usage(), 1..20),
    ) {
        let node = Capacity { capacity: MilliCpu(cpus * 1000), reserved: MilliCpu(100) };
        let threshold = Threshold { percent, min_percent };
        let mut current = start.map_or(Limit::Unlimited, Limit::At);
        for usage in rounds {
            let allowed = quantity(node, usage, threshold);
            prop_assert!(allowed <= i64::try_from(cpus * 1000).unwrap_or(i64::MAX));
            let Some(next) = next_quota(allowed, current, node.capacity) else {
                // What stays is within a hundredth of the node of the law.
                let Limit::At(current) = current else {
                    return Err(TestCaseError::fail("a tier without a quota"));
                };
                let law = u64::try_from(allowed).unwrap_or(0) * 100;
                prop_assert!(current.abs_diff(law.max(MIN_QUOTA_US)) <= cpus * 1000);
                continue;
            };
            prop_assert!(next >= MIN_QUOTA_US);
            prop_assert!(next <= (u64::try_from(allowed).unwrap_or(0) * 100).max(MIN_QUOTA_US));
            if let Limit::At(current) = current {
                prop_assert!(next <= current + cpus * 10_000);
            }
            current = Limit::At(next);
        }
    }

    /// Rounds in a row: best effort has no CPU twice, none that is kept from it, at least two, no more than
    /// the law and a tenth of the node more than before.
    #[test]
    fn cpus_stay_within_their_law(
        count in 1..129_u32,
        quantities in prop::collection::vec(-10_000..130_000_i64, 1..6),
        excluded in prop::collection::btree_set(0..129_u32, 0..20),
        lsr in prop::collection::btree_set(0..129_u32, 0..20),
        threads in 1..=2_u32,
        start in 0..129_usize,
    ) {
        let cpus: Vec<Cpu> = (0..count)
            .map(|id| Cpu { id, core: id / threads, socket: id * 2 / count, node: id * 4 / count })
            .collect();
        let mut present: BTreeSet<u32> = (0..count).take(start).collect();
        for quantity in quantities {
            let node = Node { cpus: &cpus, present: &present, excluded: &excluded, lsr: &lsr };
            let Some(next) = cpuset::next(quantity, &node) else { continue };
            let set = BTreeSet::from_iter(next.iter().copied());
            prop_assert_eq!(set.len(), next.len());
            prop_assert!(set.iter().all(|id| *id < count && !excluded.contains(id)));
            let law = usize::try_from(u64::try_from(quantity).unwrap_or(0).div_ceil(1000)).unwrap_or(0);
            let step = (count as usize).div_ceil(10);
            prop_assert!(set.len() <= law.max(2) && set.len() <= present.len() + step);
            prop_assert!(set.len() >= 2.min(present.len() + step));
            present = set;
        }
    }
}
