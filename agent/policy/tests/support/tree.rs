//! Snapshots to plan from.

use std::collections::BTreeMap;

use podwarden_policy::{
    Bytes, Container, ContainerKind, CpuShares, CpuWeight, MilliCpu, Node, Pod, PodUid, QosClass,
    Reclaimed, Resources,
    limits::{CpuMax, Limit, LimitOptions},
    model::{Enforcement, Overhead, ReclaimedTier, Reserved, ReservedCgroup},
    name::CgroupName,
    plan::{ContainerCgroup, Controllers, Snapshot},
    pressure::crossed_by_pods,
    settings::{CpuShare, Observed},
};
use proptest::{
    array::{uniform5, uniform7},
    collection::{btree_map, vec},
    option,
    prelude::*,
    sample::select,
};

use crate::kernel::fresh;

/// The `index`-th of some values; the first index stands for none.
fn pick<T: Copy>(index: u8, values: &[T]) -> Option<T> {
    usize::from(index)
        .checked_sub(1)
        .map(|i| values[i % values.len()])
}

// Plain ranges of small numbers, decoded: several times as fast to generate as nested choices.
fn resources() -> impl Strategy<Value = Resources> {
    let cpu = |i| pick(i, &[0, 1, 10, 250, 1000, 64_000]).map(MilliCpu);
    let memory = |i| pick(i, &[0, 1, 100_000_000, 1 << 28, 1 << 34]).map(Bytes);
    uniform5(0u8..7).prop_map(move |[a, b, c, d, huge]| Resources {
        cpu_request: cpu(a).filter(|_| huge < 3),
        cpu_limit: cpu(b).filter(|_| huge < 3),
        memory_request: memory(c).filter(|_| huge < 3),
        memory_limit: memory(d).filter(|_| huge < 3),
        hugepages: pick(huge % 2, &[(Bytes::mebi(2), Bytes::mebi(64))])
            .into_iter()
            .collect(),
        // The others are BestEffort and may ask for what is reclaimed.
        reclaimed: (huge > 3).then(|| Reclaimed {
            tier: if huge > 5 {
                ReclaimedTier::Mid
            } else {
                ReclaimedTier::Batch
            },
            cpu_request: cpu(a),
            cpu_limit: cpu(b),
            memory_request: memory(c),
            memory_limit: memory(d),
        }),
    })
}

fn container() -> impl Strategy<Value = Container> {
    let kinds = [
        ContainerKind::App,
        ContainerKind::Init,
        ContainerKind::Sidecar,
    ];
    (1u8..4, resources()).prop_map(move |(kind, resources)| Container {
        name: "c".into(),
        kind: pick(kind, &kinds).unwrap_or_default(),
        resources,
    })
}

/// Any pod; uids are few, so that some meet twice.
pub(crate) fn any_pod() -> impl Strategy<Value = Pod> {
    let overhead = Just(Overhead {
        cpu: Some(MilliCpu(250)),
        memory: Some(Bytes::mebi(120)),
    });
    (
        0u8..12,
        -2i32..3,
        vec(container(), 0..4),
        option::weighted(0.2, resources()),
        option::weighted(0.2, overhead),
        (prop::bool::weighted(0.1), prop::bool::weighted(0.1), "[ab]"),
    )
        .prop_map(
            |(uid, priority, containers, pod_resources, overhead, rest)| {
                let (critical, static_pod, name) = rest;
                Pod {
                    uid: PodUid::new(format!("u{uid}")),
                    name,
                    namespace: "n".into(),
                    priority,
                    critical,
                    static_pod,
                    containers,
                    pod_resources,
                    overhead,
                    ..Pod::default()
                }
            },
        )
}

/// Cgroups of daemons: two that may exist, and one that pods are in.
const DAEMONS: [&str; 3] = ["/system", "/kube", "/kubepods"];

fn reserved_cgroup() -> impl Strategy<Value = Option<ReservedCgroup>> {
    (0u8..5, any::<bool>()).prop_map(|(index, compressible_only)| {
        Some(ReservedCgroup {
            cgroup: CgroupName::parse_cgroupfs(pick(index, &DAEMONS)?),
            compressible_only,
        })
    })
}

fn any_node() -> impl Strategy<Value = Node> {
    let amounts = (
        select(vec![0, 1 << 30, 8 << 30, 100_000_000_000]),
        select(vec![0, 1 << 20, 1 << 32]),
        option::of(select(vec![0, 500, 4_194_304])),
    );
    let enforce = (any::<bool>(), reserved_cgroup(), reserved_cgroup()).prop_map(
        |(pods, kube_reserved, system_reserved)| Enforcement {
            pods,
            kube_reserved,
            system_reserved,
        },
    );
    (
        amounts,
        option::of(0u8..=100),
        btree_map(Just(Bytes::mebi(2)), Just(Bytes::gibi(1)), 0..2),
        enforce,
    )
        .prop_map(
            |((capacity, reserved, pids), percent, hugepages, enforce)| Node {
                cpu_capacity: MilliCpu(8000),
                memory_capacity: Bytes(capacity),
                pids_capacity: pids,
                hugepages,
                kube_reserved: Reserved {
                    cpu: MilliCpu(200),
                    memory: Bytes(reserved),
                    pids: reserved % 1000,
                    ..Reserved::default()
                },
                system_reserved: Reserved {
                    memory: Bytes(reserved),
                    ..Reserved::default()
                },
                enforce,
                eviction_hard_memory: Bytes::mebi(100),
                qos_reserved_memory_percent: percent,
                ..Node::default()
            },
        )
}

/// What may be found in a cgroup; some fields cannot be read.
fn any_observed(weights: bool) -> impl Strategy<Value = Observed> {
    let share = move |n: u64| match weights {
        true => CpuShare::Weight(CpuWeight(n)),
        false => CpuShare::Shares(CpuShares(n)),
    };
    let bytes = |limit: Limit<u64>| Limit::from(limit.bound().map(Bytes));
    let (at, max) = (Limit::At::<u64>, Limit::Unlimited);
    uniform7(0u8..10).prop_map(
        move |[ours, cpu, quota, period, limit, low, usage]| Observed {
            ours: ours % 2 == 0,
            cpu: pick(cpu, &[2, 3, 100, 1024, 10_000]).map(share),
            cpu_max: pick(quota, &[max, max, at(1000), at(25_000), at(400_000)]).map(|quota_us| {
                CpuMax {
                    quota_us,
                    period_us: if period % 2 == 0 { 5000 } else { 100_000 },
                }
            }),
            memory_limit: pick(
                limit,
                &[
                    max,
                    max,
                    at(0),
                    at(4096),
                    at(1 << 28),
                    at(1 << 30),
                    at(1 << 34),
                ],
            )
            .map(bytes),
            memory_min: pick(low, &[0, 4096, 1 << 29]).map(Bytes),
            memory_low: pick(low, &[0, 4096, 1 << 29]).map(Bytes),
            pids_limit: pick(period, &[max, at(1), at(50), at(99)]),
            hugetlb: BTreeMap::new(),
            memory_usage: pick(usage, &[0, 12_345, 1 << 28, 3 << 29]).map(Bytes),
            memory_working_set: pick(usage, &[0, 12_345, 1 << 28, 3 << 29]).map(Bytes),
        },
    )
}

/// A node in any state: pods that are to run, and cgroups with anything in them, some of pods that
/// are gone. A cgroup's parents exist.
pub(crate) fn any_snapshot(weights: bool) -> impl Strategy<Value = Snapshot> {
    let cgroups = vec((0u8..12, 0usize..3, any_observed(weights)), 0..12);
    let tiers = vec(option::of(any_observed(weights)), 3 + DAEMONS.len());
    let options = (any::<bool>(), any::<bool>(), option::of(1u64..100)).prop_map(
        |(enforce_cpu_limits, memory_reservation, pod_pids_limit)| LimitOptions {
            enforce_cpu_limits,
            memory_reservation,
            pod_pids_limit,
            ..LimitOptions::default()
        },
    );
    let usage = option::of(select(vec![Bytes::ZERO, Bytes::gibi(200)]));
    (
        any_node(),
        options,
        vec(any_pod(), 0..8),
        tiers,
        (cgroups, usage),
    )
        .prop_map(move |(node, limits, pods, tiers, (cgroups, usage))| {
            let mut snapshot = Snapshot::new(node, CgroupName::new(["kubepods"]));
            snapshot.crossing = crossed_by_pods(&snapshot.node, usage);
            snapshot.limits = limits;
            snapshot.controllers = Controllers {
                memory_protection: weights,
                ..Controllers::default()
            };
            snapshot.pods = pods;
            let kubepods = snapshot.kubepods.clone();
            let tier_names = QosClass::ALL.map(|class| kubepods.tier(class));
            let daemon_names = DAEMONS.map(CgroupName::parse_cgroupfs);
            for (name, observed) in tier_names.into_iter().chain(daemon_names).zip(tiers) {
                snapshot.cgroups.extend(observed.map(|o| (name, o)));
            }
            snapshot.enforce_reclaimed = cgroups.len() % 3 > 0;
            for (uid, class, observed) in cgroups {
                let pod = PodUid::new(format!("u{uid}"));
                let name = kubepods.pod(QosClass::ALL[class], &pod);
                if uid % 2 == 0 {
                    let cgroup = name.child("c0ffee");
                    let found = fresh(&snapshot.node, weights);
                    snapshot.cgroups.insert(
                        cgroup.clone(),
                        Observed {
                            ours: false,
                            ..found
                        },
                    );
                    snapshot.container_cgroups.push(ContainerCgroup {
                        pod,
                        container: (uid % 4 == 0).then(|| "c".into()),
                        cgroup,
                    });
                }
                snapshot.cgroups.insert(name, observed);
            }
            let parents: Vec<_> = snapshot
                .cgroups
                .keys()
                .filter_map(CgroupName::parent)
                .collect();
            for parent in parents.into_iter().chain([kubepods.clone()]) {
                if parent.is_within(&kubepods) && !snapshot.cgroups.is_empty() {
                    snapshot
                        .cgroups
                        .entry(parent)
                        .or_insert(fresh(&snapshot.node, weights));
                }
            }
            snapshot
        })
}
