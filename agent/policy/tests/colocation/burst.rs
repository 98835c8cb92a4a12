//! Koordinator `pkg/koordlet/qosmanager/plugins/cpuburst/cpu_burst_test.go`.

use podwarden_policy::{
    MilliCpu,
    colocation::burst::{
        Bandwidth, BurstConfig, Cgroup, Container, NodeState, Operation, Policy, Rates, SharePool,
        TokenBucket, Write, base_quota, burst_us, ceiling, kernel_burst_us, next_quota, node_state,
        operation, writes,
    },
};
use proptest::prelude::*;
use serde_json::Value;

use super::vectors::{Row, milli, number, rows};

#[test]
fn states_of_the_node() {
    for Row {
        name,
        input,
        output,
    } in rows("cpuburst_node_state")
    {
        let pods = input["pods"].as_array().expect("a list");
        let of = |classes: &[&str], amount: &dyn Fn(&Value) -> u64| {
            let listed = |pod: &&Value| classes.iter().any(|class| pod["qos"] == *class);
            MilliCpu(pods.iter().filter(listed).map(amount).sum())
        };
        let requests = of(&["LSE", "LSR"], &|pod| number(&pod["requestMilliCPU"]));
        let used = of(&["LSE", "LSR", "BE"], &|pod| {
            let uid = pod["uid"].as_str().expect("a uid");
            milli(&input["podUsedCores"][uid])
        });
        let cpus = MilliCpu(number(&input["nodeCPUs"]) * 1000);
        let pool = (!input["nodeUsedCores"].is_null()).then(|| {
            let node = MilliCpu(milli(&input["nodeUsedCores"]));
            SharePool::new(cpus, node, requests, used)
        });
        let state = node_state(pool, number(&input["sharePoolThresholdPercent"]));
        let state = serde_json::to_value(state).expect("a state");
        assert_eq!(state, output["state"], "{name}");
    }
}

fn config(from: &Value) -> BurstConfig {
    let default = BurstConfig::default();
    let percent = |key: &str, default| from[key].as_u64().unwrap_or(default);
    BurstConfig {
        policy: serde_json::from_value(from["policy"].clone()).expect("a policy"),
        burst_percent: percent("cpuBurstPercent", default.burst_percent),
        quota_percent: percent("cfsQuotaBurstPercent", default.quota_percent),
        ..default
    }
}

#[test]
fn bursts() {
    for Row {
        name,
        input,
        output,
    } in rows("cpuburst_cfs_burst")
    {
        let config = config(&input["cfg"]);
        let limits = input["containersLimitMilliCPU"]
            .as_object()
            .expect("a table");
        let mut sum = 0;
        for (container, limit) in limits {
            let burst = burst_us(MilliCpu(number(limit)), &config);
            assert_eq!(
                burst,
                number(&output["containerBurstUs"][container]),
                "{name}"
            );
            sum += burst;
            // What the kernel takes is at most the quota.
            let quota = base_quota(MilliCpu(number(limit)));
            let kernel = kernel_burst_us(MilliCpu(number(limit)), &config, quota);
            assert_eq!(kernel, burst.min(quota.unwrap_or(0)), "{name}");
        }
        assert_eq!(sum, number(&output["podBurstUs"]), "{name}");
    }
}

fn state(from: &Value) -> NodeState {
    serde_json::from_value(from.clone()).expect("a state")
}

/// The suite's containers, with the pod's quota; and the derived rows' single container.
#[test]
fn steps_of_the_quota() {
    for Row {
        name,
        input,
        output,
    } in rows("cpuburst_cfs_quota")
    {
        if name.starts_with("derived") {
            single(&name, input, output);
            continue;
        }
        let config = config(&input["cfg"]);
        let limits = input["containersLimitMilliCPU"]
            .as_object()
            .expect("a table");
        let mut pod = input["podQuotaUs"].as_i64().expect("a quota");
        for (id, limit) in limits {
            let quota = input["containerQuotaUs"][id].as_i64().expect("a quota");
            let samples = input["throttledSampleCount"][id].as_u64();
            let throttled = samples.filter(|count| *count > 0);
            let container = Container {
                limit: MilliCpu(limit.as_u64().unwrap_or(0)),
                quota_us: u64::try_from(quota).unwrap_or(0),
                throttled: throttled.map(|_| milli(&input["throttledLast"][id]) > 0),
                allowed: true,
            };
            let next = next_quota(&container, &config, state(&input["nodeState"]));
            let next = next.map_or(quota, |next| i64::try_from(next).expect("a quota"));
            assert_eq!(
                Some(next),
                output["containerQuotaUs"][id].as_i64(),
                "{name} {id}"
            );
            if pod > 0 {
                pod += next - quota;
            }
        }
        assert_eq!(Some(pod), output["podQuotaUs"].as_i64(), "{name}");
    }
}

fn single(name: &str, input: &Value, output: &Value) {
    let config = config(input);
    let throttled = &input["throttledLast"];
    let container = Container {
        limit: MilliCpu(number(&input["limitMilliCPU"])),
        quota_us: number(&input["currentQuotaUs"]),
        throttled: (!throttled.is_null()).then(|| milli(throttled) > 0),
        allowed: true,
    };
    let state = state(&input["nodeState"]);
    let op = serde_json::to_value(operation(&container, &config, state)).expect("an operation");
    assert_eq!(op, output["op"], "{name}");
    let next = next_quota(&container, &config, state).expect("a quota");
    assert_eq!(next, number(&output["quotaUs"]), "{name}");
    let delta = i128::from(next) - i128::from(container.quota_us);
    assert_eq!(
        Some(delta),
        output["podDeltaUs"].as_i64().map(i128::from),
        "{name}"
    );
}

#[test]
fn a_container_without_tokens_is_lowered_whatever_the_node_does() {
    let config = BurstConfig {
        policy: Policy::Auto,
        ..BurstConfig::default()
    };
    let container = Container {
        limit: MilliCpu(1000),
        quota_us: 200_000,
        throttled: Some(true),
        allowed: false,
    };
    for state in [
        NodeState::Idle,
        NodeState::Cooling,
        NodeState::Overload,
        NodeState::Unknown,
    ] {
        assert_eq!(
            operation(&container, &config, state),
            Operation::Down,
            "{state:?}"
        );
        assert_eq!(
            next_quota(&container, &config, state),
            Some(160_000),
            "{state:?}"
        );
    }
}

#[test]
fn token_buckets() {
    for Row {
        name,
        input,
        output,
    } in rows("cpuburst_token_bucket")
    {
        let rates = Rates {
            period_seconds: number(&input["burstPeriodSec"]),
            quota_percent: number(&input["maxScalePercent"]),
        };
        // The ratio has two decimals.
        let filled =
            rates.capacity() * i64::try_from(milli(&input["tokenFillRatio"])).expect("a ratio");
        let mut bucket = TokenBucket::new(rates, filled / 1000);
        let milliseconds = number(&input["elapsedSec"]) * 1000;
        let allowed = bucket.used(number(&input["usagePercentOfLimit"]), milliseconds);
        assert_eq!(Some(allowed), output["allow"].as_bool(), "{name}");
        assert_eq!(Some(bucket.tokens()), output["tokens"].as_i64(), "{name}");
    }
}

/// The kernel's checks of one pod's cgroups.
struct Kernel {
    v1: bool,
    pod: Bandwidth,
    containers: Vec<Bandwidth>,
}

impl Kernel {
    /// False where the kernel refuses the write.
    fn write(&mut self, write: Write) -> bool {
        let (cgroup, next) = match write {
            Write::Quota(cgroup, quota_us) => (
                cgroup,
                Bandwidth {
                    quota_us,
                    ..self.of(cgroup)
                },
            ),
            Write::Burst(cgroup, burst_us) => (
                cgroup,
                Bandwidth {
                    burst_us,
                    ..self.of(cgroup)
                },
            ),
        };
        if next
            .quota_us
            .is_some_and(|quota| next.burst_us > quota || quota < 1000)
        {
            return false;
        }
        match cgroup {
            Cgroup::Pod => self.pod = next,
            Cgroup::Container(index) => self.containers[index] = next,
        }
        let fits = |container: &Bandwidth| match (container.quota_us, self.pod.quota_us) {
            (Some(container), Some(pod)) => container <= pod,
            _ => true,
        };
        !self.v1 || self.containers.iter().all(fits)
    }

    fn of(&self, cgroup: Cgroup) -> Bandwidth {
        match cgroup {
            Cgroup::Pod => self.pod,
            Cgroup::Container(index) => self.containers[index],
        }
    }
}

fn any_bandwidth() -> impl Strategy<Value = Bandwidth> {
    (prop::option::of(1000..1_000_000_u64), 0..1_000_000_u64).prop_map(|(quota_us, burst_us)| {
        Bandwidth {
            quota_us,
            burst_us: burst_us.min(quota_us.unwrap_or(u64::MAX)),
        }
    })
}

/// A pod whose quota is at least each container's.
fn any_pod(containers: usize) -> impl Strategy<Value = (Bandwidth, Vec<Bandwidth>)> {
    let containers = prop::collection::vec(any_bandwidth(), containers);
    (any_bandwidth(), containers).prop_map(|(mut pod, containers)| {
        let largest = containers.iter().filter_map(|c| c.quota_us).max();
        pod.quota_us = pod.quota_us.max(largest).filter(|_| pod.quota_us.is_some());
        (pod, containers)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// From any state to any other: the kernel refuses no write, on v1 and v2, and the state is reached. A
    /// prefix of the writes and then the way back restores everything, refusing nothing either.
    #[test]
    fn no_write_is_refused_and_any_prefix_is_restored(
        v1: bool,
        prefix in 0..20_usize,
        ((pod, containers), (pod_then, containers_then)) in
            (0..4_usize).prop_flat_map(|n| (any_pod(n), any_pod(n))),
    ) {
        let changes: Vec<_> = containers.iter().copied().zip(containers_then.iter().copied()).collect();
        let all = writes((pod, pod_then), &changes);
        let mut kernel = Kernel { v1, pod, containers: containers.clone() };
        for write in &all {
            prop_assert!(kernel.write(*write), "refused: {:?} of {:?}", write, all);
        }
        prop_assert_eq!((kernel.pod, &kernel.containers), (pod_then, &containers_then));

        let mut kernel = Kernel { v1, pod, containers: containers.clone() };
        for write in all.iter().take(prefix) {
            prop_assert!(kernel.write(*write));
        }
        let back: Vec<_> = kernel.containers.iter().copied().zip(containers.iter().copied()).collect();
        for write in writes((kernel.pod, pod), &back) {
            prop_assert!(kernel.write(write), "refused on the way back: {:?}", write);
        }
        prop_assert_eq!((kernel.pod, &kernel.containers), (pod, &containers));
        prop_assert_eq!(writes((pod, pod), &back_to_itself(&containers)), vec![]);
    }

    /// Steps in a row: the quota stays within the limit and its ceiling, and rises by at most a fifth.
    #[test]
    fn a_quota_stays_within_its_law(
        limit in 1..64_000_u64,
        quota_percent in 0..1000_u64,
        steps in prop::collection::vec((0..4_usize, prop::option::of(any::<bool>()), any::<bool>()), 1..30),
    ) {
        let config = BurstConfig { policy: Policy::Auto, quota_percent, ..BurstConfig::default() };
        let base = base_quota(MilliCpu(limit)).expect("a limit");
        let mut quota_us = base;
        let states = [NodeState::Idle, NodeState::Cooling, NodeState::Overload, NodeState::Unknown];
        for (state, throttled, allowed) in steps {
            let container = Container { limit: MilliCpu(limit), quota_us, throttled, allowed };
            let next = next_quota(&container, &config, states[state]).expect("a limit");
            prop_assert!((base..=ceiling(base, &config)).contains(&next));
            prop_assert!(next * 5 <= quota_us * 6);
            if states[state] != NodeState::Idle || throttled != Some(true) || !allowed {
                prop_assert!(next <= quota_us);
            }
            quota_us = next;
        }
    }

    /// A container that uses all that it may: over any time it gets its limit and what the full bucket
    /// holds.
    #[test]
    fn no_more_than_the_tokens(
        period_seconds in 1..1000_u64,
        quota_percent in 101..1000_u64,
        looks in prop::collection::vec(1..5000_u64, 1..200),
    ) {
        let rates = Rates { period_seconds, quota_percent };
        let mut bucket = TokenBucket::new(rates, i64::MAX);
        let (mut allowed, mut beyond, mut longest) = (true, 0_u64, 0_u64);
        for milliseconds in looks {
            let percent = if allowed { quota_percent } else { 100 };
            beyond += (percent - 100) * milliseconds;
            longest = longest.max((quota_percent - 100) * milliseconds);
            allowed = bucket.used(percent, milliseconds);
        }
        // The look that empties the bucket is late by at most one interval.
        let capacity = u64::try_from(rates.capacity()).unwrap_or(0) * 1000;
        prop_assert!(beyond <= capacity + longest);
    }
}

fn back_to_itself(containers: &[Bandwidth]) -> Vec<(Bandwidth, Bandwidth)> {
    containers.iter().map(|one| (*one, *one)).collect()
}
