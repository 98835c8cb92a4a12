//! A snapshot from choices: every one is possible on a node, most are unlikely.

use std::collections::BTreeMap;

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use podwarden_policy::{
    Bytes, Container, ContainerKind, CpuShares, CpuWeight, MilliCpu, Node, Pod, PodUid, QosClass,
    Reclaimed, Resources,
    colocation::class::Labels,
    evict::{Exemptions, Ranking},
    limits::{CpuMax, Limit, LimitOptions},
    model::{Enforcement, Overhead, ReclaimedTier, Reserved, ReservedCgroup},
    name::CgroupName,
    plan::{Controllers, Ownership, Snapshot},
    pressure::Crossing,
    settings::{CpuShare, Observed},
    signal::Signal,
    threshold::{Amount, Threshold},
};

/// Uids are few, so that some meet twice.
const UIDS: u8 = 12;
const PAGE: Bytes = Bytes(4096);
const HUGE_PAGES: [Bytes; 2] = [Bytes::mebi(2), Bytes::gibi(1)];
/// Amounts at which something changes; others are drawn freely.
const AMOUNTS: [u64; 10] = [
    0,
    1,
    4095,
    4096,
    1 << 21,
    (1 << 28) + 1,
    1 << 30,
    1 << 34,
    1 << 63,
    u64::MAX,
];

type Choices<'a, 'b> = &'a mut Unstructured<'b>;

/// The snapshot of these choices; those that are missing are the first ones.
pub(crate) fn snapshot(bytes: &[u8]) -> Result<Snapshot> {
    let mut choices = Unstructured::new(bytes);
    let u = &mut choices;
    let weights = u.arbitrary()?;
    let mut snapshot = Snapshot::new(node(u)?, CgroupName::parse_cgroupfs(root(u)?));
    snapshot.limits = options(u)?;
    snapshot.ownership = *u.choose(&[Ownership::Own, Ownership::Assist])?;
    snapshot.controllers = Controllers {
        cpu: u.ratio(7, 8)?,
        cpu_bandwidth: u.ratio(7, 8)?,
        memory: u.ratio(7, 8)?,
        memory_protection: weights,
        pids: u.ratio(7, 8)?,
        hugetlb: u.ratio(7, 8)?,
    };
    snapshot.ranking = *u.choose(&[Ranking::QosFirst, Ranking::Kubelet])?;
    snapshot.exemptions = Exemptions {
        evict_static_pods: u.arbitrary()?,
        own_pod: option(u, uid)?,
    };
    snapshot.margin = Bytes(*u.choose(&[0, 1 << 20, 16 << 20])?);
    snapshot.pods = several(u, 8, pod)?;
    snapshot.cgroups = cgroups(u, &snapshot, weights)?;
    snapshot.crossing = option(u, crossing)?;
    Ok(snapshot)
}

fn root<'a>(u: Choices<'_, '_>) -> Result<&'a str> {
    u.choose(&["/kubepods", "/a/kubepods"]).copied()
}

fn option<T>(
    u: Choices<'_, '_>,
    one: impl FnOnce(Choices<'_, '_>) -> Result<T>,
) -> Result<Option<T>> {
    u.arbitrary::<bool>()?.then(|| one(u)).transpose()
}

fn several<T>(
    u: Choices<'_, '_>,
    most: usize,
    one: impl Fn(Choices<'_, '_>) -> Result<T>,
) -> Result<Vec<T>> {
    let count = u.int_in_range(0..=most)?;
    (0..count).map(|_| one(u)).collect()
}

fn amount(u: Choices<'_, '_>) -> Result<u64> {
    if u.ratio(1, 4)? {
        u.arbitrary()
    } else {
        u.choose(&AMOUNTS).copied()
    }
}

fn bytes(u: Choices<'_, '_>) -> Result<Bytes> {
    amount(u).map(Bytes)
}

fn milli(u: Choices<'_, '_>) -> Result<MilliCpu> {
    u.choose(&[0, 1, 10, 250, 1000, 64_000, u64::MAX])
        .copied()
        .map(MilliCpu)
}

/// What is in use: no kernel counts more than a machine can have.
fn usage(u: Choices<'_, '_>) -> Result<Bytes> {
    u.int_in_range(0..=1 << 50).map(Bytes)
}

fn uid(u: Choices<'_, '_>) -> Result<PodUid> {
    let number = u.int_in_range(0..=UIDS)?;
    Ok(PodUid::new(format!("u{number}")))
}

fn reserved(u: Choices<'_, '_>) -> Result<Reserved> {
    Ok(Reserved {
        cpu: milli(u)?,
        memory: bytes(u)?,
        pids: amount(u)?,
        ephemeral_storage: bytes(u)?,
    })
}

fn reserved_cgroup(u: Choices<'_, '_>) -> Result<ReservedCgroup> {
    let path = u.choose(&["/system", "/kube", "/", "/kubepods/burstable", "/a"])?;
    Ok(ReservedCgroup {
        cgroup: CgroupName::parse_cgroupfs(path),
        compressible_only: u.arbitrary()?,
    })
}

fn node(u: Choices<'_, '_>) -> Result<Node> {
    Ok(Node {
        cpu_capacity: milli(u)?,
        memory_capacity: bytes(u)?,
        pids_capacity: option(u, amount)?,
        ephemeral_storage_capacity: option(u, bytes)?,
        hugepages: hugepages(u)?,
        swap_capacity: bytes(u)?,
        kube_reserved: reserved(u)?,
        system_reserved: reserved(u)?,
        enforce: Enforcement {
            pods: u.arbitrary()?,
            kube_reserved: option(u, reserved_cgroup)?,
            system_reserved: option(u, reserved_cgroup)?,
        },
        eviction_hard_memory: bytes(u)?,
        eviction_hard_storage: bytes(u)?,
        qos_reserved_memory_percent: option(u, |u| u.int_in_range(0..=120))?,
    })
}

fn hugepages(u: Choices<'_, '_>) -> Result<BTreeMap<Bytes, Bytes>> {
    let mut all = BTreeMap::new();
    for size in HUGE_PAGES {
        if u.ratio(1, 3)? {
            all.insert(size, bytes(u)?);
        }
    }
    Ok(all)
}

fn options(u: Choices<'_, '_>) -> Result<LimitOptions> {
    Ok(LimitOptions {
        enforce_cpu_limits: u.ratio(3, 4)?,
        cpu_period_us: *u.choose(&[100_000, 1000, 1_000_000])?,
        pod_pids_limit: option(u, amount)?,
        memory_reservation: u.arbitrary()?,
    })
}

fn resources(u: Choices<'_, '_>) -> Result<Resources> {
    Ok(Resources {
        cpu_request: option(u, milli)?,
        cpu_limit: option(u, milli)?,
        memory_request: option(u, bytes)?,
        memory_limit: option(u, bytes)?,
        hugepages: hugepages(u)?,
        reclaimed: option(u, reclaimed)?,
    })
}

fn reclaimed(u: Choices<'_, '_>) -> Result<Reclaimed> {
    Ok(Reclaimed {
        tier: *u.choose(&[ReclaimedTier::Batch, ReclaimedTier::Mid])?,
        cpu_request: option(u, milli)?,
        cpu_limit: option(u, milli)?,
        memory_request: option(u, bytes)?,
        memory_limit: option(u, bytes)?,
    })
}

fn container(u: Choices<'_, '_>) -> Result<Container> {
    let kinds = [
        ContainerKind::App,
        ContainerKind::Init,
        ContainerKind::Sidecar,
    ];
    Ok(Container {
        name: "c".into(),
        kind: *u.choose(&kinds)?,
        resources: resources(u)?,
    })
}

fn pod(u: Choices<'_, '_>) -> Result<Pod> {
    let mut pod = Pod {
        uid: uid(u)?,
        name: u.choose(&["a", "b"])?.to_string(),
        namespace: "n".into(),
        priority: *u.choose(&[0, -1, 1, 2_000_000_000, i32::MIN, i32::MAX])?,
        critical: u.ratio(1, 8)?,
        node_critical: u.ratio(1, 8)?,
        static_pod: u.ratio(1, 8)?,
        containers: several(u, 3, container)?,
        pod_resources: option(u, resources)?,
        overhead: option(u, |u| {
            Ok(Overhead {
                cpu: option(u, milli)?,
                memory: option(u, bytes)?,
            })
        })?,
        grace_seconds: option(u, |u| Ok(u.arbitrary()?))?,
        colocation: labels(u)?,
    };
    if u.arbitrary()? {
        pod.apply_defaults();
    }
    Ok(pod)
}

/// Labels about co-location; some say what no class and no band is called.
fn labels(u: Choices<'_, '_>) -> Result<Labels> {
    let classes = ["LSE", "LSR", "LS", "BE", "SYSTEM", "be", ""];
    let bands = [
        "koord-prod",
        "koord-mid",
        "koord-batch",
        "koord-free",
        "none",
    ];
    Ok(Labels {
        qos_class: option(u, |u| Ok(u.choose(&classes)?.to_string()))?,
        priority_class: option(u, |u| Ok(u.choose(&bands)?.to_string()))?,
        wait_objective: option(u, |u| Ok(u.choose(&["2ms", "0", ""])?.to_string()))?,
        eviction_enabled: option(u, |u| Ok(u.choose(&["true", "false", ""])?.to_string()))?,
        eviction_policy: option(u, |u| {
            Ok(u.choose(&["[]", r#"["BECPUEvict"]"#, ""])?.to_string())
        })?,
    })
}

/// What may be found in a cgroup; some files cannot be read. The kernel keeps whole pages.
fn observed(u: Choices<'_, '_>, node: &Node, weights: bool) -> Result<Observed> {
    let limit = |u: Choices<'_, '_>| -> Result<Limit<u64>> { Ok(option(u, amount)?.into()) };
    let whole = |limit: Limit<u64>, page: Bytes| {
        Limit::from(limit.bound().map(|bytes| Bytes(bytes).round_down(page)))
    };
    let used = option(u, usage)?;
    let mut hugetlb = BTreeMap::new();
    for size in node.hugepages.keys() {
        if u.ratio(3, 4)? {
            hugetlb.insert(*size, whole(limit(u)?, *size));
        }
    }
    Ok(Observed {
        ours: u.arbitrary()?,
        cpu: option(u, |u| {
            Ok(match weights {
                true => CpuShare::Weight(CpuWeight(u.int_in_range(0..=10_000)?)),
                false => CpuShare::Shares(CpuShares(u.int_in_range(2..=262_144)?)),
            })
        })?,
        cpu_max: option(u, |u| {
            Ok(CpuMax {
                quota_us: option(u, |u| u.int_in_range(1000..=1 << 44))?.into(),
                period_us: u.int_in_range(1000..=1_000_000)?,
            })
        })?,
        memory_limit: option(u, |u| Ok(whole(limit(u)?, PAGE)))?,
        memory_min: option(u, |u| Ok(bytes(u)?.round_down(PAGE)))?,
        memory_low: option(u, |u| Ok(bytes(u)?.round_down(PAGE)))?,
        pids_limit: option(u, limit)?,
        hugetlb,
        memory_usage: used,
        memory_working_set: match used {
            Some(used) => option(u, |u| u.int_in_range(0..=used.0).map(Bytes))?,
            None => None,
        },
    })
}

/// Cgroups in the tree, some of pods that are gone, some of neither; a cgroup's parents exist.
fn cgroups(
    u: Choices<'_, '_>,
    snapshot: &Snapshot,
    weights: bool,
) -> Result<BTreeMap<CgroupName, Observed>> {
    let kubepods = &snapshot.kubepods;
    let mut found = BTreeMap::new();
    let mut names: Vec<_> = several(u, 10, |u| {
        let class = *u.choose(&QosClass::ALL)?;
        let name = kubepods.pod(class, &uid(u)?);
        Ok(if u.ratio(1, 8)? {
            name.child("c")
        } else {
            name
        })
    })?;
    for class in QosClass::ALL {
        if u.arbitrary()? {
            names.push(kubepods.tier(class));
        }
    }
    for name in snapshot.node.enforce.cgroups() {
        if u.ratio(3, 4)? {
            names.push(name.clone());
        }
    }
    for name in names {
        let mut next = Some(name);
        while let Some(name) = next.filter(|name| !found.contains_key(name)) {
            next = name.parent().filter(|p| p.is_within(kubepods));
            found.insert(name, observed(u, &snapshot.node, weights)?);
        }
    }
    Ok(found)
}

fn crossing(u: Choices<'_, '_>) -> Result<Crossing> {
    Ok(Crossing {
        threshold: Threshold {
            signal: *u.choose(&Signal::ALL)?,
            grace: None,
            less_than: Amount::Quantity(amount(u)?),
            min_reclaim: None,
        },
        needed: amount(u)?,
        available: amount(u)?,
    })
}
