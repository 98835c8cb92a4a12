//! One policy on one node: what it offers, and how the batch pods fare that are sold by it.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, VecDeque},
};

use podwarden_policy::{
    Bytes, MilliCpu,
    colocation::{
        class::Band,
        memory_evict::{Levels, LevelsError},
        reclaimed::{self, Amounts, Facts, Percents, Policy, Strategy, Workload},
        suppress::{self, Capacity, Threshold, Usage},
    },
};

use crate::{
    services::{Seen, Services, amounts},
    tally::Tally,
    traces::{Ask, NODE_CPU, NODE_MEMORY, RESERVED, STEP_S},
};

/// Steps between two figures: 60 s, and between two publications at least: 300 s.
pub(crate) const FIGURES: u64 = 6;
const UPDATE: u64 = 30;
/// So much must the offer differ to be published before that, percent.
const DIFF_PERCENT: u64 = 10;
/// Asks that the scheduler looks at in a step, and as many as wait: the rest goes elsewhere.
const LOOKS: usize = 16;
const WAITING: usize = 64;

/// What is sold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Batch(Policy),
    /// Batch with predicted peaks in place of means.
    Peaks,
    /// Mid resources, as predicted.
    Mid,
}

/// One way to sell.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) name: &'static str,
    kind: Kind,
    /// `cpuReclaimThresholdPercent` and `memoryReclaimThresholdPercent`. Suppression and eviction begin 5 above.
    reclaim: Percents,
}

const DEFAULT: Percents = Percents {
    cpu: 60,
    memory: 65,
};
/// `cpuSuppressThresholdPercent` and `memoryEvictThresholdPercent` are so much above what is sold.
const ABOVE: u32 = 5;

const fn rules(name: &'static str, kind: Kind, reclaim: Percents) -> Rules {
    Rules {
        name,
        kind,
        reclaim,
    }
}

const fn usage(name: &'static str, cpu: u32, memory: u32) -> Rules {
    rules(name, Kind::Batch(Policy::Usage), Percents { cpu, memory })
}

/// How many of [`ALL`] differ in the policy; the others in the thresholds.
pub(crate) const POLICIES: usize = 5;
pub(crate) const ALL: [Rules; 8] = [
    usage("usage (default)", 60, 65),
    rules("request", Kind::Batch(Policy::Request), DEFAULT),
    rules(
        "maxUsageRequest",
        Kind::Batch(Policy::MaxUsageRequest),
        DEFAULT,
    ),
    rules("usage, predicted peaks", Kind::Peaks, DEFAULT),
    rules("mid, predicted", Kind::Mid, DEFAULT),
    usage("usage, 70 % / 75 %", 70, 75),
    usage("usage, 80 % / 85 %", 80, 85),
    usage("usage, 90 % / 93 %", 90, 93),
];

impl Rules {
    fn strategy(&self) -> Strategy {
        let policy = match self.kind {
            Kind::Batch(policy) => policy,
            Kind::Peaks | Kind::Mid => Policy::Usage,
        };
        Strategy {
            reclaim: self.reclaim,
            cpu_policy: policy,
            memory_policy: policy,
            ..Strategy::default()
        }
    }

    fn levels(&self) -> Result<Levels, LevelsError> {
        Levels::new((self.reclaim.memory + ABOVE).into(), None)
    }
}

/// A pod that was sold.
#[derive(Debug)]
struct Sold {
    ask: Ask,
    id: u64,
    since: u64,
    left: u64,
}

impl Sold {
    fn request(&self) -> Amounts {
        amounts(self.ask.request.0, self.ask.request.1)
    }

    /// Half of its memory at once, the rest within ten minutes; MiB.
    fn memory(&self, now: u64) -> u64 {
        let age = (now - self.since).min(600);
        self.ask.memory / 2 + self.ask.memory / 2 * age / 600
    }
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Seller {
    kind: Kind,
    strategy: Strategy,
    /// Of suppression.
    threshold: Threshold,
    levels: Levels,
    waiting: VecDeque<Ask>,
    sold: Vec<Sold>,
    /// Requests of these.
    held: Amounts,
    next_id: u64,
    offered: Amounts,
    published: Amounts,
    published_at: Option<u64>,
    /// What they used in the step before.
    used: (u64, u64),
}

impl Seller {
    pub(crate) fn new(rules: &Rules) -> Result<Self, LevelsError> {
        Ok(Self {
            kind: rules.kind,
            strategy: rules.strategy(),
            threshold: Threshold {
                percent: (rules.reclaim.cpu + ABOVE).into(),
                min_percent: None,
            },
            levels: rules.levels()?,
            waiting: VecDeque::new(),
            sold: Vec::new(),
            held: Amounts::default(),
            next_id: 0,
            offered: Amounts::default(),
            published: Amounts::default(),
            published_at: None,
            used: (0, 0),
        })
    }

    pub(crate) fn step(
        &mut self,
        now: u64,
        services: &Services,
        seen: Option<&Seen>,
        asks: &[Ask],
        tally: &mut Tally,
    ) {
        let step = now / STEP_S;
        if let Some(seen) = seen {
            self.offer(services, seen);
        }
        self.publish(step);
        self.place(now, asks, tally);
        self.run(now, services, tally);
        self.evict(now, services, tally);
        tally.offered(self.offered, STEP_S);
        tally.sold(now, self.held, self.used, STEP_S);
    }

    /// The agent's figures, from means or from predicted peaks.
    fn offer(&mut self, services: &Services, seen: &Seen) {
        let none = Amounts::default();
        let pods = seen.pods.iter().map(|(pod, peak)| Workload {
            used: match self.kind {
                // Without a prediction it counts with its request.
                Kind::Peaks => *peak,
                Kind::Batch(_) | Kind::Mid => pod.used,
            },
            ..*pod
        });
        let (system, used) = (services.system, services.used);
        let held = self.held;
        let mine = Workload {
            band: Band::Batch,
            exclusive: false,
            request: none,
            used: Some(amounts(self.used.0, self.used.1)),
            holds_batch: if self.kind == Kind::Mid { none } else { held },
            holds_mid: if self.kind == Kind::Mid { held } else { none },
        };
        let reserved = amounts(RESERVED.0, RESERVED.1);
        let facts = Facts {
            capacity: amounts(NODE_CPU, NODE_MEMORY),
            reserved,
            system: reserved.max(amounts(system.0, system.1)),
            used: amounts(
                system.0 + used.0 + self.used.0,
                system.1 + used.1 + self.used.1,
            ),
            reclaimable: seen.reclaimable,
            workloads: pods.chain([mine]).collect(),
        };
        self.offered = match self.kind {
            Kind::Mid => reclaimed::mid(&facts, &self.strategy).offered,
            Kind::Batch(_) | Kind::Peaks => reclaimed::batch(&facts, &self.strategy).offered,
        };
    }

    fn publish(&mut self, step: u64) {
        let differs =
            |said: u64, now: u64| said.abs_diff(now) * 100 > said.saturating_mul(DIFF_PERCENT);
        let differs = differs(self.published.cpu.0, self.offered.cpu.0)
            || differs(self.published.memory.0, self.offered.memory.0);
        let due = |at| step - at >= UPDATE;
        if differs || self.published_at.is_none_or(due) {
            (self.published, self.published_at) = (self.offered, Some(step));
        }
    }

    /// The scheduler: the oldest that fits first.
    fn place(&mut self, now: u64, asks: &[Ask], tally: &mut Tally) {
        self.waiting.extend(asks);
        let mut free = self.published.minus(self.held);
        let mut at = 0;
        while at < self.waiting.len().min(LOOKS) {
            let ask = self.waiting[at];
            let request = amounts(ask.request.0, ask.request.1);
            if request.minus(free) == Amounts::default() {
                free = free.minus(request);
                self.held = self.held.plus(request);
                self.waiting.remove(at);
                self.sold.push(Sold {
                    ask,
                    id: self.next_id,
                    since: now,
                    left: ask.work,
                });
                self.next_id += 1;
                tally.started += 1;
            } else {
                at += 1;
            }
        }
        while self.waiting.len() > WAITING {
            self.waiting.pop_front();
        }
    }

    /// Gives CPU by the law of suppression, which saw the usage of the step before.
    fn run(&mut self, now: u64, services: &Services, tally: &mut Tally) {
        let capacity = MilliCpu(NODE_CPU);
        let (system, prod) = (services.system.0, services.used.0);
        let wanted: u64 = self.sold.iter().map(|pod| pod.ask.cpu).sum();
        let quantity = suppress::quantity(
            Capacity {
                capacity,
                reserved: MilliCpu(RESERVED.0),
            },
            Usage {
                node: MilliCpu(system + prod + self.used.0),
                pods: MilliCpu(prod + self.used.0),
                best_effort_pods: MilliCpu(self.used.0),
                ..Usage::default()
            },
            self.threshold,
        );
        // The floor of the quota is 2 ms in 100 ms.
        let allowed = u64::try_from(quantity).unwrap_or(0).max(20);
        let given = wanted.min(allowed);
        tally.suppressed(wanted - given, STEP_S);
        let asked = system + prod + given;
        if given > 0 && asked > NODE_CPU {
            tally.contended((asked - NODE_CPU).min(given), STEP_S);
        }
        for pod in &mut self.sold {
            // Thousandths of a node's CPUs: their product is far below 2^64.
            let part = (pod.ask.cpu * given).checked_div(wanted).unwrap_or(0);
            pod.left = pod.left.saturating_sub(part * STEP_S);
        }
        self.sold.retain(|pod| {
            if pod.left == 0 {
                self.held = self.held.minus(pod.request());
                tally.finished += 1;
            }
            pod.left > 0
        });
        let memory = self.sold.iter().map(|pod| pod.memory(now)).sum();
        self.used = (given, memory);
    }

    /// By the law of memory eviction, from its threshold down to its lower level.
    fn evict(&mut self, now: u64, services: &Services, tally: &mut Tally) {
        let others = services.system.1 + services.used.1;
        let used = others + self.used.1;
        if used > NODE_MEMORY && self.used.1 > 0 {
            tally.overflowed += 1;
        }
        let capacity = Bytes::mebi(NODE_MEMORY);
        let Some(release) = excess(capacity, Bytes::mebi(used), self.levels) else {
            return;
        };
        // All of one priority: the largest first.
        let mut order: Vec<_> = self
            .sold
            .iter()
            .map(|pod| (pod.memory(now), pod.id))
            .collect();
        order.sort_by_key(|(memory, id)| (Reverse(*memory), *id));
        let mut gained = Bytes::ZERO;
        let victims: BTreeSet<_> = order
            .into_iter()
            .take_while(|(memory, _)| {
                let goes = gained < release && *memory > 0;
                gained = gained.saturating_add(Bytes::mebi(*memory));
                goes
            })
            .map(|(_, id)| id)
            .collect();
        self.sold.retain(|pod| {
            let evicted = victims.contains(&pod.id);
            if evicted {
                tally.evicted += 1;
                // What it did is done again.
                tally.lost(pod.ask.work - pod.left);
                self.held = self.held.minus(pod.request());
            }
            !evicted
        });
        self.used.1 = self.sold.iter().map(|pod| pod.memory(now)).sum();
    }
}

/// What has to be freed where `used` of `capacity` is at the threshold or above, in whole percent of the capacity as
/// the koordlet counts, once a step; the agent has a level that the reactor watches instead.
fn excess(capacity: Bytes, used: Bytes, levels: Levels) -> Option<Bytes> {
    let percent = used.mul_div(100, capacity.0).0;
    let above = percent.checked_sub(levels.lower().into())?;
    (percent >= u64::from(levels.threshold())).then(|| capacity.percent(above))
}
