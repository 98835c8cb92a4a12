//! Memory that a killed pod still holds, and whether one more pod may die before it is free.
//!
//! Problem: killed is not freed. Its processes' memory takes time to come back, 10 s for 100 GiB, and never comes
//! while one of them waits inside the kernel; page cache stays until it is written; shared memory (`/dev/shm`,
//! volumes in memory) stays until teardown unmounts it. A reactor that counts all of that against the
//! level kills the next pod for memory that is on its way; one that waits for all of it lets the next filler reach
//! the hard limit.
//!
//! Approach: what a victim holds is *promised*: it is taken off the scope's usage, and the rest is compared with
//! the level as ever. A promise that is not kept counts again after a time. One more pod may die where what
//! remains is at the level, will be there when the promised memory is free, or reaches the hard limit before a
//! further victim could be free.
//!
//! Terms: *used* is what counts against the level, *promised* is what dead victims hold of that, the *rest* is the
//! difference: what the living use.
//!
//! Properties, each with a test (`tests/promise.rs`):
//! - a promise never exceeds what the victim holds, nor the least that it held since it was killed;
//! - every promise ends, at the latest [`TEARDOWN_NS`] after its last process;
//! - without growth no further pod dies while the rest is below the level;
//! - more growth, less room or less promised memory never turns an eviction into a wait.
//!
//! Times are nanoseconds of any clock that does not go backwards, sizes bytes, rates bytes per second.

use crate::headroom;

const SECOND_NS: u64 = 1_000_000_000;

/// A victim's memory counts as freed at this share of what it was, in percent: kernel memory of its cgroup stays
/// charged for longer.
const FREED_PERCENT: u64 = 10;

/// With a process left in it, a victim gives back nothing for at most this long before its memory counts again:
/// such a process waits inside the kernel, and the end of that wait is not known.
pub const STALLED_NS: u64 = 5 * SECOND_NS;

/// Without a process left in it, a victim's memory counts again after this long: the kubelet waits as long for the
/// volumes of a pod that it evicted (`podCleanupTimeout` of kubelet `pkg/kubelet/eviction/eviction_manager.go`).
/// What is charged then is held by something else: a volume that cannot be unmounted, another pod's mapping.
pub const TEARDOWN_NS: u64 = 30 * SECOND_NS;

/// With a process left in it, a victim that gives back nothing for this long is no longer expected to be as fast
/// as others were.
const PATIENCE_NS: u64 = SECOND_NS;

/// Page cache of the dead that takes longer than this is being written to a disk.
const WRITTEN_NS: u64 = SECOND_NS / 4;

/// A rate is measured over at least this long.
const SHORTEST_NS: u64 = 5_000_000;

/// The growth of the living is also measured over the last of this, up to twice as long: what begins to fill, or rests,
/// is not averaged with the time before.
const RECENT_NS: u64 = 50_000_000;

/// Whether teardown decides when a victim's memory comes back: more than half of its `usage` is `shared`, bytes. Memory
/// that processes share among themselves counts here as well: it comes back with them, and an early teardown costs
/// nothing then.
pub const fn is_mostly_shared(shared: u64, usage: u64) -> bool {
    shared > usage / 2
}

/// One victim's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promise {
    /// Its usage when it was killed, and when that was.
    usage: u64,
    killed: u64,
    /// The least seen since, and when.
    least: (u64, u64),
    /// Its usage at the last look.
    left: u64,
    /// What it used, and when, as its rate was measured last; and that rate.
    mark: (u64, u64),
    rate: u64,
    /// When no process was left in it.
    empty: Option<u64>,
    broken: bool,
}

/// What a look at a victim found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freed {
    /// Its processes' memory is still to come.
    NotYet,
    /// All that its end gives back has come: at most a tenth is left, or no process and no page cache that the
    /// kernel would drop. What is left stays promised.
    All,
    /// A process is in it, and gave back nothing for [`STALLED_NS`]: its memory counts again.
    Stuck,
}

impl Promise {
    /// Of a pod that used `usage` and was killed at `now`.
    pub const fn new(usage: u64, now: u64) -> Self {
        Self {
            usage,
            killed: now,
            least: (usage, now),
            left: usage,
            mark: (usage, now),
            rate: 0,
            empty: None,
            broken: false,
        }
    }

    /// It uses `left` at `now`; no process is left in it when `empty`, nor page cache that the kernel would drop
    /// when `swept`.
    pub fn look(&mut self, now: u64, left: u64, empty: bool, swept: bool) -> Freed {
        self.left = left;
        if left < self.least.0 {
            self.least = (left, now);
        }
        if empty {
            self.empty.get_or_insert(now);
        }
        let elapsed = now.saturating_sub(self.mark.1);
        if elapsed >= SHORTEST_NS {
            self.rate = ratio(self.mark.0.saturating_sub(left), SECOND_NS, elapsed);
            self.mark = (left, now);
        }
        let stalled = self.stalled(now);
        self.broken |= match self.empty {
            Some(since) => now.saturating_sub(since) >= TEARDOWN_NS,
            None => stalled >= STALLED_NS,
        };
        match self.empty {
            _ if self.is_enough() => Freed::All,
            Some(_) if swept || stalled >= WRITTEN_NS => Freed::All,
            None if self.broken => Freed::Stuck,
            _ => Freed::NotYet,
        }
    }

    /// What of the memory that it holds is on its way, bytes. What grew in it after it was killed is not.
    pub fn promised(&self) -> u64 {
        match self.broken {
            true => 0,
            false => self.left.min(self.least.0),
        }
    }

    /// What grew in it after it was killed, bytes: of what was started in it since.
    pub const fn grown(&self) -> u64 {
        self.left.saturating_sub(self.least.0)
    }

    /// True once nothing is promised any more.
    pub fn is_over(&self) -> bool {
        self.promised() == 0
    }

    /// True while a process may be left in it.
    pub const fn is_dying(&self) -> bool {
        self.empty.is_none()
    }

    /// How long until its processes' memory is free at `now`, nanoseconds, where a victim of its size takes
    /// `usual`; `u64::MAX` where it gives back nothing. 0 once no process is left: what remains
    /// is teardown's, whose end is not measured by a rate.
    pub fn due(&self, now: u64, usual: u64) -> u64 {
        match () {
            () if !self.is_dying() => 0,
            () if self.stalled(now) < PATIENCE_NS => usual,
            () if self.rate == 0 => u64::MAX,
            () => ratio(self.left, SECOND_NS, self.rate),
        }
    }

    /// How fast its processes give back its memory, by the last looks; 0 once none is left.
    pub fn rate(&self) -> u64 {
        match self.is_dying() {
            true => self.rate,
            false => 0,
        }
    }

    /// What was freed, bytes, and how long that took at `now`, nanoseconds. `None` where more is left than counts
    /// as freed: the length of that wait says nothing.
    pub fn cost(&self, now: u64) -> Option<(u64, u64)> {
        let freed = self.usage.saturating_sub(self.left);
        self.is_enough()
            .then(|| (freed, now.saturating_sub(self.killed)))
    }

    fn is_enough(&self) -> bool {
        self.left <= self.usage / 100 * FREED_PERCENT
    }

    fn stalled(&self, now: u64) -> u64 {
        now.saturating_sub(self.least.1)
    }
}

/// How fast the living fill a scope, measured since a victim was killed: what is known from before counts the dead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Living {
    from: Option<(u64, u64)>,
    /// The last two marks, the younger first: when, and at what rest.
    recent: [(u64, u64); 2],
    rate: u64,
}

impl Living {
    /// A victim is no longer taken off: what its memory adds to the rest is no growth.
    pub fn rebase(&mut self) {
        self.from = None;
    }

    fn begin(&mut self, now: u64, rest: u64) {
        (self.from, self.recent) = (Some((now, rest)), [(now, rest); 2]);
    }

    /// They use `rest` at `now`, of which `ahead` may be charged and not in use.
    pub fn observe(&mut self, now: u64, rest: u64, ahead: u64) {
        let Some((since, from)) = self.from else {
            return self.begin(now, rest);
        };
        let elapsed = now.saturating_sub(since);
        if rest <= from {
            // Growth begins anew from here.
            self.rate = 0;
            self.begin(now, rest);
        } else if elapsed >= SHORTEST_NS {
            let grown = (rest - from).saturating_sub(ahead);
            let (least, most) = self.recent_rates(now, rest, ahead);
            self.rate = ratio(grown, SECOND_NS, elapsed).min(most).max(least);
            if now.saturating_sub(self.recent[0].0) >= RECENT_NS {
                self.recent = [(now, rest), self.recent[0]];
            }
            if elapsed >= SECOND_NS {
                self.from = Some((now, rest));
            }
        }
    }

    /// The least and the most that they grew of late. A rest is a difference of two readings, each of which may be off
    /// by `ahead`.
    fn recent_rates(&self, now: u64, rest: u64, ahead: u64) -> (u64, u64) {
        let (since, from) = self.recent[1];
        let elapsed = now.saturating_sub(since);
        if elapsed < RECENT_NS {
            return (0, u64::MAX);
        }
        let (grown, unsure) = (rest.saturating_sub(from), ahead.saturating_mul(2));
        let rate = |bytes| ratio(bytes, SECOND_NS, elapsed);
        (
            rate(grown.saturating_sub(unsure)),
            rate(grown.saturating_add(unsure)),
        )
    }

    /// The rate at the last look; 0 before it was measured.
    pub const fn rate(&self) -> u64 {
        self.rate
    }
}

/// A scope of which dead victims hold memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waiting {
    /// What counts against the level.
    pub used: u64,
    /// What of that is promised.
    pub promised: u64,
    /// What of that is promised by victims that give back nothing ([`Promise::due`] is endless).
    pub slow: u64,
    /// Below this nothing is asked for: the level, or the target once a pod was evicted.
    pub floor: u64,
    /// The level, at least `floor`.
    pub level: u64,
    /// The hard limit, where there is one.
    pub limit: Option<u64>,
    /// How fast the living fill it.
    pub growth: u64,
    /// How fast victims give memory back.
    pub freeing: u64,
    /// How long until the processes of all victims but the slow ones have, nanoseconds; 0 where no process is left.
    pub due: u64,
    /// From the next decision to a further victim's memory, nanoseconds.
    pub takes: u64,
    /// What the kernel may have charged ahead.
    pub ahead: u64,
}

impl Waiting {
    /// What the living use.
    pub const fn rest(&self) -> u64 {
        self.used.saturating_sub(self.promised)
    }

    /// What one more eviction has to gain, bytes; `None` where what is promised suffices.
    pub fn shortfall(&self) -> Option<u64> {
        let rest = self.rest();
        if self.used < self.floor {
            return None;
        }
        if rest >= self.floor {
            return Some(rest - self.floor);
        }
        // What has grown when the promised memory is there. Without growth there is time for the slow as well.
        let grown = match self.growth {
            0 => 0,
            rate => headroom::filled(rate, self.due).saturating_add(self.slow),
        };
        let then = rest.saturating_add(grown);
        if then >= self.level {
            return Some(then - self.level);
        }
        let room = self.limit?.saturating_sub(self.used);
        let headroom = headroom::filled(self.growth.saturating_sub(self.freeing), self.takes);
        // At the limit nothing can be seen to grow.
        let is_full = self.freeing == 0 && self.due == 0 && room <= self.ahead;
        (room < headroom || is_full).then(|| headroom.saturating_sub(room))
    }
}

/// `value * numerator / denominator`; 0 of nothing.
fn ratio(value: u64, numerator: u64, denominator: u64) -> u64 {
    let product = u128::from(value) * u128::from(numerator);
    let ratio = product.checked_div(denominator.into()).unwrap_or(0);
    u64::try_from(ratio).unwrap_or(u64::MAX)
}
