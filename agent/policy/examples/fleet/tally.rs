//! What is counted: whole numbers, so that the order in which nodes are added changes nothing.

use podwarden_policy::colocation::reclaimed::Amounts;

use crate::traces::DAY_S;

/// Parts of the day in the picture.
pub(crate) const PARTS: usize = 144;

/// Milli-CPU-seconds and MiB-seconds.
pub(crate) type Sums = (u64, u64);

/// The part of the day that a time is in.
fn part(now: u64) -> usize {
    let part = (now % DAY_S) * PARTS as u64 / DAY_S;
    usize::try_from(part).unwrap_or_default().min(PARTS - 1)
}

fn add(to: &mut Sums, amounts: Sums) {
    to.0 += amounts.0;
    to.1 += amounts.1;
}

/// Sums over a day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Curve(pub(crate) [Sums; PARTS]);

impl Default for Curve {
    fn default() -> Self {
        Self([(0, 0); PARTS])
    }
}

impl Curve {
    pub(crate) fn add(&mut self, now: u64, amounts: Sums, seconds: u64) {
        add(
            &mut self.0[part(now)],
            (amounts.0 * seconds, amounts.1 * seconds),
        );
    }

    fn merge(&mut self, other: &Self) {
        for (to, from) in self.0.iter_mut().zip(other.0) {
            add(to, from);
        }
    }

    pub(crate) fn total(&self) -> Sums {
        self.0.iter().fold((0, 0), |mut sum, part| {
            add(&mut sum, *part);
            sum
        })
    }
}

/// Of one policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// What was offered.
    pub(crate) offer: Sums,
    /// Requests of pods that ran.
    pub(crate) held: Curve,
    /// What they used.
    pub(crate) used: Curve,
    /// Milli-CPU-seconds that they wanted and did not get.
    pub(crate) throttled: u64,
    pub(crate) started: u64,
    pub(crate) finished: u64,
    pub(crate) evicted: u64,
    /// Milli-CPU-seconds of evicted pods.
    pub(crate) wasted: u64,
    /// Seconds in which system, guaranteed and batch pods together wanted more CPU than there is.
    pub(crate) contention_s: u64,
    /// Milli-CPU-seconds of that, as far as batch pods use them.
    pub(crate) contention: u64,
    /// Steps in which memory in use was above the capacity with batch pods there.
    pub(crate) overflowed: u64,
}

impl Tally {
    pub(crate) fn offered(&mut self, offered: Amounts, seconds: u64) {
        add(
            &mut self.offer,
            (offered.cpu.0 * seconds, (offered.memory.0 >> 20) * seconds),
        );
    }

    pub(crate) fn sold(&mut self, now: u64, held: Amounts, used: Sums, seconds: u64) {
        self.held
            .add(now, (held.cpu.0, held.memory.0 >> 20), seconds);
        self.used.add(now, used, seconds);
    }

    pub(crate) fn suppressed(&mut self, cpu: u64, seconds: u64) {
        self.throttled += cpu * seconds;
    }

    pub(crate) fn contended(&mut self, cpu: u64, seconds: u64) {
        self.contention_s += seconds;
        self.contention += cpu * seconds;
    }

    pub(crate) fn lost(&mut self, work: u64) {
        self.wasted += work;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        add(&mut self.offer, other.offer);
        self.held.merge(&other.held);
        self.used.merge(&other.used);
        self.throttled += other.throttled;
        self.started += other.started;
        self.finished += other.finished;
        self.evicted += other.evicted;
        self.wasted += other.wasted;
        self.contention_s += other.contention_s;
        self.contention += other.contention;
        self.overflowed += other.overflowed;
    }
}

/// Of all policies, and of the guaranteed pods beside them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Day {
    pub(crate) requested: Curve,
    pub(crate) used: Curve,
    /// Seconds in which guaranteed pods and system alone wanted more CPU than there is.
    pub(crate) short_s: u64,
    pub(crate) sellers: Vec<Tally>,
}

impl Day {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.requested.merge(&other.requested);
        self.used.merge(&other.used);
        self.short_s += other.short_s;
        self.sellers.resize(other.sellers.len(), Tally::default());
        for (to, from) in self.sellers.iter_mut().zip(&other.sellers) {
            to.merge(from);
        }
    }
}
