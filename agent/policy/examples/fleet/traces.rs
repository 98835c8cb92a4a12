//! Where the distributions come from.
//!
//! | what | source |
//! |---|---|
//! | machines of 96 CPUs, all alike; CPU of services rises and falls with the day, their memory stays almost constant | Alibaba cluster trace 2018: J. Guo et al., "Who limits the resource efficiency of my datacenter", IWQoS 2019; C. Jiang et al., "Characterizing Co-located Workloads in Alibaba Cloud Datacenters", IEEE TCC 2022 |
//! | services ask for much more CPU than they use, in spread ratios | the same, and Y. Cheng et al., "Characterizing Co-located Datacenter Workloads: An Alibaba Case Study", 2018 |
//! | services are more sensitive to CPU than to memory interference, so that contention is counted apart | Alibaba microservices trace 2021: S. Luo et al., "Characterizing Microservice Dependency and Performance", SoCC 2021 |
//! | most batch work is short, and few long pods are most of the work: a Pareto tail with exponent 0.69 | Google cluster trace 2019: M. Tirmazi et al., "Borg: the Next Generation", EuroSys 2020 |
//!
//! The papers give the shapes, the machine and the exponent. The other constants are choices: how much of a request is
//! used, the height and length of spikes, the rate of roll-outs, and the memory of batch pods.

use rand::{Rng, seq::IndexedRandom as _};
use rand_distr::{Distribution as _, Exp, LogNormal, Pareto, StandardNormal};

pub(crate) type Random = rand_chacha::ChaCha8Rng;

/// Seconds of a step: a usage stays the same for so long.
pub(crate) const STEP_S: u64 = 10;
pub(crate) const DAY_S: u64 = 24 * 3600;

/// Milli-CPUs of a machine.
pub(crate) const NODE_CPU: u64 = 96_000;
/// MiB of a machine: 4 GiB for each CPU (a choice).
pub(crate) const NODE_MEMORY: u64 = 96 * 4096;
/// Kept from pods, and what the system uses of it.
pub(crate) const RESERVED: (u64, u64) = (2_000, 8 * 1024);
pub(crate) const SYSTEM: (f64, f64) = (1_200.0, 5.0 * 1024.0);

/// How full of requests a node is: from the first to the second part of its CPUs.
pub(crate) const FULL: (f64, f64) = (0.60, 0.95);
/// CPUs that a service's pod asks for, and how often.
const SERVICE_CPUS: [(u64, u32); 5] = [(1, 1), (2, 2), (4, 5), (8, 4), (16, 1)];
/// GiB that it asks for per CPU, and how often.
const SERVICE_MEMORY: [(f64, u32); 3] = [(2.0, 3), (4.0, 4), (6.0, 1)];
/// A pod's mean CPU usage as a part of its request: median and spread of a log-normal.
const CPU_RATIO: (f64, f64) = (0.28, 0.55);
/// Its memory: from the first to the second part of its request.
const MEMORY_RATIO: (f64, f64) = (0.35, 0.9);
/// How much of the mean the day adds and takes.
const DAY_SWING: (f64, f64) = (0.2, 0.6);
/// Lengths of a pod's life and of the pause until its successor starts, means in seconds (choices).
const LIFE_S: f64 = 2.0 * 86_400.0;
const PAUSE_S: f64 = 300.0;
/// Between spikes of one pod, and of one spike, means in seconds (choices).
const SPIKE_EVERY_S: f64 = 6.0 * 3600.0;
const SPIKE_S: f64 = 300.0;
/// How high spikes are: usage is multiplied by a Pareto variable with this exponent, 1.3 at least (a choice).
const SPIKE: (f64, f64) = (1.3, 2.5);
/// One pod in three takes part in one flash sale of the fleet, at 20:00 for 15 minutes (a choice).
pub(crate) const SALE: std::ops::Range<u64> = 72_000..72_900;
pub(crate) const SALE_FACTOR: f64 = 1.8;

/// In one node of ten, all pods take over another site's load once a day, with these factors for CPU and memory (choices).
const FAILOVER_IN: u32 = 10;
pub(crate) const FAILOVER_S: u64 = 1800;
pub(crate) const FAILOVER_FACTORS: (f64, f64) = (1.7, 1.15);

/// Between arrivals of batch pods on a node, mean in seconds: more work than is ever sold.
const ARRIVAL_EVERY_S: f64 = 32.0;
const BATCH_CPUS: [(u64, u32); 4] = [(1, 4), (2, 3), (4, 2), (8, 1)];
const BATCH_MEMORY: [(f64, u32); 3] = [(1.0, 2), (2.0, 4), (4.0, 3)];
/// The shortest and the longest, seconds, and the exponent.
const BATCH_S: (f64, f64, f64) = (60.0, 12.0 * 3600.0, 0.69);
/// What of its request a batch pod uses (choices).
const BATCH_CPU_RATIO: (f64, f64) = (0.6, 1.0);
const BATCH_MEMORY_RATIO: (f64, f64) = (0.5, 1.0);

fn pick<T: Copy>(random: &mut Random, of: &[(T, u32)]) -> T {
    let chosen = of.choose_weighted(random, |(_, weight)| *weight);
    chosen.map_or(of[0].0, |(value, _)| *value)
}

fn within(random: &mut Random, (from, to): (f64, f64)) -> f64 {
    random.random_range(from..to)
}

fn after(random: &mut Random, mean_s: f64) -> u64 {
    let seconds = Exp::new(1.0 / mean_s).map_or(mean_s, |exp| exp.sample(random));
    (seconds as u64).max(STEP_S)
}

/// What a service's pod is, as long as it lives.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    /// Milli-CPUs and MiB.
    pub(crate) request: (u64, u64),
    /// Means.
    pub(crate) cpu: f64,
    pub(crate) memory: f64,
    pub(crate) swing: f64,
    /// Seconds by which its day is later than others'.
    pub(crate) shift: u64,
    pub(crate) in_sale: bool,
}

impl Service {
    pub(crate) fn new(random: &mut Random) -> Self {
        let cpus = pick(random, &SERVICE_CPUS);
        let memory = cpus as f64 * 1024.0 * pick(random, &SERVICE_MEMORY);
        let (median, spread) = CPU_RATIO;
        let ratio = LogNormal::new(median.ln(), spread).map_or(median, |log| log.sample(random));
        let ratio = ratio.clamp(0.03, 0.9);
        Self {
            request: (cpus * 1000, memory as u64),
            cpu: cpus as f64 * 1000.0 * ratio,
            memory: memory * within(random, MEMORY_RATIO),
            swing: within(random, DAY_SWING),
            shift: random.random_range(0..3600),
            in_sale: random.random_ratio(1, 3),
        }
    }
}

pub(crate) fn life(random: &mut Random) -> u64 {
    after(random, LIFE_S)
}

pub(crate) fn pause(random: &mut Random) -> u64 {
    after(random, PAUSE_S)
}

pub(crate) fn next_spike(random: &mut Random) -> u64 {
    after(random, SPIKE_EVERY_S)
}

/// When this happens to a node, in the day after the first.
pub(crate) fn failover(random: &mut Random) -> Option<u64> {
    let at = DAY_S + random.random_range(0..DAY_S);
    random.random_ratio(1, FAILOVER_IN).then_some(at)
}

/// Seconds and factor.
pub(crate) fn spike(random: &mut Random) -> (u64, f64) {
    let (least, exponent) = SPIKE;
    let factor = Pareto::new(least, exponent).map_or(least, |pareto| pareto.sample(random));
    (after(random, SPIKE_S), factor)
}

/// Adds noise that lasts for some minutes.
pub(crate) fn noise(random: &mut Random, before: f64) -> f64 {
    let normal: f64 = StandardNormal.sample(random);
    before * 0.95 + normal * 0.31
}

/// A batch pod that waits to be placed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) at: u64,
    /// Milli-CPUs and MiB.
    pub(crate) request: (u64, u64),
    /// Milli-CPUs that it uses where it may.
    pub(crate) cpu: u64,
    /// MiB at its most.
    pub(crate) memory: u64,
    /// Milli-CPU-seconds until it is done.
    pub(crate) work: u64,
}

/// The batch pods that a node is offered in a day, in the order of time.
pub(crate) fn batch(random: &mut Random) -> Vec<Ask> {
    let mut asks = Vec::new();
    let mut at = 0;
    loop {
        at += after(random, ARRIVAL_EVERY_S);
        if at >= DAY_S {
            return asks;
        }
        let cpus = pick(random, &BATCH_CPUS);
        let memory = cpus as f64 * 1024.0 * pick(random, &BATCH_MEMORY);
        let cpu = cpus as f64 * 1000.0 * within(random, BATCH_CPU_RATIO);
        let (least, most, exponent) = BATCH_S;
        // The bounded Pareto distribution, by its inverse.
        let cut = 1.0 - (least / most).powf(exponent);
        let part: f64 = random.random();
        let seconds = least * (1.0 - part * cut).powf(-1.0 / exponent);
        asks.push(Ask {
            at,
            request: (cpus * 1000, memory as u64),
            cpu: cpu as u64,
            memory: (memory * within(random, BATCH_MEMORY_RATIO)) as u64,
            work: (seconds * cpu) as u64,
        });
    }
}

/// How the day goes, -1 to 1, for each minute: lowest at 5:00, highest in the evening, a second rise before noon.
pub(crate) fn day() -> Vec<f64> {
    let turn = std::f64::consts::TAU;
    let minutes = (0..DAY_S / 60).map(|minute| minute as f64 / 1440.0);
    let raw: Vec<f64> = minutes
        .map(|part| -(turn * (part - 0.17)).cos() - 0.25 * (2.0 * turn * (part - 0.20)).cos())
        .collect();
    let most = raw
        .iter()
        .fold(0.0_f64, |most, value| most.max(value.abs()));
    raw.iter().map(|value| value / most).collect()
}
