//! `colocation.memoryEvictThresholdPercent`: what best-effort pods may use of the node's memory while the others use
//! what they use.
//!
//! ```text
//! level  = capacity x threshold % - (used - best effort)      at least LEAST
//! target = capacity x lower %     - (used - best effort)
//! ```
//!
//! The reactor has the besteffort tier's level, so that growth of the tier is answered as it happens, and evicts
//! within the tier by priority and usage. This part follows what the rest of the node uses: it looks before that could
//! take what is left below the level at [`GROWTH`], and once a second where much is left. Memory in use is what is not
//! available: page cache that can be dropped is not in use, of the node and of the tier.

use std::time::{Duration, Instant};

use podwarden_cgroup::{CgroupPath, MemoryReader, Tree};
use podwarden_policy::{Bytes, colocation::memory_evict::Levels};

use crate::config::memory_used;

/// Between two looks at most.
const LOOK: Duration = Duration::from_secs(1);
/// And at least: a look costs two small files.
const LEAST_LOOK: Duration = Duration::from_millis(50);
/// How fast the rest of the node is taken to grow at most, bytes a second.
const GROWTH: u64 = 2 << 30;
/// A tier that uses less gives nothing worth an eviction.
const LEAST: u64 = 64 << 20;
/// Levels are rounded down to this, so that not every page of another process arms the reactor anew.
const GRAIN: u64 = 8 << 20;

/// Of the besteffort tier, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Level {
    /// At this and above, pods of the tier are evicted.
    pub(super) level: u64,
    /// Down to this, at most `level`.
    pub(super) target: u64,
}

impl Level {
    /// Where `used` of `capacity` is not available, `best_effort` of that held by the tier.
    fn of(capacity: Bytes, used: u64, best_effort: u64, levels: Levels) -> Self {
        let others = used.saturating_sub(best_effort);
        let at = |percent: u32| {
            let of_node = capacity.percent(percent.into()).0;
            let left = of_node.saturating_sub(others) / GRAIN * GRAIN;
            left.max(LEAST)
        };
        Self {
            level: at(levels.threshold()),
            target: at(levels.lower()),
        }
    }
}

/// How long the rest of the node needs to take what is left below the level.
fn pause(level: Level, best_effort: u64) -> Duration {
    let left = level.level.saturating_sub(best_effort);
    // A level at its least does not fall any more, and above its level the tier is evicted from already.
    if level.level <= LEAST || left == 0 {
        return LOOK;
    }
    Duration::from_millis(left / (GROWTH / 1000)).clamp(LEAST_LOOK, LOOK)
}

#[derive(Debug)]
pub(super) struct BestEffortMemory {
    levels: Levels,
    looked: Option<Instant>,
    pause: Duration,
    memory: Option<MemoryReader>,
    level: Option<Level>,
}

impl BestEffortMemory {
    /// `None` where it is not configured.
    pub(super) fn new(levels: Option<Levels>) -> Option<Self> {
        levels.map(|levels| Self {
            levels,
            looked: None,
            pause: LOOK,
            memory: None,
            level: None,
        })
    }

    /// How long until the next look.
    pub(super) fn due(&self, now: Instant) -> Duration {
        self.looked.map_or(Duration::ZERO, |looked| {
            self.pause
                .saturating_sub(now.saturating_duration_since(looked))
        })
    }

    /// The level in force; `None` while a figure is not known, which evicts nothing.
    pub(super) fn level(&self) -> Option<Level> {
        self.level
    }

    /// Reads the node and the tier; true where the level has changed.
    pub(super) fn look(
        &mut self,
        tree: &Tree,
        tier: &CgroupPath,
        capacity: Bytes,
        now: Instant,
    ) -> bool {
        self.looked = Some(now);
        let read = self.read(tree, tier, capacity);
        self.pause = read.map_or(LOOK, |(level, best_effort)| pause(level, best_effort));
        let level = read.map(|(level, _)| level);
        std::mem::replace(&mut self.level, level) != level
    }

    /// The level, and what the tier uses, bytes.
    fn read(&mut self, tree: &Tree, tier: &CgroupPath, capacity: Bytes) -> Option<(Level, u64)> {
        if capacity.is_zero() {
            return None;
        }
        // The tier first: what it takes meanwhile counts as others', which lowers the level until the
        // next look.
        let best_effort = self.of_tier(tree, tier)?;
        let level = Level::of(capacity, memory_used()?.0, best_effort, self.levels);
        Some((level, best_effort))
    }

    fn of_tier(&mut self, tree: &Tree, tier: &CgroupPath) -> Option<u64> {
        let read = |memory: &MemoryReader| -> podwarden_cgroup::Result<u64> {
            let usage = memory.usage()?;
            Ok(memory.stat()?.without_cache(usage))
        };
        if self.memory.is_none() {
            self.memory = MemoryReader::open(tree, tier).ok();
        }
        let used = self.memory.as_ref().and_then(|memory| read(memory).ok());
        if used.is_none() {
            // Gone, or made anew.
            self.memory = None;
        }
        used
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn the_tier_may_use_what_the_others_leave_below_the_threshold() {
        let levels = Levels::new(70, None).unwrap();
        let of = |used, best_effort| {
            let level = Level::of(Bytes(100 * GIB), used * GIB, best_effort * GIB, levels);
            (level.level / GIB, level.target / GIB)
        };
        assert_eq!(of(30, 0), (40, 38));
        assert_eq!(of(60, 30), (40, 38), "its own usage changes nothing");
        assert_eq!(of(60, 0), (10, 8));
        let least = Level {
            level: LEAST,
            target: LEAST,
        };
        assert_eq!(Level::of(Bytes(100 * GIB), 90 * GIB, 0, levels), least);
        // Read a moment apart, the tier may seem to use more than the node.
        assert_eq!(of(1, 2), (70, 68));
    }

    #[test]
    fn the_less_is_left_the_sooner_comes_the_next_look() {
        let at = |level, best_effort| {
            pause(
                Level {
                    level,
                    target: LEAST,
                },
                best_effort,
            )
        };
        assert_eq!(at(100 * GIB, 50 * GIB), LOOK);
        assert_eq!(at(10 * GIB, 9 * GIB), Duration::from_millis(500));
        assert_eq!(at(10 * GIB, 10 * GIB - 1), LEAST_LOOK);
        // More looks would change nothing.
        assert_eq!(at(10 * GIB, 10 * GIB), LOOK);
        assert_eq!(at(LEAST, 0), LOOK);
    }

    proptest! {
        #[test]
        fn an_eviction_begins_where_the_node_is_at_the_threshold(
            capacity in 1u64..1 << 44,
            used in 0u64..1 << 44,
            part in 0u64..=100,
            threshold in 1i64..=100,
        ) {
            let levels = Levels::new(threshold, None).unwrap();
            let best_effort = Bytes(used).percent(part).0;
            let level = Level::of(Bytes(capacity), used, best_effort, levels);
            prop_assert!(level.target <= level.level && level.level >= LEAST);
            let at = Bytes(capacity).percent(threshold.unsigned_abs()).0;
            if best_effort >= level.level {
                // Never while the node is below its threshold by more than the grain.
                prop_assert!(used.saturating_add(GRAIN) > at);
            } else if best_effort >= LEAST {
                prop_assert!(used < at.saturating_add(GRAIN));
            }
            // More use by others never raises it.
            let more = Level::of(Bytes(capacity), used.saturating_add(GIB), best_effort, levels);
            prop_assert!(more.level <= level.level && more.target <= level.target);
        }
    }
}
