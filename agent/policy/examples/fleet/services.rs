//! The guaranteed pods of one node: what they ask for and what they use, the same under every policy.

use podwarden_policy::{
    Bytes, MilliCpu,
    colocation::{
        class::Band,
        predict::{COLD_START_S, MARGIN_PERCENT, Model, Peaks},
        reclaimed::{Amounts, Workload},
    },
};
use rand::Rng as _;

use crate::traces::{self, DAY_S, Random, STEP_S, Service};

/// Steps of the mean that policies see: 300 s.
pub(crate) const WINDOW: usize = 30;
/// Steps between two samples of the predictor: 300 s.
const TRAIN: u64 = 30;
const TRAIN_S: usize = (TRAIN * STEP_S) as usize;

pub(crate) fn amounts(cpu: u64, memory_mib: u64) -> Amounts {
    Amounts::new(MilliCpu(cpu), Bytes::mebi(memory_mib))
}

/// Pods as policies see them, and what each is predicted to use at its peak.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) pods: Vec<(Workload, Option<Amounts>)>,
    pub(crate) reclaimable: Option<Amounts>,
}

/// The last readings, and their sum.
#[derive(Debug, Clone)]
struct Mean {
    readings: [(u64, u64); WINDOW],
    sum: (u64, u64),
    count: usize,
}

impl Default for Mean {
    fn default() -> Self {
        Self {
            readings: [(0, 0); WINDOW],
            sum: (0, 0),
            count: 0,
        }
    }
}

impl Mean {
    fn add(&mut self, cpu: u64, memory: u64) {
        let slot = &mut self.readings[self.count % WINDOW];
        self.sum.0 = self.sum.0 + cpu - slot.0;
        self.sum.1 = self.sum.1 + memory - slot.1;
        *slot = (cpu, memory);
        self.count += 1;
    }

    fn get(&self) -> Option<Amounts> {
        // As in the agent: nothing before the second reading.
        let held = self.count.min(WINDOW) as u64;
        (held > 1).then(|| amounts(self.sum.0 / held, self.sum.1 / held))
    }
}

/// A running pod.
#[derive(Debug, Clone)]
struct Running {
    service: Service,
    born: u64,
    ends: u64,
    noise: f64,
    /// Until when, and how high.
    spike: Option<(u64, f64)>,
    next_spike: u64,
    mean: Mean,
    predicted: Together,
    /// Milli-CPUs and MiB now.
    used: (u64, u64),
}

impl Running {
    fn new(service: Service, now: u64, random: &mut Random) -> Self {
        Self {
            service,
            born: now,
            ends: now + traces::life(random),
            noise: 0.0,
            spike: None,
            next_spike: now + traces::next_spike(random),
            mean: Mean::default(),
            predicted: Together::default(),
            used: (0, 0),
        }
    }

    /// What it uses at `now`; the first day only trains the predictor.
    fn step(&mut self, now: u64, day: &[f64], failover: bool, random: &mut Random) {
        self.noise = traces::noise(random, self.noise);
        if self.spike.is_some_and(|(until, _)| now >= until) {
            self.spike = None;
        }
        if now >= self.next_spike {
            let (length, factor) = traces::spike(random);
            self.spike = Some((now + length, factor));
            self.next_spike = now + length + traces::next_spike(random);
        }
        let service = &self.service;
        let second = (now + DAY_S - service.shift) % DAY_S;
        let minute = usize::try_from(second / 60).unwrap_or_default();
        let mut cpu = service.cpu * (1.0 + service.swing * day[minute]);
        cpu *= (1.0 + 0.15 * self.noise).max(0.2);
        let mut memory = service.memory * (1.0 + 0.03 * day[minute]);
        if let Some((_, factor)) = self.spike {
            cpu *= factor;
            memory *= 1.0 + 0.1 * (factor - 1.0);
        }
        if service.in_sale && traces::SALE.contains(&(now % DAY_S)) {
            cpu *= traces::SALE_FACTOR;
        }
        if failover {
            let (of_cpu, of_memory) = traces::FAILOVER_FACTORS;
            cpu *= of_cpu;
            memory *= of_memory;
        }
        // Half of its memory at once, the rest within ten minutes.
        let grown = ((now - self.born) as f64 / 600.0).min(1.0);
        memory *= 0.5 + 0.5 * grown;
        // CPU limits are twice the requests, memory limits are the requests.
        let (most_cpu, most_memory) = (service.request.0 * 2, service.request.1);
        self.used = ((cpu as u64).min(most_cpu), (memory as u64).min(most_memory));
    }

    fn count(&mut self, now: u64) {
        let (cpu, memory) = self.used;
        self.mean.add(cpu, memory);
        self.predicted.count(self.used, now);
    }
}

fn peak(model: &Model) -> Option<Amounts> {
    model.peak_amounts(COLD_START_S, MARGIN_PERCENT)
}

/// All pods together, or the system: what they used since the last sample, and what is predicted of them.
#[derive(Debug, Clone, Default)]
struct Together {
    since: (u64, u64),
    model: Model,
    peak: Option<Amounts>,
}

impl Together {
    /// Usage of a step: the mean of CPU and the most of memory train, as in the agent.
    fn count(&mut self, (cpu, memory): (u64, u64), now: u64) {
        self.since = (self.since.0 + cpu, self.since.1.max(memory));
        if (now / STEP_S).is_multiple_of(TRAIN) {
            let mean = self.since.0 * 1000 / TRAIN;
            let most = Bytes::mebi(self.since.1).0;
            self.model.train(mean, most, now);
            self.since = (0, 0);
            self.peak = peak(&self.model);
        }
    }

    fn train(&mut self, (cpu, memory): (u64, u64), now: u64) {
        self.model.train(cpu * 1000, Bytes::mebi(memory).0, now);
        self.peak = peak(&self.model);
    }
}

/// A place of a service on the node: its pod, or the time at which the next starts.
#[derive(Debug, Clone)]
enum Place {
    Runs(Box<Running>),
    Empty(Service, u64),
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Services {
    places: Vec<Place>,
    prod: Together,
    beside: Together,
    system_noise: f64,
    /// When another site's load comes to this node, in the nodes that this happens to.
    failover: Option<u64>,
    /// Milli-CPUs and MiB of all of them now.
    pub(crate) used: (u64, u64),
    pub(crate) requested: (u64, u64),
    /// The same of the system.
    pub(crate) system: (u64, u64),
}

impl Services {
    /// Pods that ran the whole day before.
    pub(crate) fn new(day: &[f64], random: &mut Random) -> Self {
        let (from, to) = traces::FULL;
        let full = random.random_range(from..to);
        let most = (
            (traces::NODE_CPU as f64 * full) as u64,
            traces::NODE_MEMORY - traces::RESERVED.1,
        );
        let mut asked = (0, 0);
        let mut pods = Vec::new();
        for _ in 0..64 {
            let service = Service::new(random);
            let (cpu, memory) = service.request;
            if asked.0 + cpu > most.0 || asked.1 + memory > most.1 {
                continue;
            }
            asked = (asked.0 + cpu, asked.1 + memory);
            pods.push(Box::new(Running::new(service, 0, random)));
        }
        let (mut prod, mut beside) = (Together::default(), Together::default());
        let (cpu, memory) = traces::SYSTEM;
        for now in (0..=DAY_S).step_by(TRAIN_S) {
            let mut sum = (0, 0);
            for pod in &mut pods {
                pod.step(now, day, false, random);
                pod.predicted.train(pod.used, now);
                sum = (sum.0 + pod.used.0, sum.1 + pod.used.1);
            }
            prod.train(sum, now);
            beside.train((cpu as u64, memory as u64), now);
        }
        for pod in &mut pods {
            pod.ends = DAY_S + traces::life(random);
        }
        Self {
            places: pods.into_iter().map(Place::Runs).collect(),
            prod,
            beside,
            system_noise: 0.0,
            failover: traces::failover(random),
            used: (0, 0),
            requested: (0, 0),
            system: (0, 0),
        }
    }

    pub(crate) fn step(&mut self, now: u64, day: &[f64], random: &mut Random) {
        (self.used, self.requested) = ((0, 0), (0, 0));
        let length = traces::FAILOVER_S;
        let failover = self
            .failover
            .is_some_and(|at| (at..at + length).contains(&now));
        for place in &mut self.places {
            match place {
                Place::Runs(pod) if now >= pod.ends => {
                    let next = now + traces::pause(random);
                    *place = Place::Empty(pod.service.clone(), next);
                }
                Place::Empty(service, at) if now >= *at => {
                    let pod = Running::new(service.clone(), now, random);
                    *place = Place::Runs(Box::new(pod));
                }
                Place::Runs(_) | Place::Empty(..) => {}
            }
            if let Place::Runs(pod) = place {
                pod.step(now, day, failover, random);
                pod.count(now);
                let (used, asked) = (pod.used, pod.service.request);
                self.used = (self.used.0 + used.0, self.used.1 + used.1);
                self.requested = (self.requested.0 + asked.0, self.requested.1 + asked.1);
            }
        }
        self.system_noise = traces::noise(random, self.system_noise);
        let (cpu, memory) = traces::SYSTEM;
        let cpu = cpu * (1.0 + 0.2 * self.system_noise).max(0.3);
        self.system = (cpu as u64, memory as u64);
        self.prod.count(self.used, now);
        self.beside.count(self.system, now);
    }

    fn running(&self) -> impl Iterator<Item = &Running> {
        self.places.iter().filter_map(|place| match place {
            Place::Runs(pod) => Some(&**pod),
            Place::Empty(..) => None,
        })
    }

    /// What the policies see of them, and of each what it is predicted to use at its peak.
    pub(crate) fn seen(&self) -> Seen {
        let of = |pod: &Running| {
            let (cpu, memory) = pod.service.request;
            let workload = Workload {
                band: Band::Prod,
                exclusive: false,
                request: amounts(cpu, memory),
                used: pod.mean.get(),
                holds_batch: Amounts::default(),
                holds_mid: Amounts::default(),
            };
            (workload, pod.predicted.peak)
        };
        let pods: Vec<_> = self.running().map(of).collect();
        let mut peaks = Peaks::default();
        for (pod, peak) in &pods {
            peaks.add(pod.request, *peak);
        }
        let capacity = amounts(traces::NODE_CPU, traces::NODE_MEMORY);
        Seen {
            reclaimable: peaks.reclaimable(capacity, self.prod.peak, self.beside.peak),
            pods,
        }
    }
}
