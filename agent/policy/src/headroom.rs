//! The headroom of a level below its limit, so that the reactor acts before the kernel's OOM killer.
//!
//! Problem: between the moment at which usage reaches a level and the moment at which a victim's memory
//! is free, the filler goes on. A level right below a hard limit is then reached in vain: the limit
//! follows before anything is free, and the kernel kills by its own rules.
//!
//! Approach: `level = limit - fill rate * (detection + reaping of the likely victim)`. The rate is what
//! was seen to grow ([`FillRate`]), the cost of reaping what earlier victims took ([`ReapCost`]).
//!
//! Properties, each with a test:
//! - a level is never above the one that is configured, nor more than the cap below it;
//! - without a limit, or without growth, it is the configured one;
//! - a rate is never above what really was charged: it takes off what the kernel charges ahead;
//! - without growth a rate halves every [`HALF_LIFE_NS`], and is 0 in the end.
//!
//! Times are nanoseconds of any clock that does not go backwards, sizes bytes, rates bytes per second.

use crate::units::Bytes;

const SECOND_NS: u128 = 1_000_000_000;

/// Growth over less than this is what the kernel charges ahead rather than what a process does.
const SHORTEST_NS: u64 = 1_000_000;

/// A mark is followed by the next after this long, or once growth is [`CLEAR`] times what may be charged
/// ahead.
const LONGEST_NS: u64 = 50_000_000;
const CLEAR: u64 = 8;

/// A rate that nothing confirms is half of what it was after this long.
pub const HALF_LIFE_NS: u64 = 250_000_000;

/// How fast a cgroup's usage was seen to grow: at once when it rises, fading when it does not.
///
/// Growth is measured from two marks, so that one of them is always old enough to tell a slow filler from
/// what is charged ahead, and young enough not to take a new one for slow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FillRate {
    /// The last two marks: when, and at what usage; the younger one first.
    marks: [Option<(u64, u64)>; 2],
    /// The highest rate that has not faded yet, and when it was seen.
    peak: u64,
    peak_at: u64,
}

impl FillRate {
    /// Usage is `bytes` at `now`, of which `ahead` may be charged and not in use.
    pub fn observe(&mut self, now: u64, bytes: u64, ahead: u64) {
        let rates = self.marks.iter().flatten().map(|(since, from)| {
            let elapsed = now.saturating_sub(*since);
            let grown = bytes.saturating_sub(*from).saturating_sub(ahead);
            match elapsed >= SHORTEST_NS {
                true => u128::from(grown) * SECOND_NS / u128::from(elapsed),
                false => 0,
            }
        });
        let rate = u64::try_from(rates.max().unwrap_or(0)).unwrap_or(u64::MAX);
        if rate > 0 && rate >= self.at(now) {
            (self.peak, self.peak_at) = (rate, now);
        }
        self.mark(now, bytes, ahead);
    }

    /// Usage was at most `bytes` at `now`: nothing to measure by, but to measure from.
    pub fn bound(&mut self, now: u64, bytes: u64, ahead: u64) {
        self.mark(now, bytes, ahead);
    }

    fn mark(&mut self, now: u64, bytes: u64, ahead: u64) {
        let this = Some((now, bytes));
        let [Some((since, from)), _] = self.marks else {
            self.marks = [this, None];
            return;
        };
        let elapsed = now.saturating_sub(since);
        if bytes <= from {
            // Whatever comes begins from here.
            self.marks = [this, None];
        } else if elapsed >= LONGEST_NS
            || elapsed >= SHORTEST_NS && bytes - from >= ahead.saturating_mul(CLEAR)
        {
            self.marks = [this, self.marks[0]];
        }
    }

    /// The rate at `now`.
    pub fn at(&self, now: u64) -> u64 {
        let age = now.saturating_sub(self.peak_at);
        let halvings = u32::try_from(age / HALF_LIFE_NS).unwrap_or(u32::MAX);
        let whole = self.peak.checked_shr(halvings).unwrap_or(0);
        // A straight line from one half to the next.
        let part = u128::from(whole / 2) * u128::from(age % HALF_LIFE_NS);
        whole - u64::try_from(part / u128::from(HALF_LIFE_NS)).unwrap_or(0)
    }
}

/// What frees a victim's memory, per GiB: learned from the victims there were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReapCost {
    ns_per_gib: u64,
}

impl Default for ReapCost {
    /// 100 ms per GiB: 4 KiB pages freed by the process itself (60 ms with `process_mrelease`).
    fn default() -> Self {
        Self {
            ns_per_gib: 100_000_000,
        }
    }
}

impl ReapCost {
    /// Of less than this it cannot be told: what takes time then is the end of the processes.
    const LEAST: u64 = Bytes::mebi(16).0;
    /// Faster than memory can be cleared, and slower than a disk gives back page cache: no measure of
    /// the next victim.
    const RANGE_NS: (u64, u64) = (10_000_000, 1_000_000_000);
    /// A new figure counts for one in so many: a node that has become slow matters at once, one that has
    /// become fast again can wait.
    const WEIGHTS: (u64, u64) = (2, 8);

    /// A victim of `bytes` was free `ns` after it was killed.
    pub fn learn(&mut self, bytes: u64, ns: u64) {
        if bytes < Self::LEAST {
            return;
        }
        let found = u128::from(ns) * u128::from(Bytes::gibi(1).0) / u128::from(bytes);
        let (least, most) = Self::RANGE_NS;
        let found = u64::try_from(found).unwrap_or(most).clamp(least, most);
        let (slower, faster) = Self::WEIGHTS;
        let weight = if found > self.ns_per_gib {
            slower
        } else {
            faster
        };
        self.ns_per_gib = (self.ns_per_gib * (weight - 1) + found) / weight;
    }

    /// How long a victim of `bytes` takes, nanoseconds.
    pub fn of(self, bytes: u64) -> u64 {
        let ns = u128::from(self.ns_per_gib) * u128::from(bytes) / u128::from(Bytes::gibi(1).0);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// What is filled at `rate` while a victim is noticed, killed and freed, `ns` in all.
pub fn filled(rate: u64, ns: u64) -> u64 {
    let bytes = u128::from(rate) * u128::from(ns) / SECOND_NS;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// The level in force for a cgroup whose configured one is `level` and whose hard limit is `limit`:
/// `headroom` below the limit, if that is lower, and at most `cap` below `level`.
///
/// Only the limit counts: that usage comes to be above the configured level for a moment is what
/// eviction thresholds are there for. The cap keeps a burst from costing a pod its life on a node that
/// is far from full.
pub fn level(level: u64, limit: Option<u64>, headroom: u64, cap: u64) -> u64 {
    let Some(limit) = limit else { return level };
    let safe = limit.saturating_sub(headroom);
    level.min(safe.max(level.saturating_sub(cap)))
}
