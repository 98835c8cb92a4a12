//! How much page cache a pod gives back before anything else needs the memory: a step at a time, as long as the pod
//! does not miss what it gave.
//!
//! ```text
//! step = usage x step % x (1 - pressure / 0.1 %)      none at a pressure of 0.1 % and above
//! ```
//!
//! Pressure is the part of the time in which a task of the pod waited for memory (PSI, `some`). The law is that of
//! Weiner et al., "TMO: Transparent Memory Offloading in Datacenters" (ASPLOS 2022, section 3.3), as in
//! `src/oomd/plugins/Senpai.cpp` of facebookincubator/oomd, whose defaults for step and pressure are these. podwarden
//! adds three bounds:
//!
//! | bound | why |
//! |---|---|
//! | clean page cache above `memory.min` and `memory.low` | what is dropped costs one read at most |
//! | [`PROBE`] first, twice as much with each step without a refault | a warm pod gives no more than a probe |
//! | a rest of [`FIRST_REST_NANOS`] after a refault, twice as long after the next | a warm pod is asked rarely |

use crate::units::Bytes;

/// The first step, and the first after a rest.
pub const PROBE: Bytes = Bytes(1 << 20);
/// At this pressure and above nothing is taken, parts per million of the time: 0.1 %.
pub const PRESSURE_PPM: u64 = 1_000;
/// The rest after a refault.
pub const FIRST_REST_NANOS: u64 = 60 * SECOND;
/// The longest rest; so long without a refault, and the next rest is the first again.
pub const LONGEST_REST_NANOS: u64 = 3_600 * SECOND;
/// A pod that uses less than this part of a CPU does not work, parts per million.
pub const IDLE_CPU_PPM: u64 = 10_000;

const SECOND: u64 = 1_000_000_000;

/// What a pod's cgroup says at a moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reading {
    /// Nanoseconds of a monotonic clock.
    pub at: u64,
    /// Memory charged to the pod.
    pub usage: Bytes,
    /// Page cache that can be dropped without writing it first.
    pub cache: Bytes,
    /// What `memory.min` and `memory.low` keep for the pod and its containers.
    pub protected: Bytes,
    /// Time in which a task of the pod waited for memory, nanoseconds since the cgroup was made.
    pub stalled_nanos: u64,
    /// Pages read back after they were reclaimed, since the cgroup was made.
    pub refaults: u64,
}

/// What to do with a pod now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Take this much, which is above zero.
    Take(Bytes),
    /// Nothing: there is no reading to compare with.
    First,
    /// Nothing: the pod read back what was reclaimed. A rest begins.
    Refaulted,
    /// Nothing until the rest is over.
    Resting,
    /// Nothing: tasks wait for memory.
    Pressure,
    /// Nothing: what is left is in use, dirty or protected.
    Nothing,
}

words! {
    /// A [`Decision`] in the API.
    pub enum Verdict {
        /// [`Decision::Take`].
        Taken = "taken",
        /// [`Decision::First`].
        First = "first",
        /// [`Decision::Refaulted`].
        Refaulted = "refaulted",
        /// [`Decision::Resting`].
        Resting = "resting",
        /// [`Decision::Pressure`].
        Pressure = "pressure",
        /// [`Decision::Nothing`].
        Nothing = "nothing",
    }
}

impl Decision {
    /// Its name in the API.
    pub const fn verdict(self) -> Verdict {
        match self {
            Self::Take(_) => Verdict::Taken,
            Self::First => Verdict::First,
            Self::Refaulted => Verdict::Refaulted,
            Self::Resting => Verdict::Resting,
            Self::Pressure => Verdict::Pressure,
            Self::Nothing => Verdict::Nothing,
        }
    }
}

/// The published law: what to take of `usage` at a pressure of `pressure_ppm`, with steps of `percent` at none.
pub fn step(usage: Bytes, percent: u64, pressure_ppm: u64) -> Bytes {
    let left = PRESSURE_PPM.saturating_sub(pressure_ppm);
    usage.percent(percent.min(100)).mul_div(left, PRESSURE_PPM)
}

/// What is known of one pod between two steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    before: Option<Reading>,
    /// No step is above this.
    bound: Bytes,
    rest_until: u64,
    /// The last rest.
    rest: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            before: None,
            bound: PROBE,
            rest_until: 0,
            rest: 0,
        }
    }
}

impl Pace {
    /// What to take now, with steps of `percent` of usage where there is no pressure.
    pub fn decide(&mut self, now: Reading, percent: u64) -> Decision {
        let Some(before) = self.before.replace(now) else {
            return Decision::First;
        };
        if now.refaults > before.refaults {
            self.refaulted(now.at);
            return Decision::Refaulted;
        }
        if now.at < self.rest_until {
            return Decision::Resting;
        }
        let pressure = pressure_ppm(&before, &now);
        if pressure >= PRESSURE_PPM {
            self.bound = PROBE;
            return Decision::Pressure;
        }
        let room = now.usage.saturating_sub(now.protected);
        let room = room.min(now.cache.saturating_sub(now.protected));
        let take = step(now.usage, percent, pressure).min(self.bound).min(room);
        if take.is_zero() {
            return Decision::Nothing;
        }
        self.bound = self.bound.saturating_add(self.bound);
        Decision::Take(take)
    }

    fn refaulted(&mut self, now: u64) {
        let forgotten = now.saturating_sub(self.rest_until) >= LONGEST_REST_NANOS;
        self.rest = match self.rest {
            0 => FIRST_REST_NANOS,
            _ if forgotten => FIRST_REST_NANOS,
            rest => rest.saturating_mul(2).min(LONGEST_REST_NANOS),
        };
        self.rest_until = now.saturating_add(self.rest);
        self.bound = PROBE;
    }
}

/// The part of the time between two readings in which a task waited, parts per million; all of it where no time went by.
fn pressure_ppm(before: &Reading, now: &Reading) -> u64 {
    let waited = now.stalled_nanos.saturating_sub(before.stalled_nanos);
    parts_per_million(waited, now.at.saturating_sub(before.at))
}

fn parts_per_million(part: u64, of: u64) -> u64 {
    if of == 0 {
        return 1_000_000;
    }
    let ppm = u128::from(part) * 1_000_000 / u128::from(of);
    u64::try_from(ppm).unwrap_or(u64::MAX)
}

/// Since when a pod does not work, by its CPU time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Idle {
    before: Option<(u64, u64)>,
    since: u64,
}

impl Idle {
    /// True where the pod used less than [`IDLE_CPU_PPM`] of a CPU between any two readings of the last `for_nanos`.
    /// `cpu_nanos` is its CPU time up to `at`.
    pub fn is_cold(&mut self, at: u64, cpu_nanos: u64, for_nanos: u64) -> bool {
        let before = self.before.replace((at, cpu_nanos));
        let works = before.is_none_or(|(then, used)| {
            let used = cpu_nanos.saturating_sub(used);
            parts_per_million(used, at.saturating_sub(then)) >= IDLE_CPU_PPM
        });
        if works {
            self.since = at;
        }
        !works && at.saturating_sub(self.since) >= for_nanos
    }
}
