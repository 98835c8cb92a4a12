//! The laws of `policy::worth`, on simulated nodes: memory grows in straight lines, a victim's memory takes
//! time to be free, and the reactor decides each time the node is at its level.
//!
//! More than 400 lines: one simulation, and the laws that are judged on it.

use podwarden_policy::{
    Bytes, QosClass,
    evict::{self, Candidate, Ranking},
    worth::{self, Effect, Gain, Grower, Growth, KUBELET_PACE_NS, Pick, Shortage, Strangers},
};
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;
/// From the crossing to the kill.
const DETECTION: u64 = SECOND / 2_000;
/// Two samples of growth are this far apart.
const SAMPLES: u64 = SECOND / 2;

#[derive(Debug, Clone)]
struct SimPod {
    usage: u64,
    /// Bytes per second.
    rate: u64,
    /// It grows no further.
    cap: u64,
    request: u64,
    qos: QosClass,
    priority: i32,
    exempt: bool,
    /// A source tells of it then; it is a stranger before.
    told: u64,
    dead: bool,
}

impl SimPod {
    fn candidate(&self) -> Candidate {
        Candidate {
            qos: self.qos,
            priority: self.priority,
            memory_request: Bytes(self.request),
            working_set: Some(Bytes(self.usage)),
        }
    }
}

#[derive(Debug, Clone)]
struct Sim {
    pods: Vec<SimPod>,
    outside: u64,
    outside_rate: u64,
    outside_cap: u64,
    level: u64,
    limit: u64,
    now: u64,
    /// Usage of the pods and of all at the two last samples, the older first.
    samples: [(Vec<u64>, u64); 2],
    sampled: u64,
    effect: Effect,
    /// When, and which pod.
    evicted: Vec<(u64, usize)>,
    /// The limit was reached, and when.
    out_of_memory: Option<u64>,
}

impl Sim {
    fn new(pods: Vec<SimPod>, outside: (u64, u64, u64), room: u64, slack: u64) -> Self {
        let usages: Vec<u64> = pods.iter().map(|pod| pod.usage).collect();
        let total = usages.iter().sum::<u64>() + outside.0;
        Self {
            samples: [(usages.clone(), total), (usages, total)],
            pods,
            outside: outside.0,
            outside_rate: outside.1,
            outside_cap: outside.2,
            level: total + room,
            limit: total + room + slack,
            now: 0,
            sampled: 0,
            effect: Effect::new(Grower::Candidates),
            evicted: Vec::new(),
            out_of_memory: None,
        }
    }

    fn live(&self) -> impl Iterator<Item = (usize, &SimPod)> {
        self.pods.iter().enumerate().filter(|(_, pod)| !pod.dead)
    }

    fn rate(&self) -> u64 {
        let growing = self.live().filter(|(_, pod)| pod.usage < pod.cap);
        let outside = if self.outside < self.outside_cap {
            self.outside_rate
        } else {
            0
        };
        outside + growing.map(|(_, pod)| pod.rate).sum::<u64>()
    }

    fn total(&self) -> u64 {
        self.outside + self.pods.iter().map(|pod| pod.usage).sum::<u64>()
    }

    /// Lets everything grow for `nanos`, in steps no longer than a sample's distance.
    fn advance(&mut self, nanos: u64) {
        let grown = |rate: u64, nanos: u64| {
            u64::try_from(u128::from(rate) * u128::from(nanos) / u128::from(SECOND)).unwrap()
        };
        let mut left = nanos;
        while left > 0 {
            let step = left.min(self.sampled + SAMPLES - self.now);
            for pod in self.pods.iter_mut().filter(|pod| !pod.dead) {
                pod.usage = pod
                    .usage
                    .max(pod.cap.min(pod.usage + grown(pod.rate, step)));
            }
            let outside = self.outside + grown(self.outside_rate, step);
            self.outside = self.outside.max(self.outside_cap.min(outside));
            self.now += step;
            left -= step;
            if self.now == self.sampled + SAMPLES {
                self.sampled = self.now;
                let now = self.pods.iter().map(|pod| pod.usage).collect();
                self.samples.swap(0, 1);
                self.samples[1] = (now, self.total());
            }
            if self.total() >= self.limit {
                self.out_of_memory.get_or_insert(self.now);
            }
        }
    }

    fn is_candidate(&self, index: usize) -> bool {
        let pod = &self.pods[index];
        !pod.exempt && pod.told <= self.now
    }

    fn strangers(&self) -> Strangers {
        let mut sum = Strangers::default();
        for (index, pod) in self.live().filter(|(_, pod)| pod.told > self.now) {
            sum.usage += pod.usage;
            sum.growth += self.growth_of(index);
        }
        sum
    }

    fn growth_of(&self, index: usize) -> u64 {
        self.pods[index]
            .usage
            .saturating_sub(self.samples[0].0[index])
    }

    fn gain(&self, index: usize) -> Gain {
        Gain {
            bytes: self.pods[index].usage,
            growth: self.growth_of(index),
            takes: self.pods[index].usage / 10,
        }
    }

    /// Everything but the candidates, by this usage of each pod and of all.
    fn others(&self, pods: &[u64], total: u64) -> u64 {
        let all = pods.iter().enumerate();
        let candidates = all.filter(|(index, _)| self.is_candidate(*index));
        total - candidates.map(|(_, usage)| usage).sum::<u64>()
    }

    fn growth(&self) -> Growth {
        let now: Vec<u64> = self.pods.iter().map(|pod| pod.usage).collect();
        let (then, total) = &self.samples[0];
        let others = self.others(&now, self.total());
        Growth {
            candidates: (0..now.len())
                .filter(|i| self.is_candidate(*i))
                .map(|i| self.growth_of(i))
                .sum(),
            others: others.saturating_sub(self.others(then, *total)),
        }
    }

    /// The reactor's decision; true when a pod was evicted.
    fn decide(&mut self) -> bool {
        let candidates: Vec<usize> = self
            .live()
            .filter(|(index, pod)| self.is_candidate(*index) && pod.usage > 0)
            .map(|(index, _)| index)
            .collect();
        let growth = self.growth();
        let shortage = Shortage {
            excess: self.total() - self.level,
            rate: self.rate(),
            growth,
            room: None,
        };
        if shortage.is_of(self.strangers()) {
            return false;
        }
        let grower = self.effect.grower(&growth, self.now);
        if self.now < self.effect.allowed_from(grower) {
            return false;
        }
        let rank = |i: &usize| {
            (
                evict::rank(Ranking::QosFirst, &self.pods[*i].candidate()),
                *i,
            )
        };
        let Some(first) = candidates.iter().copied().min_by_key(|i| rank(i)) else {
            return false;
        };
        let filler = candidates
            .iter()
            .copied()
            .filter(|i| self.pods[*i].usage > self.pods[*i].request)
            .max_by_key(|i| self.growth_of(*i));
        let horizon = self.effect.horizon(self.now);
        let gain = filler.map(|i| self.gain(i));
        let victim = match worth::pick(&shortage, horizon, self.gain(first), gain) {
            Pick::First => first,
            Pick::Filler => filler.unwrap(),
        };
        self.effect.evicted(self.now);
        self.evicted.push((self.now, victim));
        self.pods[victim].rate = 0;
        // 100 ms for a gibibyte.
        let reaping = self.pods[victim].usage / 10;
        self.advance(reaping.min(10 * SECOND));
        self.pods[victim].dead = true;
        self.pods[victim].usage = 0;
        true
    }

    /// Runs for `seconds`.
    fn run(mut self, seconds: u64) -> Self {
        let end = seconds * SECOND;
        while self.now < end && self.out_of_memory.is_none() {
            let (total, rate) = (self.total(), self.rate());
            if total >= self.level {
                self.advance(DETECTION);
                if !self.decide() {
                    self.advance(SECOND / 20);
                }
            } else if rate == 0 {
                break;
            } else {
                let room = u128::from(self.level - total) * u128::from(SECOND);
                let wait = u64::try_from(room / u128::from(rate) + 1).unwrap_or(end);
                self.advance(wait.min(end - self.now));
            }
        }
        self
    }
}

fn small(mib: u64) -> SimPod {
    SimPod {
        usage: mib * MIB,
        rate: 0,
        cap: u64::MAX,
        request: 0,
        qos: QosClass::BestEffort,
        priority: 0,
        exempt: false,
        told: 0,
        dead: false,
    }
}

/// Pods that hold 1 to 63 MiB each and do not grow.
fn resting() -> impl Strategy<Value = Vec<SimPod>> {
    let pod =
        (1_u64..64, 0_u64..128, -3_i32..4, 0_u8..3).prop_map(|(mib, asked, priority, class)| {
            let (qos, request) = match class {
                0 => (QosClass::BestEffort, 0),
                1 => (QosClass::Burstable, asked * MIB),
                _ => (QosClass::Guaranteed, (mib + asked) * MIB),
            };
            SimPod {
                request,
                qos,
                priority,
                ..small(mib)
            }
        });
    prop::collection::vec(pod, 1..40)
}

/// How fast something fills: 1 MiB/s to 8 GiB/s.
fn fast() -> impl Strategy<Value = u64> {
    (0_u32..14).prop_map(|power| MIB << power)
}

/// `PROPTEST_CASES` asks for more.
fn config() -> ProptestConfig {
    let asked = ProptestConfig::default().cases;
    ProptestConfig::with_cases(asked.max(8_000))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn growth_that_is_no_candidates_costs_the_kubelets_pace_at_most(
        mut pods in resting(),
        rate in fast(),
        exempt in any::<bool>(),
        room_mib in 1_u64..512,
        beyond_mib in 1_u64..4096,
    ) {
        // It rests once it is so far beyond the level.
        let cap = (64 + room_mib + beyond_mib) * MIB;
        let outside = if exempt {
            pods.push(SimPod { rate, cap, exempt: true, ..small(16) });
            0
        } else {
            rate
        };
        // Endless room above the level: what the kernel would do is not the question here.
        let sim = Sim::new(pods, (64 * MIB, outside, cap), room_mib * MIB, u64::MAX >> 2).run(35);
        for (at, _) in &sim.evicted {
            let window = *at..at + KUBELET_PACE_NS;
            let count = sim.evicted.iter().filter(|(t, _)| window.contains(t)).count();
            prop_assert!(count <= 1, "{count} evictions within ten seconds: {:?}", sim.evicted);
        }
        let exempted = |index: &usize| sim.pods[*index].exempt;
        prop_assert!(!sim.evicted.iter().any(|(_, victim)| exempted(victim)));
    }

    #[test]
    fn no_pod_goes_for_a_stranger_that_fills_and_rests_until_a_source_has_told_of_it(
        mut pods in resting(),
        rate in fast(),
        told_ms in 0_u64..10_000,
        room_mib in 1_u64..512,
        beyond_mib in 1_u64..4096,
    ) {
        let cap = (16 + room_mib + beyond_mib) * MIB;
        let told = told_ms * (SECOND / 1000);
        pods.push(SimPod { rate, cap, told, ..small(16) });
        let sim = Sim::new(pods, (64 * MIB, 0, 0), room_mib * MIB, u64::MAX >> 2).run(35);
        prop_assert!(sim.evicted.iter().all(|(at, _)| *at >= told), "{:?}", sim.evicted);
    }

    #[test]
    fn a_candidate_that_fills_goes_after_one_other_at_most(
        mut pods in resting(),
        rate in fast(),
        priority in -3_i32..4,
        class in 0_u8..2,
        room_mib in 64_u64..512,
    ) {
        let qos = if class == 0 { QosClass::BestEffort } else { QosClass::Burstable };
        pods.push(SimPod { rate, qos, priority, request: 0, ..small(1) });
        let filler = pods.len() - 1;
        // The reactor's headroom: what is filled while two victims are freed, and noticed.
        let largest = pods.iter().map(|pod| pod.usage).max().unwrap_or(0) + room_mib * MIB;
        let takes = 2 * (DETECTION + largest / 10) + SAMPLES / 2;
        let slack = u64::try_from(u128::from(rate) * u128::from(takes) / u128::from(SECOND)).unwrap();
        let seconds = (room_mib * MIB / rate).saturating_add(20).min(600);
        let sim = Sim::new(pods, (0, 0, 0), room_mib * MIB, slack + MIB).run(seconds);
        // One may gain little. A pod soon after it, other than the filler, lasts as long as the kubelet's pace.
        for three in sim.evicted.windows(3) {
            let [(first, _), (second, victim), (third, _)] = three else { unreachable!() };
            let soon = second - first < KUBELET_PACE_NS;
            let lasts = third - second >= KUBELET_PACE_NS;
            prop_assert!(!soon || *victim == filler || lasts, "{:?} of {:?}", sim.evicted, sim.pods);
        }
        prop_assert_eq!(sim.out_of_memory, None, "{:?}", sim.evicted);
    }

    #[test]
    fn an_excess_without_growth_costs_no_more_pods_than_cover_it(
        pods in resting(),
        excess_mib in 1_u64..1024,
    ) {
        // The level was lowered below what is used.
        let mut sim = Sim::new(pods, (0, 0, 0), 0, u64::MAX >> 2);
        sim.level = sim.total().saturating_sub(excess_mib * MIB).max(1);
        let excess = sim.total() - sim.level;
        let mut order: Vec<usize> = (0..sim.pods.len()).collect();
        order.sort_by_key(|i| (evict::rank(Ranking::QosFirst, &sim.pods[*i].candidate()), *i));
        let mut gained = 0;
        let needed = order
            .iter()
            .take_while(|i| {
                let more = gained <= excess;
                gained += sim.pods[**i].usage;
                more
            })
            .count();
        let sim = sim.run(30);
        prop_assert!(sim.evicted.len() <= needed, "{} for {needed}", sim.evicted.len());
        let victims: Vec<usize> = sim.evicted.iter().map(|(_, victim)| *victim).collect();
        prop_assert_eq!(&victims[..], &order[..victims.len()]);
    }
}

#[test]
fn a_leaking_daemon_beside_thirty_small_pods_costs_two_of_them_in_ten_seconds() {
    let pods = vec![small(4); 30];
    let sim = Sim::new(pods, (0, 500 * MIB, u64::MAX), 100 * MIB, u64::MAX >> 2).run(11);
    let first = sim.evicted[0].0;
    let early = sim
        .evicted
        .iter()
        .filter(|(at, _)| at - first <= 10 * SECOND);
    assert!(early.count() <= 2, "{:?}", sim.evicted);
}

#[test]
fn the_pause_doubles_while_evictions_change_nothing_and_returns_when_one_does() {
    let mut effect = Effect::new(Grower::Candidates);
    assert_eq!(effect.allowed_from(Grower::Others), 0);
    effect.evicted(0);
    assert_eq!(
        effect.allowed_from(Grower::Others),
        0,
        "that one was a candidate's"
    );
    let others = Growth {
        candidates: 0,
        others: 512 * MIB,
    };
    effect.grower(&others, SECOND);
    effect.evicted(SECOND);
    let second = effect.allowed_from(Grower::Others);
    assert_eq!(second, SECOND + KUBELET_PACE_NS);
    assert_eq!(
        effect.allowed_from(Grower::Candidates),
        0,
        "candidates have no pause"
    );
    effect.evicted(second);
    let third = effect.allowed_from(Grower::Others);
    assert_eq!(third, second + 2 * KUBELET_PACE_NS);
    // Long after the pause.
    effect.evicted(third + 100 * KUBELET_PACE_NS);
    let pause = effect.allowed_from(Grower::Others) - (third + 100 * KUBELET_PACE_NS);
    assert_eq!(pause, KUBELET_PACE_NS);
}

/// Who has to wait for a source to tell of a stranger: (usage and growth of the strangers, excess, growth of candidates
/// and of all else).
#[test]
fn strangers_are_waited_for_where_the_excess_may_be_theirs() {
    for (strangers, excess, growth, waits) in [
        ((0, 0), 0, (0, 0), false),
        ((500, 400), 300, (0, 400), true),
        ((500, 400), 600, (0, 400), false),
        ((500, 400), 300, (500, 400), false),
        ((500, 400), 300, (0, 801), false),
        ((500, 400), 300, (0, 800), true),
        // They have filled, and rest.
        ((500, 0), 300, (0, 0), true),
        ((500, 0), 300, (1, 0), false),
    ] {
        let shortage = Shortage {
            excess,
            rate: 0,
            growth: Growth {
                candidates: growth.0,
                others: growth.1,
            },
            room: None,
        };
        let (usage, growth) = strangers;
        let strangers = Strangers { usage, growth };
        assert_eq!(
            shortage.is_of(strangers),
            waits,
            "{shortage:?} {strangers:?}"
        );
    }
}
