use podwarden_policy::colocation::evict_cpu::{AllocatableThreshold, Satisfaction};

use super::*;
use crate::config::CpuUsageLevels;

fn strategies() -> CpuEvictConfig {
    CpuEvictConfig {
        satisfaction: Some(Satisfaction::new(30, 60, None).unwrap()),
        window: Duration::from_secs(4),
        usage: Some(CpuUsageLevels {
            threshold: 80,
            lower: Some(70),
        }),
        allocatable: Some(AllocatableThreshold {
            percent: 100,
            lower_percent: 90,
            priority: 5999,
        }),
        memory_allocatable: Some(AllocatableThreshold {
            percent: 100,
            lower_percent: 90,
            priority: 5999,
        }),
    }
}

fn figures(limit: u64, used: u64, request: u64) -> BestEffort {
    BestEffort {
        limit: MilliCpu(limit),
        used: MilliCpu(used),
        request: MilliCpu(request),
    }
}

fn pod(uid: &str, request: u64) -> BestEffortPod {
    BestEffortPod {
        uid: uid.into(),
        path: uid.into(),
        priority: 5000,
        band: Band::Batch,
        request: MilliCpu(request),
        memory_request: Bytes::gibi(1),
        accepts: evict_cpu::AcceptedEvictions::All,
        enabled: true,
    }
}

/// A tree without any of the cgroups.
fn tree() -> Tree {
    let hierarchies = podwarden_cgroup::Hierarchies::detect().unwrap();
    Tree::new(hierarchies, "/podwarden-none").unwrap()
}

/// Milli-CPUs and GiB.
fn spare(cpu: u64, memory: u64) -> Option<Amounts> {
    Some(Amounts::new(MilliCpu(cpu), Bytes::gibi(memory)))
}

/// Of a node with 10 CPUs that has 3 and 100 GiB to spare.
fn inputs<'a>(tree: &'a Tree, tier: &'a CgroupPath, pods: &'a [BestEffortPod]) -> Inputs<'a> {
    Inputs {
        tree,
        tier,
        capacity: MilliCpu(10_000),
        spare: spare(3000, 100),
        pods,
    }
}

#[test]
fn each_strategy_evicts_by_its_law_and_none_without_figures() {
    let (tree, tier) = (tree(), CgroupPath::from("besteffort"));
    let pods = [pod("a", 2000), pod("b", 2000)];
    let inputs = inputs(&tree, &tier, &pods);
    let now = Instant::now();
    let mut cpu = BestEffortCpu::new(strategies(), now).unwrap();
    assert_eq!(cpu.satisfaction(&inputs, now), None);
    assert_eq!(cpu.usage(&inputs, None), None);
    cpu.window.push_back((now, figures(1000, 990, 4000)));
    // One figure of a window of 4 s.
    let (cause, release) = cpu.satisfaction(&inputs, now).unwrap();
    assert_eq!((cause.strategy(), release), ("BECPUEvict", 1400));
    // More than the lower percentage of what it requests.
    cpu.window.back_mut().unwrap().1 = figures(1300, 1300, 4000);
    assert_eq!(cpu.satisfaction(&inputs, now), None);
    // It does not use what it may.
    cpu.window.push_back((now, figures(1000, 100, 4000)));
    assert_eq!(cpu.satisfaction(&inputs, now), None);
    let (cause, release) = cpu.usage(&inputs, Some(MilliCpu(8500))).unwrap();
    assert_eq!((cause.strategy(), release), ("CPUEvict", 1500));
    assert_eq!(cpu.usage(&inputs, Some(MilliCpu(7900))), None);
    let (cause, release) = cpu.allocatable(&inputs).unwrap();
    let strategy = cause.strategy();
    assert_eq!((strategy, release), ("CPUAllocatableEvict", 1300));
    for spare in [None, spare(0, 0), spare(4000, 2)] {
        let inputs = Inputs { spare, ..inputs };
        assert_eq!(cpu.allocatable(&inputs), None, "{spare:?}");
        assert_eq!(cpu.memory_allocatable(&inputs), None, "{spare:?}");
    }
    let inputs = Inputs {
        spare: spare(4000, 1),
        ..inputs
    };
    let (cause, release) = cpu.memory_allocatable(&inputs).unwrap();
    // 2 GiB are requested of 1 GiB, down to 90 % of that.
    let left = Bytes::gibi(1).percent(90).0;
    assert_eq!(cause.strategy(), "MemoryAllocatableEvict");
    assert_eq!(release, Bytes::gibi(2).0 - left);
    let gib = Bytes::gibi(1).0;
    assert_eq!(cause.levels(), (gib, 2 * gib, gib));
}

/// Which pods go for what they request of an offer of 3 CPUs.
fn chosen(pods: &[BestEffortPod], config: CpuEvictConfig) -> Vec<String> {
    let (tree, tier) = (tree(), CgroupPath::from("besteffort"));
    let inputs = inputs(&tree, &tier, pods);
    let start = Instant::now();
    let mut cpu = BestEffortCpu::new(config, start).unwrap();
    let shortage = cpu.look(&inputs, start + COOL).unwrap();
    let uids = shortage.candidates.iter();
    uids.map(|one| one.uid.as_str().to_owned()).collect()
}

#[test]
fn a_pod_goes_for_what_it_requests_where_it_accepts_that() {
    let mut pods: Vec<_> = ["none", "all", "more", "label", "high", "mid"]
        .into_iter()
        .map(|name| pod(name, 2000))
        .collect();
    pods[0].accepts = evict_cpu::AcceptedEvictions::Only(Vec::new());
    pods[2].request = MilliCpu(2500);
    pods[3].enabled = false;
    pods[4].priority = 6000;
    pods[5].band = Band::Mid;
    pods.push(pod("nothing", 0));
    assert_eq!(chosen(&pods, strategies()), ["more", "all"]);
}

#[test]
fn none_goes_after_a_start_or_an_eviction_for_a_while() {
    let (tree, tier) = (tree(), CgroupPath::from("besteffort"));
    let pods = [pod("a", 2000), pod("b", 2000)];
    let inputs = inputs(&tree, &tier, &pods);
    let start = Instant::now();
    let mut cpu = BestEffortCpu::new(strategies(), start).unwrap();
    assert_eq!(cpu.look(&inputs, start + COOL - LOOK), None);
    assert!(cpu.look(&inputs, start + COOL).is_some());
    cpu.evicted(start + COOL);
    assert_eq!(cpu.look(&inputs, start + COOL * 2 - LOOK), None);
    assert!(cpu.look(&inputs, start + COOL * 2).is_some());
    assert_eq!(cpu.due(start + COOL * 2), LOOK);
    assert!(BestEffortCpu::new(CpuEvictConfig::default(), start).is_none());
}
