//! Which thresholds are crossed, and for how long.

use alloc::{collections::BTreeMap, vec::Vec};
use core::time::Duration;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::{
    model::Node,
    signal::Signal,
    threshold::{Amount, Threshold},
    units::Bytes,
};

/// What a signal reads now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Observation {
    /// What is left.
    pub available: u64,
    /// What there is.
    pub capacity: u64,
}

/// A threshold that is crossed, with the figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[display("{threshold}: {} left of {}", Bytes(*available), Bytes(*needed))]
pub struct Crossing {
    /// Which.
    pub threshold: Threshold,
    /// What it comes to, with the minimum reclaim where that counts.
    pub needed: u64,
    /// What is left.
    pub available: u64,
}

/// The hard memory threshold as it counts below the limit of `kubepods`
/// (`allocatableMemory.available`), where the pods' working set crosses it now; `None` without a
/// threshold, and where the working set is not known.
pub fn crossed_by_pods(node: &Node, working_set: Option<Bytes>) -> Option<Crossing> {
    let hard = node.eviction_hard_memory;
    let limit = crate::reserve::allocatable(node).kubepods_memory;
    let available = limit.saturating_sub(working_set?);
    (available < hard).then_some(Crossing {
        threshold: Threshold {
            signal: Signal::AllocatableMemoryAvailable,
            grace: None,
            less_than: Amount::Quantity(hard.0),
            min_reclaim: None,
        },
        needed: hard.0,
        available: available.0,
    })
}

/// A victim that uses less relieves no waiting task.
pub const WORTH_EVICTING: Bytes = Bytes::mebi(4);

/// The part of memory that is left when it counts as short.
const SHORT: u64 = 16;

/// Where usage of a cgroup with this limit, page cache included, is from when it is short of memory: a
/// sixteenth of it is left. Tasks that wait for memory below that wait because of a limit of
/// their own cgroup, which no other pod's end lifts.
pub fn short_from(limit: Bytes) -> Bytes {
    limit.saturating_sub(Bytes(limit.0 / SHORT))
}

/// Whether the node is short of memory: no more than a sixteenth of it is used for nothing, so that the
/// kernel is or soon will be reclaiming.
pub fn node_is_short(free: Bytes, total: Bytes) -> bool {
    free.0 <= total.0 / SHORT
}

/// Remembers since when thresholds are crossed.
///
/// Time is the caller's: any monotonic clock, as the time since its start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Watch {
    crossed: BTreeMap<Threshold, Since>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Since {
    start: Duration,
    /// Its grace is over.
    due: bool,
}

impl Watch {
    /// Takes a reading; returns the thresholds that are crossed and whose grace is over, those to
    /// act on first at the front (`synchronize` of kubelet
    /// `pkg/kubelet/eviction/eviction_manager.go`).
    ///
    /// A threshold that was due stays crossed until its minimum reclaim is available on top. A
    /// signal without a reading counts as not crossed, as for the kubelet.
    pub fn observe(
        &mut self,
        now: Duration,
        thresholds: &[Threshold],
        readings: &BTreeMap<Signal, Observation>,
    ) -> Vec<Crossing> {
        let mut crossed_now = BTreeMap::new();
        let mut actionable = Vec::new();
        for threshold in thresholds {
            let before = self.crossed.get(threshold);
            let was_due = before.is_some_and(|since| since.due);
            let reading = readings.get(&threshold.signal);
            let Some(crossing) = reading.and_then(|r| crossed(threshold, r, was_due)) else {
                continue;
            };
            let start = before.map_or(now, |since| since.start);
            let due = now.saturating_sub(start) >= threshold.grace.unwrap_or_default();
            crossed_now.insert(*threshold, Since { start, due });
            if due {
                actionable.push(crossing);
            }
        }
        self.crossed = crossed_now;
        actionable.sort_by_key(|crossing| crossing.threshold);
        actionable
    }
}

fn crossed(threshold: &Threshold, reading: &Observation, was_due: bool) -> Option<Crossing> {
    let mut needed = threshold.less_than.of(reading.capacity);
    if let Some(reclaim) = threshold.min_reclaim.filter(|_| was_due) {
        needed = needed.saturating_add(reclaim.of(reading.capacity));
    }
    (reading.available < needed).then_some(Crossing {
        threshold: *threshold,
        needed,
        available: reading.available,
    })
}

/// The usage at which a memory threshold is crossed:
/// `capacity - threshold + inactive file`, because the threshold is about the working set and the
/// kernel counts usage (`UpdateThreshold` of kubelet
/// `pkg/kubelet/eviction/memory_threshold_notifier.go`).
pub fn usage_level(capacity: Bytes, threshold: Bytes, inactive_file: Bytes) -> Bytes {
    capacity
        .saturating_sub(threshold)
        .saturating_add(inactive_file)
}
