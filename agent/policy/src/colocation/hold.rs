//! How far best effort is held back while a protected pod waits for a CPU. The law is podwarden's own: it holds
//! nothing back while no protected pod waits.
//!
//! | event | the limit of best effort |
//! |---|---|
//! | a protected pod waited longer than its objective | half of what best effort used, or of the limit where that is less; never below the floor |
//! | for [`QUIET_NANOS`] none waited | a tenth of the node more, until it is the whole node: then none |
//!
//! Waits within [`SETTLE_NANOS`] after a step began before it and change nothing.

use serde::{Deserialize, Serialize};

use crate::units::MilliCpu;

/// After a step further waits are ignored for this long: they began before it.
pub const SETTLE_NANOS: u64 = 5_000_000;
/// The time without a wait after which the limit rises by a step.
pub const QUIET_NANOS: u64 = 100_000_000;
/// How much the limit rises in a step, in parts of the node.
const STEPS: u64 = 10;

/// What best effort may use of the node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bounds {
    /// All CPUs of the node.
    pub cpus: MilliCpu,
    /// What best effort keeps in any case.
    pub floor: MilliCpu,
}

/// The limit after a protected pod waited while best effort used `used`; `None` where it stays.
pub fn lowered(limit: Option<MilliCpu>, used: MilliCpu, bounds: &Bounds) -> Option<MilliCpu> {
    if used <= bounds.floor && limit.is_none() {
        return None;
    }
    let from = limit.map_or(used, |limit| limit.min(used)).min(bounds.cpus);
    let next = MilliCpu(from.0 / 2).max(bounds.floor);
    let falls = limit.is_none_or(|limit| next < limit);
    falls.then_some(next)
}

/// The limit after a time in which none waited; `None` for the whole node.
pub fn raised(limit: MilliCpu, bounds: &Bounds) -> Option<MilliCpu> {
    let next = limit.saturating_add(MilliCpu((bounds.cpus.0 / STEPS).max(1)));
    (next < bounds.cpus).then_some(next)
}

/// The state of the law; times are nanoseconds of one monotonic clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hold {
    /// `None` where nothing is held back.
    limit: Option<MilliCpu>,
    /// When it was last lowered.
    lowered: u64,
    /// When a protected pod last waited, or the limit last rose.
    since: u64,
}

impl Hold {
    /// The limit in force, `None` for none.
    pub const fn limit(&self) -> Option<MilliCpu> {
        self.limit
    }

    /// A protected pod waited longer than its objective, up to `now`, while best effort used `used`. True where the
    /// limit fell.
    ///
    /// Best effort that uses no more than its floor is not what the pod waited for.
    pub fn waited(&mut self, now: u64, used: MilliCpu, bounds: &Bounds) -> bool {
        if used <= bounds.floor && self.limit.is_none() {
            return false;
        }
        self.since = self.since.max(now);
        if self.limit.is_some() && now.saturating_sub(self.lowered) < SETTLE_NANOS {
            return false;
        }
        let Some(next) = lowered(self.limit, used, bounds) else {
            return false;
        };
        self.limit = Some(next);
        self.lowered = now;
        true
    }

    /// Takes a step back where one is due. True where the limit rose.
    pub fn rises(&mut self, now: u64, bounds: &Bounds) -> bool {
        let Some(limit) = self.limit else {
            return false;
        };
        if now.saturating_sub(self.since) < QUIET_NANOS {
            return false;
        }
        self.since = now;
        self.limit = raised(limit, bounds);
        true
    }

    /// When [`Hold::rises`] has something to do next.
    pub fn due(&self) -> Option<u64> {
        self.limit.map(|_| self.since.saturating_add(QUIET_NANOS))
    }
}
