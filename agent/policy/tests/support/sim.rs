//! A node in figures, and the reactor's decisions on it.
//!
//! More than 400 lines: the node, the reactor on it and the judge of its decisions share one state.

use podwarden_policy::{
    Bytes, QosClass,
    evict::{self, Candidate, Rank, Ranking},
    headroom::{self, FillRate, ReapCost},
    promise::{Freed, Living, Promise, Waiting},
    worth::{self, Effect, Gain, Grower, Growth, Pick, Shortage},
};

pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) const MIB: u64 = 1 << 20;
/// The simulated teardowns take less.
pub(crate) const LONGEST_TEARDOWN: u64 = 45 * SECOND;
/// From a crossing to the kill, and what the headroom allows for that (`agent/src/reactor/fill.rs`).
const DETECTION: u64 = SECOND / 1000;
const ALLOWED: u64 = 5_000_000;
/// Two samples of growth are this far apart.
const SAMPLES: u64 = SECOND / 2;
/// Nothing is looked at less often.
const LONGEST_SLEEP: u64 = SECOND / 10;

/// A pod, and what becomes of it once it is killed.
#[derive(Debug, Clone)]
pub(crate) struct SimPod {
    anon: u64,
    shared: u64,
    rate: u64,
    /// Grows from this time on, to this size.
    after: u64,
    cap: u64,
    request: u64,
    qos: QosClass,
    priority: i32,
    pub(crate) exempt: bool,
    /// Its processes take so many times as long as usual to be freed; a stuck one is never freed.
    slow: u64,
    stuck: bool,
    /// Its shared memory comes back so long after its processes.
    teardown: u64,
    killed: Option<u64>,
    empty: Option<u64>,
    sample: [u64; 2],
}

impl SimPod {
    pub(crate) fn new(class: u8, asked: u64, priority: i32, exempt: bool) -> Self {
        let (qos, request) = match class {
            0 => (QosClass::BestEffort, 0),
            1 => (QosClass::Burstable, asked),
            _ => (QosClass::Guaranteed, 4 * asked),
        };
        Self {
            anon: 0,
            shared: 0,
            rate: 0,
            after: 0,
            cap: 0,
            request,
            qos,
            priority,
            exempt,
            slow: 1,
            stuck: false,
            teardown: 0,
            killed: None,
            empty: None,
            sample: [0; 2],
        }
    }

    pub(crate) fn holds(self, anon: u64, shared: u64) -> Self {
        let sample = [anon + shared; 2];
        Self {
            anon,
            shared,
            sample,
            ..self
        }
    }

    pub(crate) fn grows(self, rate: u64, after: u64) -> Self {
        Self {
            rate,
            after,
            ..self
        }
    }

    pub(crate) fn until(self, cap: u64) -> Self {
        Self { cap, ..self }
    }

    pub(crate) fn dies(self, slow: u64, teardown: u64, stuck: bool) -> Self {
        Self {
            slow,
            teardown,
            stuck,
            ..self
        }
    }

    pub(crate) fn leaves_nothing(self) -> Self {
        Self {
            anon: self.anon + self.shared,
            shared: 0,
            slow: 1,
            stuck: false,
            after: 0,
            ..self
        }
    }

    pub(crate) fn may_be_evicted(&self) -> bool {
        !self.exempt && self.killed.is_none() && self.usage() > 0
    }

    fn usage(&self) -> u64 {
        self.anon + self.shared
    }

    fn rate_at(&self, now: u64) -> u64 {
        let grows = self.killed.is_none() && now >= self.after && self.usage() < self.cap;
        if grows { self.rate } else { 0 }
    }

    fn growth(&self) -> u64 {
        self.usage().saturating_sub(self.sample[0])
    }

    fn advance(&mut self, now: u64, nanos: u64) {
        let end = now + nanos;
        if self.killed.is_none() {
            self.anon += grown(self.rate_at(now), nanos).min(self.cap.saturating_sub(self.usage()));
        } else if !self.stuck {
            // 100 ms for a gibibyte.
            let freed = u128::from(nanos) * 1024 * u128::from(MIB) / u128::from(SECOND / 10);
            let freed = u64::try_from(freed).unwrap() / self.slow;
            self.anon = self.anon.saturating_sub(freed);
            if self.anon == 0 {
                let empty = *self.empty.get_or_insert(end);
                if end >= empty + self.teardown {
                    self.shared = 0;
                }
            }
        }
    }

    fn candidate(&self) -> Candidate {
        Candidate {
            qos: self.qos,
            priority: self.priority,
            memory_request: Bytes(self.request),
            working_set: Some(Bytes(self.usage())),
        }
    }
}

fn grown(rate: u64, nanos: u64) -> u64 {
    u64::try_from(u128::from(rate) * u128::from(nanos) / u128::from(SECOND)).unwrap()
}

/// A victim, and the node as it was when it was chosen.
#[derive(Debug, Clone)]
pub(crate) struct Eviction {
    pub(crate) at: u64,
    pub(crate) victim: usize,
    pub(crate) before: Box<Sim>,
}

#[derive(Debug, Clone)]
pub(crate) struct Sim {
    pub(crate) pods: Vec<SimPod>,
    outside: u64,
    outside_rate: u64,
    outside_cap: u64,
    outside_sample: [u64; 2],
    level: u64,
    limit: u64,
    cpus: u64,
    pub(crate) now: u64,
    sampled: [u64; 2],
    /// The reactor's.
    usage: FillRate,
    reap: ReapCost,
    effect: Effect,
    living: Living,
    dying: Vec<(usize, Promise, bool)>,
    passed_over: Vec<usize>,
    pub(crate) evictions: Vec<Eviction>,
    /// The node each time it came to the level that was in force then.
    pub(crate) crossings: Vec<Sim>,
    /// The node where the next eviction waits for the end of the pause: the first such moment after each sample.
    pub(crate) waits: Vec<Sim>,
    is_crossed: bool,
    pub(crate) out_of_memory: Option<u64>,
}

impl Sim {
    pub(crate) fn new(
        pods: Vec<SimPod>,
        outside_rate: u64,
        beyond: u64,
        room: u64,
        threshold: u64,
        cpus: u64,
    ) -> Self {
        let outside = 64 * MIB;
        let total = outside + pods.iter().map(SimPod::usage).sum::<u64>();
        Self {
            pods,
            outside,
            outside_rate,
            outside_cap: outside + beyond,
            outside_sample: [outside; 2],
            level: total + room,
            limit: total + room + threshold,
            cpus,
            now: 0,
            sampled: [0; 2],
            usage: FillRate::default(),
            reap: ReapCost::default(),
            effect: Effect::new(Grower::Candidates),
            living: Living::default(),
            dying: Vec::new(),
            passed_over: Vec::new(),
            evictions: Vec::new(),
            crossings: Vec::new(),
            waits: Vec::new(),
            is_crossed: false,
            out_of_memory: None,
        }
    }

    /// The node as it is, without what it was before.
    fn moment(&self) -> Self {
        Self {
            evictions: Vec::new(),
            crossings: Vec::new(),
            waits: Vec::new(),
            ..self.clone()
        }
    }

    fn total(&self) -> u64 {
        self.outside + self.pods.iter().map(SimPod::usage).sum::<u64>()
    }

    fn rate(&self) -> u64 {
        let outside = if self.outside < self.outside_cap {
            self.outside_rate
        } else {
            0
        };
        outside
            + self
                .pods
                .iter()
                .map(|pod| pod.rate_at(self.now))
                .sum::<u64>()
    }

    fn ahead(&self) -> u64 {
        (256 << 10) * self.cpus
    }

    /// Victims, times and what the node used then, for a failure's text.
    pub(crate) fn history(&self) -> Vec<(u64, usize, u64, u64)> {
        let of = |e: &Eviction| (e.at, e.victim, e.before.total(), e.before.level);
        self.evictions.iter().map(of).collect()
    }

    fn advance(&mut self, nanos: u64) {
        let mut left = nanos;
        while left > 0 {
            let step = left.min(self.sampled[1] + SAMPLES - self.now);
            for pod in &mut self.pods {
                pod.advance(self.now, step);
            }
            let room = self.outside_cap - self.outside;
            self.outside += grown(self.outside_rate, step).min(room);
            self.now += step;
            left -= step;
            if self.now == self.sampled[1] + SAMPLES {
                self.sampled = [self.sampled[1], self.now];
                for pod in &mut self.pods {
                    pod.sample = [pod.sample[1], pod.usage()];
                }
                self.outside_sample = [self.outside_sample[1], self.outside];
            }
            if self.total() >= self.limit {
                self.out_of_memory.get_or_insert(self.now);
            }
        }
    }

    /// How long the reactor sleeps: until a quarter of the way to the level at most.
    fn sleep(&self) -> u64 {
        let awaited = self.dying.iter().any(|(_, _, told)| !told);
        let longest = match (awaited, self.dying.is_empty()) {
            (true, _) => SECOND / 1000,
            (false, false) => SECOND / 50,
            (false, true) => LONGEST_SLEEP,
        };
        let room = self.level.saturating_sub(self.total());
        let way = u128::from(room) * u128::from(SECOND) / 4;
        let way = way.checked_div(self.rate().into()).unwrap_or(u128::MAX);
        u64::try_from(way)
            .unwrap_or(u64::MAX)
            .clamp(SECOND / 1000, longest)
    }

    /// Runs for `seconds`, or to the end of all memory.
    pub(crate) fn run(mut self, seconds: u64) -> Self {
        while self.now < seconds * SECOND && self.out_of_memory.is_none() {
            self.advance(self.sleep());
            self.look_at_victims();
            if !self.step() && self.is_at_rest() {
                break;
            }
        }
        self
    }

    fn is_at_rest(&self) -> bool {
        let later = self
            .pods
            .iter()
            .any(|pod| pod.rate > 0 && self.now < pod.after);
        self.rate() == 0 && !later && self.dying.is_empty()
    }

    fn look_at_victims(&mut self) {
        let (pods, now) = (&self.pods, self.now);
        let mut freed = Vec::new();
        for (index, promise, told) in &mut self.dying {
            let pod = &pods[*index];
            let empty = pod.empty.is_some();
            match promise.look(now, pod.usage(), empty, empty) {
                _ if *told => {}
                Freed::NotYet => {}
                Freed::All => {
                    *told = true;
                    freed.extend(promise.cost(now));
                }
                Freed::Stuck => {
                    *told = true;
                    self.passed_over.push(*index);
                }
            }
        }
        for (bytes, took) in freed {
            self.reap.learn(bytes, took);
        }
        let before = self.dying.len();
        self.dying
            .retain(|(_, promise, told)| !(*told && promise.is_over()));
        if self.dying.len() < before {
            self.living.rebase();
        }
    }

    fn rank(&self, index: usize) -> (Rank, usize) {
        (
            evict::rank(Ranking::QosFirst, &self.pods[index].candidate()),
            index,
        )
    }

    fn candidates(&self) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.pods.len())
            .filter(|i| self.pods[*i].may_be_evicted())
            .collect();
        all.sort_by_key(|index| self.rank(*index));
        all
    }

    /// The level that is in force, as `Fill` settles it.
    fn level_in_force(&self, candidates: &[usize]) -> u64 {
        let likely = candidates
            .first()
            .map_or(0, |index| self.pods[*index].usage());
        let takes = ALLOWED + self.reap.of(likely);
        let headroom = headroom::filled(self.usage.at(self.now), takes);
        let headroom = headroom.checked_next_multiple_of(MIB).unwrap_or(u64::MAX);
        // 10 % of the limit, which is the default of reactor.maxHeadroom.
        headroom::level(self.level, Some(self.limit), headroom, self.limit / 10)
    }

    fn waiting(&mut self, level: u64, likely: u64) -> Waiting {
        let used = self.total();
        let alone = Waiting {
            used,
            floor: level,
            level,
            ..Waiting::default()
        };
        if self.dying.is_empty() {
            self.living = Living::default();
            return alone;
        }
        let held: u64 = self
            .dying
            .iter()
            .map(|(index, _, _)| self.pods[*index].usage())
            .sum();
        self.living.observe(self.now, used - held, self.ahead());
        let mut waiting = Waiting {
            growth: self.living.rate(),
            limit: Some(self.limit),
            takes: ALLOWED + self.reap.of(likely),
            ahead: self.ahead(),
            ..alone
        };
        for (index, promise, _) in &self.dying {
            let promised = promise.promised();
            waiting.promised += promised;
            waiting.freeing += promise.rate();
            match promise.due(self.now, self.reap.of(self.pods[*index].anon)) {
                u64::MAX => waiting.slow += promised,
                due => waiting.due = waiting.due.max(due),
            }
        }
        waiting
    }

    /// One look and one decision; true when a pod was evicted.
    fn step(&mut self) -> bool {
        self.usage.observe(self.now, self.total(), self.ahead());
        let candidates = self.candidates();
        let level = self.level_in_force(&candidates);
        let is_below = self.total() < level;
        if !std::mem::replace(&mut self.is_crossed, !is_below) && !is_below {
            self.crossings.push(self.moment());
        }
        if is_below {
            return false;
        }
        let likely = candidates
            .first()
            .map_or(0, |index| self.pods[*index].usage());
        let Some(excess) = self.waiting(level, likely).shortfall() else {
            return false;
        };
        let Some(victim) = self.victim(&candidates, excess) else {
            if self
                .waits
                .last()
                .is_none_or(|last| last.sampled != self.sampled)
            {
                self.waits.push(self.moment());
            }
            return false;
        };
        let before = Box::new(self.moment());
        self.advance(DETECTION);
        let at = self.now;
        self.effect.evicted(at);
        self.evictions.push(Eviction { at, victim, before });
        self.kill(victim);
        let promise = Promise::new(self.pods[victim].usage(), at);
        self.dying.push((victim, promise, false));
        true
    }

    fn kill(&mut self, victim: usize) {
        self.pods[victim].killed = Some(self.now);
    }

    fn growth(&self) -> Growth {
        let candidates = self.pods.iter().filter(|pod| pod.may_be_evicted());
        let exempt = self.pods.iter().filter(|pod| pod.exempt);
        let outside = self.outside - self.outside_sample[0];
        Growth {
            candidates: candidates.map(SimPod::growth).sum(),
            others: outside + exempt.map(SimPod::growth).sum::<u64>(),
        }
    }

    fn gain(&self, index: usize) -> Gain {
        let pod = &self.pods[index];
        Gain {
            bytes: pod.usage(),
            growth: pod.growth(),
            takes: ALLOWED + self.reap.of(pod.usage()),
        }
    }

    /// Whom the reactor evicts (`weigh` of `agent/src/reactor/core/evict.rs`).
    fn victim(&mut self, candidates: &[usize], excess: u64) -> Option<usize> {
        let first = *candidates.first()?;
        let growth = self.growth();
        let since = self.now - self.sampled[0];
        let sampled = u128::from(growth.all()) * u128::from(SECOND);
        let sampled = u64::try_from(sampled.checked_div(since.into()).unwrap_or(0)).unwrap();
        let rate = match self.dying.is_empty() {
            true => sampled.max(self.usage.at(self.now)),
            false => sampled,
        };
        let shortage = Shortage {
            excess,
            rate,
            growth,
            room: Some(self.limit.saturating_sub(self.total())),
        };
        let over = |i: &usize| self.pods[*i].usage() > self.pods[*i].request;
        let filler = candidates.iter().copied().filter(over);
        let filler = filler.max_by_key(|index| self.pods[*index].growth());
        match self.effect.grower(&growth, self.now) {
            Grower::Candidates => {
                let gain = filler.map(|index| self.gain(index));
                let horizon = self.effect.horizon(self.now);
                Some(
                    match worth::pick(&shortage, horizon, self.gain(first), gain) {
                        Pick::First => first,
                        Pick::Filler => filler.unwrap_or(first),
                    },
                )
            }
            Grower::Others => {
                let pause = self.effect.allowed_from(Grower::Others);
                let pause = pause.saturating_sub(self.now);
                if pause > 0 && !shortage.reaches_limit(pause) {
                    return None;
                }
                let amounts = shortage.lasting(pause);
                let lasting = amounts.into_iter().flatten().find_map(|least| {
                    // Shared memory is no gain: teardown may take as long as the next eviction.
                    let of_processes = |index: &usize| Gain {
                        bytes: self.pods[*index].anon,
                        ..self.gain(*index)
                    };
                    let mut all = candidates.iter().copied();
                    all.find(|index| shortage.lasts(of_processes(index), least))
                        .or(filler.filter(|index| shortage.lasts(self.gain(*index), least)))
                });
                lasting.or((pause == 0).then_some(first))
            }
        }
    }

    /// How long the next eviction waits where what grows is no candidate, nanoseconds.
    pub(crate) fn pause(&self) -> u64 {
        let until = self.effect.allowed_from(Grower::Others);
        until.saturating_sub(self.now)
    }

    /// Whether what grows now, and goes on, has filled the node up to its level once the processes of all that died
    /// are gone: that it will rest one day cannot be seen.
    fn fills_what_is_freed(&mut self) -> bool {
        let end = self.now + 5 * SECOND;
        self.lift_caps();
        let dead = |pod: &&SimPod| pod.killed.is_some();
        while self.now < end && self.pods.iter().filter(dead).any(|pod| pod.anon > 0) {
            self.advance(SECOND / 1000);
        }
        let shared: u64 = self.pods.iter().filter(dead).map(|pod| pod.shared).sum();
        self.total() - shared >= self.level
    }

    fn lift_caps(&mut self) {
        self.outside_cap = u64::MAX >> 2;
        for pod in &mut self.pods {
            pod.cap = u64::MAX >> 2;
        }
    }

    /// Whether the limit is nearer than what the CPUs may have charged ahead and what is filled while one more victim
    /// is noticed and freed: then it is not waited for what may come back.
    fn is_near_its_limit(&self) -> bool {
        let likely = self
            .candidates()
            .first()
            .map_or(0, |index| self.pods[*index].usage());
        let filled = grown(self.rate(), ALLOWED + self.reap.of(likely));
        self.limit.saturating_sub(self.total()) <= self.ahead() + filled
    }

    /// Whether the node, left alone from now on, is at its level once what has died is free, or reaches its limit
    /// before.
    pub(crate) fn stays_short(&mut self, longest: u64) -> bool {
        if self.is_near_its_limit() || self.clone().fills_what_is_freed() {
            return true;
        }
        let end = self.now + longest;
        loop {
            let dead = self.pods.iter().filter(|pod| pod.killed.is_some());
            let held: u64 = dead.map(SimPod::usage).sum();
            if self.out_of_memory.is_some() {
                return true;
            }
            if held == 0 || self.now >= end {
                let candidates = self.candidates();
                return self.total() >= self.level_in_force(&candidates).min(self.level);
            }
            self.advance(SECOND / 200);
            self.usage.observe(self.now, self.total(), self.ahead());
        }
    }

    /// Whether the rules let it go first at this moment: no other one does, or it uses more than it requested.
    pub(crate) fn may_go_first(&self, index: usize) -> bool {
        let pod = &self.pods[index];
        let first = self.candidates().first() == Some(&index);
        pod.may_be_evicted() && (first || pod.usage() > pod.request)
    }

    /// Whether the node stays below its limit for `long` where `victim` is killed now and no other pod is, and what
    /// grows goes on: that it will rest one day cannot be seen.
    pub(crate) fn survives_without(&mut self, victim: usize, long: u64) -> bool {
        self.advance(DETECTION);
        self.kill(victim);
        self.lift_caps();
        let end = self.now + long;
        while self.now < end && self.out_of_memory.is_none() {
            self.advance(SECOND / 200);
        }
        self.out_of_memory.is_none()
    }
}
