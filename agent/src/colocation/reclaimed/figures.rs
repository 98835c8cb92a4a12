//! From the figures of a sampling pass to what the node offers. Pods and usage are of one moment: a pod without
//! figures counts with its request, a cgroup without a pod with its usage.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    time::Instant,
};

use podwarden_policy::{
    Node, Pod, PodUid,
    colocation::{
        batch_pod,
        class::{self, Band, Class},
        reclaimed::{self, Amounts, Facts, Inputs, Workload},
    },
    limits,
    model::ReclaimedTier,
    reserve,
};

use super::{
    prediction::{PodReading, Prediction},
    window::Window,
};
use crate::{
    api::types::{PodStats, PredictionStats, ReclaimedOffer, ReclaimedStats},
    base::clock,
    colocation::pool,
    config::{ReclaimedConfig, memory_used},
    pods::PodSet,
};

/// Keeps the usage of the last minutes.
#[derive(Debug)]
pub struct Reclaimer {
    config: ReclaimedConfig,
    pods: HashMap<PodUid, Window>,
    node: Window,
    prediction: Prediction,
}

/// What all of the machine uses.
#[derive(Debug, Clone, Copy)]
pub struct MachineUse {
    /// Since boot, nanoseconds.
    cpu_ns: u64,
    /// What is not available, bytes.
    memory: u64,
}

impl MachineUse {
    #[cfg(test)]
    pub(super) const fn of(cpu_ns: u64, memory: u64) -> Self {
        Self { cpu_ns, memory }
    }

    /// Reads `/proc/stat` and `/proc/meminfo`; `None` where they are not as proc(5) has them.
    fn read() -> Option<Self> {
        Some(Self {
            cpu_ns: clock::nanos(pool::busy()?),
            memory: memory_used()?.0,
        })
    }
}

impl Reclaimer {
    /// `None` where it is switched off. Predictions are kept below `state_dir`, for the node of this name.
    pub fn new(config: ReclaimedConfig, state_dir: Option<&Path>, node: &str) -> Option<Self> {
        config.enable.then(|| Self {
            config,
            pods: HashMap::new(),
            node: Window::default(),
            prediction: Prediction::new(&config, state_dir, node),
        })
    }

    /// Takes a pass's figures; `None` before the second, and until every source has sent its pods. Beside what is offered it returns what that is from.
    pub fn pass(
        &mut self,
        node: &Node,
        set: &PodSet,
        pods: &[PodStats],
    ) -> Option<(ReclaimedStats, Inputs)> {
        self.take(Instant::now(), MachineUse::read()?, node, set, pods)
    }

    pub(super) fn take(
        &mut self,
        now: Instant,
        machine: MachineUse,
        node: &Node,
        set: &PodSet,
        pods: &[PodStats],
    ) -> Option<(ReclaimedStats, Inputs)> {
        let span = self.config.window;
        self.node.add(now, machine.cpu_ns, machine.memory, span);
        let mut used = HashMap::with_capacity(pods.len());
        let mut windows = HashMap::with_capacity(pods.len());
        for stats in pods {
            let uid = &stats.pod_ref.uid;
            let mut window = self.pods.remove(uid).unwrap_or_default();
            // A figure that is not known is none.
            if let Some(memory) = &stats.memory {
                let cpu = stats.cpu.usage_core_nano_seconds;
                window.add(now, cpu, memory.rss_bytes, span);
                used.insert(uid, window.mean());
            }
            windows.insert(uid.clone(), window);
        }
        // The windows of pods that are gone go with them.
        self.pods = windows;
        self.learn(now, machine, set, pods);
        let all = self.node.mean()?;
        // What pods hold is not known: a kubelet that restarts would refuse those that hold more than is offered.
        if !set.waiting.is_empty() {
            return None;
        }
        let mut facts = facts(node, set, pods, &used, all);
        let prediction = self.predict(&facts, set);
        facts.reclaimable = prediction.reclaimable.map(Into::into);
        let stats = self.offer(&facts, prediction);
        let strategy = self.config.strategy;
        Some((stats, Inputs { facts, strategy }))
    }

    /// Trains the models with what was read of every pod that has figures.
    fn learn(&mut self, now: Instant, machine: MachineUse, set: &PodSet, pods: &[PodStats]) {
        let of_prod: HashSet<_> = prod(set).map(|pod| &pod.uid).collect();
        let readings: Vec<_> = pods
            .iter()
            .filter_map(|stats| {
                let uid = &stats.pod_ref.uid;
                Some(PodReading {
                    uid,
                    cpu_ns: stats.cpu.usage_core_nano_seconds,
                    memory: stats.memory.as_ref()?.rss_bytes,
                    prod: of_prod.contains(uid),
                })
            })
            .collect();
        self.prediction
            .learn(now, machine.cpu_ns, machine.memory, &readings);
    }

    fn predict(&self, facts: &Facts, set: &PodSet) -> PredictionStats {
        let requests = prod(set).map(|pod| {
            let requests = limits::pod_requests(pod);
            (&pod.uid, Amounts::new(requests.cpu, requests.memory))
        });
        self.prediction.predict(facts.capacity, requests)
    }

    fn offer(&self, facts: &Facts, prediction: PredictionStats) -> ReclaimedStats {
        let strategy = &self.config.strategy;
        let batch = reclaimed::batch(facts, strategy);
        let mid = reclaimed::mid(facts, strategy);
        let of = |offered: Amounts, held: Amounts, law: Amounts| ReclaimedOffer {
            cpu_milli: offered.cpu.0,
            memory_bytes: offered.memory.0,
            held_cpu_milli: held.cpu.0,
            held_memory_bytes: held.memory.0,
            spare_cpu_milli: law.cpu.0,
            spare_memory_bytes: law.memory.0,
        };
        ReclaimedStats {
            batch: of(batch.offered, batch.held, batch.law),
            mid: of(mid.offered, mid.held, mid.law),
            margin: batch.margin.into(),
            system: batch.system.into(),
            pods: batch.pods.into(),
            unused: mid.unused.into(),
            unallocated: mid.unallocated.into(),
            prediction,
            window_seconds: self.config.window.as_secs(),
        }
    }
}

/// The pods that leave something of their requests to mid pods.
fn prod(set: &PodSet) -> impl Iterator<Item = &Pod> {
    let pods = set.pods.iter().map(|p| &p.pod);
    pods.filter(|pod| class::classify(pod).band == Band::Prod)
}

fn facts(
    node: &Node,
    set: &PodSet,
    pods: &[PodStats],
    used: &HashMap<&PodUid, Option<Amounts>>,
    all: Amounts,
) -> Facts {
    let capacity = Amounts::new(node.cpu_capacity, node.memory_capacity);
    let allocatable = reserve::allocatable(node);
    let allocatable = Amounts::new(allocatable.cpu, allocatable.memory);
    let of_pods = used.values().flatten();
    let of_pods = of_pods.fold(Amounts::default(), |sum, used| sum.plus(*used));
    let reserved = capacity.minus(allocatable);
    let listed = set.pods.iter().map(|p| &p.pod);
    let known = listed.map(|pod| workload(pod, used.get(&pod.uid).copied().flatten()));
    let of_sources: HashSet<_> = set.pods.iter().map(|p| &p.pod.uid).collect();
    let others = pods
        .iter()
        .filter(|stats| !of_sources.contains(&stats.pod_ref.uid))
        .map(|stats| Workload {
            band: match stats.qos_class.as_str() {
                "BestEffort" => Band::Batch,
                _ => Band::Prod,
            },
            used: used.get(&stats.pod_ref.uid).copied().flatten(),
            ..workload(&Pod::default(), None)
        });
    Facts {
        capacity,
        reserved,
        system: reclaimed::system_used(all, reserved, of_pods),
        used: all,
        reclaimable: None,
        workloads: known.chain(others).collect(),
    }
}

fn workload(pod: &Pod, used: Option<Amounts>) -> Workload {
    let class = class::classify(pod);
    let requests = limits::pod_requests(pod);
    let asked = batch_pod::requests(pod);
    let asked = Amounts::new(asked.cpu, asked.memory);
    let held = |tier| {
        let holds = batch_pod::tier(pod) == Some(tier);
        if holds { asked } else { Amounts::default() }
    };
    Workload {
        band: class.band,
        exclusive: class.class == Class::Lse,
        request: Amounts::new(requests.cpu, requests.memory),
        used,
        holds_batch: held(ReclaimedTier::Batch),
        holds_mid: held(ReclaimedTier::Mid),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use podwarden_policy::{Bytes, MilliCpu};

    use super::*;
    use crate::pods::Source;

    #[test]
    fn this_machines_use_is_read() {
        assert!(MachineUse::read().is_some());
    }

    fn stats(uid: &str, class: &str, cpu_ns: u64, rss: u64) -> PodStats {
        let mut stats = PodStats {
            qos_class: class.into(),
            memory: Some(crate::api::types::MemoryStats {
                rss_bytes: rss,
                ..Default::default()
            }),
            ..PodStats::default()
        };
        stats.pod_ref.uid = uid.into();
        stats.cpu.usage_core_nano_seconds = cpu_ns;
        stats
    }

    #[test]
    fn a_node_offers_what_its_pods_and_its_system_leave() {
        const GI: u64 = 1 << 30;
        let config = ReclaimedConfig {
            enable: true,
            ..ReclaimedConfig::default()
        };
        let mut reclaimer = Reclaimer::new(config, None, "n").unwrap();
        let node = Node {
            cpu_capacity: MilliCpu(10_000),
            memory_capacity: Bytes::gibi(100),
            ..Node::default()
        };
        let start = Instant::now();
        let set = PodSet::default();
        let take = |reclaimer: &mut Reclaimer, set: &PodSet, seconds: u64| {
            // A guaranteed pod uses 2 CPUs and 10 GiB, a best-effort one 1 CPU and 5 GiB, the rest 0.5 and 2 GiB.
            let second = seconds * 1_000_000_000;
            let pods = [
                stats("g", "Guaranteed", 2 * second, 10 * GI),
                stats("b", "BestEffort", second, 5 * GI),
            ];
            let machine = MachineUse {
                cpu_ns: 3 * second + second / 2,
                memory: 17 * GI,
            };
            let now = start + Duration::from_secs(seconds);
            reclaimer.take(now, machine, &node, set, &pods)
        };
        assert!(take(&mut reclaimer, &set, 0).is_none());
        let unknown = PodSet {
            waiting: vec![Source::Apiserver],
            ..PodSet::default()
        };
        assert!(take(&mut reclaimer, &unknown, 20).is_none());
        let (got, inputs) = take(&mut reclaimer, &set, 30).unwrap();
        // 60 % of 10 CPUs less 0.5 less 2; 65 % of 100 GiB less 2 less 10.
        assert_eq!(got.batch.cpu_milli, 3_500);
        assert_eq!(got.batch.memory_bytes, 53 * GI);
        assert_eq!(got.mid, ReclaimedOffer::default());
        assert_eq!(got.system.cpu_milli, 500);
        let batch = reclaimed::batch(&inputs.facts, &inputs.strategy);
        assert_eq!(batch.offered.cpu.0, 3_500);
        // A pod that is gone leaves no window behind.
        let machine = MachineUse {
            cpu_ns: 1 << 50,
            memory: 0,
        };
        reclaimer.take(start + Duration::from_secs(60), machine, &node, &set, &[]);
        assert!(reclaimer.pods.is_empty());
    }
}
