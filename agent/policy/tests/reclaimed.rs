//! Golden tables of reclaimed resources: what Koordinator's manager and koordlet compute, from their own tests or
//! derived from their formulas (`colocation/reclaimed.json`). Rows that differ on purpose say so, and
//! `deploy/docs/differences.md` says why.
//!
//! More than 400 lines: one file of rows and what reads it.

use podwarden_policy::{
    Bytes, Container, CpuShares, MilliCpu, Pod, Reclaimed, Resources,
    colocation::{
        batch_pod::{self, BatchOptions, BatchValues},
        class::Band,
        memory_evict,
        reclaimed::{self, Amounts, Facts, Percents, Policy, Strategy, Workload},
        resctrl::{self, Vendor},
    },
    convert,
    limits::Limit,
};
use serde_json::Value;

fn table(name: &str) -> Vec<Value> {
    let text = include_str!("colocation/reclaimed.json");
    let mut all: Value = serde_json::from_str(text).expect("the table parses");
    let rows = all[name].take();
    let rows: Vec<Value> = serde_json::from_value(rows).expect("rows");
    assert!(!rows.is_empty(), "{name}");
    rows
}

fn amounts(pair: &Value) -> Amounts {
    let at = |i: usize| pair[i].as_u64().expect("an amount");
    Amounts::new(MilliCpu(at(0)), Bytes(at(1)))
}

/// The manager's rule: the label, the priority's band, then the literal class; here only to read its rows.
fn band_of(row: &Value) -> Band {
    let by_label = row["class"].as_str().and_then(Band::from_text);
    let priority = row["priority"].as_i64().and_then(|p| i32::try_from(p).ok());
    by_label
        .or_else(|| priority.and_then(Band::of_priority))
        .unwrap_or(match row["qos"].as_str() {
            Some("BE") => Band::Batch,
            _ => Band::Prod,
        })
}

fn strategy(row: &Value) -> Strategy {
    let percent = |key: &str, default: u32| {
        let written = row[key].as_u64().and_then(|p| u32::try_from(p).ok());
        written.unwrap_or(default)
    };
    let policy = |key: &str| match row[key].as_str() {
        Some("request") => Policy::Request,
        Some("maxUsageRequest") => Policy::MaxUsageRequest,
        _ => Policy::Usage,
    };
    let both = |cpu, memory, default| Percents {
        cpu: percent(cpu, default),
        memory: percent(memory, default),
    };
    let ceiling = |key: &str| row[key].is_u64().then(|| percent(key, 0));
    Strategy {
        reclaim: Percents {
            cpu: percent("cpuReclaimThresholdPercent", 60),
            memory: percent("memoryReclaimThresholdPercent", 65),
        },
        cpu_policy: policy("cpuCalculatePolicy"),
        memory_policy: policy("memoryCalculatePolicy"),
        batch_cpu_ceiling: ceiling("batchCPUThresholdPercent"),
        batch_memory_ceiling: ceiling("batchMemoryThresholdPercent"),
        mid_ceiling: both("midCPUThresholdPercent", "midMemoryThresholdPercent", 100),
        mid_unallocated: percent("midUnallocatedPercent", 0),
        mid_static: (row["midReclaimMode"] == "static").then(|| {
            both(
                "midStaticCPUReservedPercent",
                "midStaticMemoryReservedPercent",
                0,
            )
        }),
    }
}

fn workload(band: Band, exclusive: bool, request: Amounts, used: Option<Amounts>) -> Workload {
    Workload {
        band,
        exclusive,
        request,
        used,
        holds_batch: Amounts::default(),
        holds_mid: Amounts::default(),
    }
}

/// The facts of a row for `mid` (`offered` is the band whose workloads of the host count).
fn facts(row: &Value, offered: Band) -> Facts {
    let capacity = amounts(&row["capacity"]);
    let kept = capacity.minus(amounts(&row["allocatable"]));
    let none = Vec::new();
    let figures = row["figures"].as_array().unwrap_or(&none);
    let used = |figure: &Value| amounts(&Value::from(&figure.as_array().expect("a row")[1..3]));
    let mut workloads = Vec::new();
    let mut listed = Vec::new();
    for pod in row["pods"].as_array().expect("pods") {
        if pod["phase"] != "Running" && pod["phase"] != "Pending" {
            continue;
        }
        let figure = figures.iter().find(|f| f[0] == pod["name"]);
        listed.push(&pod["name"]);
        workloads.push(workload(
            band_of(pod),
            pod["qos"] == "LSE",
            amounts(&pod["request"]),
            figure.map(used),
        ));
    }
    for figure in figures.iter().filter(|f| !listed.contains(&&f[0])) {
        let band = figure[3].as_str().and_then(Band::from_text);
        let band = band.unwrap_or(Band::Prod);
        workloads.push(workload(
            band,
            false,
            Amounts::default(),
            Some(used(figure)),
        ));
    }
    let mut system = amounts(&row["system"]);
    for app in row["apps"].as_array().expect("apps") {
        if app[0].as_str().and_then(Band::from_text) > Some(offered) {
            system = system.plus(used(app));
        }
    }
    Facts {
        capacity,
        reserved: kept.max(amounts(&row["annotation"])),
        system,
        used: row.get("used").map(amounts).unwrap_or_default(),
        reclaimable: row.get("reclaimable").filter(|r| !r.is_null()).map(amounts),
        workloads,
    }
}

/// Rows with a pod without figures under `maxUsageRequest`: the manager leaves such a pod out, and podwarden counts
/// its request (`deploy/docs/differences.md`).
const DIFFERENT_BATCH_ROWS: usize = 6;

#[test]
fn batch_of_a_node() {
    let mut different = 0;
    for row in table("batch").into_iter().chain(table("batch_derived")) {
        let strategy = strategy(&row["strategy"]);
        let facts = facts(&row, Band::Batch);
        let got = reclaimed::batch(&facts, &strategy);
        let want = amounts(&row["out"]);
        assert_eq!(got.offered, got.law, "no row holds anything");
        let fresh = |w: &Workload| w.band >= Band::Mid && w.used.is_none();
        let by_larger =
            [strategy.cpu_policy, strategy.memory_policy].contains(&Policy::MaxUsageRequest);
        if !by_larger || !facts.workloads.iter().any(fresh) {
            assert_eq!(got.offered, want, "{row}");
            continue;
        }
        let mut without = facts.clone();
        without.workloads.retain(|w| !fresh(w));
        let theirs = reclaimed::batch(&without, &strategy).offered;
        let rows = [
            (
                strategy.cpu_policy,
                got.offered.cpu.0,
                theirs.cpu.0,
                want.cpu.0,
            ),
            (
                strategy.memory_policy,
                got.offered.memory.0,
                theirs.memory.0,
                want.memory.0,
            ),
        ];
        for (policy, ours, theirs, want) in rows {
            if policy == Policy::MaxUsageRequest {
                assert!(theirs == want && ours <= want, "{row}");
            } else {
                assert_eq!(ours, want, "{row}");
            }
        }
        different += usize::from(got.offered != want);
    }
    assert_eq!(different, DIFFERENT_BATCH_ROWS);
}

#[test]
fn mid_of_a_node() {
    for row in table("mid") {
        let got = reclaimed::mid(&facts(&row, Band::Mid), &strategy(&row["strategy"]));
        assert_eq!(got.offered, amounts(&row["out"]), "{row}");
    }
}

#[test]
fn system_use_is_what_no_pod_uses() {
    for row in table("used_split") {
        let number = |value: &Value| value.as_u64().expect("a number");
        let pods = row["pods"].as_array().expect("pods").iter();
        let apps = row["apps"].as_array().expect("apps").iter();
        let pods: Vec<_> = pods.map(|p| (&p[1], number(&p[2]))).collect();
        let apps: Vec<_> = apps.map(|a| (&a[0], number(&a[1]))).collect();
        let all: u64 = pods.iter().chain(&apps).map(|(_, used)| used).sum();
        let kept = |of: &[(&Value, u64)]| {
            let none = row["filter"] == "NonePodHighPriority";
            let kept = of.iter().filter(|(class, _)| !none && **class != "BE");
            kept.map(|(_, used)| used).sum::<u64>()
        };
        let cpu = |amount| Amounts::new(MilliCpu(amount), Bytes::ZERO);
        let used = cpu(number(&row["used"]));
        let system = reclaimed::system_used(used, cpu(number(&row["reserved"])), cpu(all));
        let got = [kept(&pods), kept(&apps), system.cpu.0];
        assert_eq!(row["out"], Value::from(got.to_vec()), "{row}");
    }
}

/// `[cpu, memory]` or nothing, as the API server has it before its defaults.
fn asked(spec: &Value) -> Option<Resources> {
    let cpu = |pair: &Value| pair[0].as_u64().map(MilliCpu);
    let memory = |pair: &Value| pair[1].as_u64().map(Bytes);
    (!spec.is_null()).then(|| Resources {
        reclaimed: Some(Reclaimed {
            cpu_request: cpu(&spec["requests"]),
            cpu_limit: cpu(&spec["limits"]),
            memory_request: memory(&spec["requests"]),
            memory_limit: memory(&spec["limits"]),
            ..Reclaimed::default()
        }),
        ..Resources::default()
    })
}

fn options(row: &Value) -> BatchOptions {
    BatchOptions {
        enforce_cpu_limits: row["quota"].as_bool().expect("a switch"),
        normalization_percent: u32::try_from(row["percent"].as_u64().expect("percent"))
            .expect("percent"),
        ..BatchOptions::default()
    }
}

/// Shares, quota (-1 for none), memory (-1 for none) and the weight of cgroup v2.
fn written(values: Option<BatchValues>) -> Value {
    let signed = |limit: Limit<u64>| limit.bound().map_or(Value::from(-1), Value::from);
    let memory = |limit: Limit<Bytes>| signed(limit.bound().map(Bytes::as_u64).into());
    values.map_or(Value::Null, |v| {
        Value::from(vec![
            Value::from(v.shares.0),
            signed(v.cpu_max.quota_us),
            memory(v.memory_limit),
            Value::from(convert::shares_to_weight(v.shares).0),
        ])
    })
}

#[test]
fn batch_values_of_pods_and_containers() {
    for row in table("hook_pod") {
        let containers = row["containers"].as_array().cloned().unwrap_or_default();
        let containers = containers.iter().filter_map(asked);
        let pod = Pod {
            containers: containers
                .map(|resources| Container {
                    resources,
                    ..Container::default()
                })
                .collect(),
            ..Pod::default()
        };
        let got = batch_pod::pod(&pod, &options(&row));
        assert_eq!(written(got), row["out"], "{row}");
    }
    for row in table("hook_container") {
        let resources = asked(&row["container"]).unwrap_or_default();
        let got = batch_pod::container(&resources, &options(&row));
        assert_eq!(written(got), row["out"], "{row}");
    }
}

#[test]
fn milli_cpu_to_cgroup_values() {
    for row in table("milli") {
        let milli = MilliCpu(row[0].as_u64().expect("milli"));
        let shares = convert::milli_to_shares(milli);
        assert_eq!(shares, CpuShares(row[1].as_u64().expect("shares")), "{row}");
        let weight = convert::shares_to_weight(shares).0;
        assert_eq!(Some(weight), row[2].as_u64(), "{row}");
        for (at, normalization_percent) in [(3, 100), (4, 120)] {
            let options = BatchOptions {
                normalization_percent,
                ..BatchOptions::default()
            };
            let quota = batch_pod::quota_us(milli, &options);
            assert_eq!(quota.bound(), row[at].as_u64(), "{row}");
        }
    }
}

#[test]
fn cache_masks_and_bandwidth() {
    for row in table("l3") {
        let percent = |at: usize| i32::try_from(row[at].as_i64().expect("percent")).expect("i32");
        let got = resctrl::l3_mask(row[0].as_u64().expect("a mask"), percent(1), percent(2));
        let hex = got.ok().map(|mask| format!("{mask:x}"));
        assert_eq!(hex.as_deref(), row[3].as_str(), "{row}");
    }
    for row in table("mba") {
        let vendor = match row[0].as_str() {
            Some("AuthenticAMD") => Vendor::Amd,
            _ => Vendor::Intel,
        };
        let percent = row[1].as_i64().and_then(|p| i32::try_from(p).ok());
        let got = resctrl::memory_bandwidth(vendor, percent);
        let text = got.map_or(String::new(), |value| value.to_string());
        assert_eq!(row[2], text.as_str(), "{row}");
    }
    assert_eq!(resctrl::memory_bandwidth(Vendor::Intel, Some(81)), Some(90));
    assert_eq!(
        resctrl::memory_bandwidth(Vendor::Amd, Some(100)),
        Some(resctrl::AMD_UNLIMITED)
    );
}

#[test]
fn release_by_requests() {
    for row in table("evict_allocatable") {
        let percent = |key: &str| u32::try_from(row[key].as_u64().expect("percent")).expect("u32");
        let got = memory_evict::overcommitted(
            row["offered"].as_u64().map(Bytes),
            Bytes(row["requested"].as_u64().expect("bytes")),
            percent("threshold"),
            percent("lower"),
        );
        assert_eq!(got.map(Bytes::as_u64), row["release"].as_u64(), "{row}");
    }
}
