//! `evictionSoft`: memory that stays short for longer than the grace period.
//!
//! This part only measures the time. After the grace period the reactor gets the lower
//! level, and kills, waits and chooses as for the hard one, until the threshold and the minimum
//! reclaim are available again; then it gets the hard level back.
//!
//! Where pods have time to end (`evictionMaxPodGracePeriod`), the level stays, and the reconciler tells one pod after
//! the other to end (`super::reconciler`).

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use podwarden_cgroup::{CgroupPath, MemoryReader, Tree};
use podwarden_policy::{
    Bytes, Node,
    pressure::{Observation, Watch},
    reserve,
    signal::Signal,
    threshold::{Amount, Threshold},
};

use crate::config::Config;

/// Between two looks; the kubelet's are 10 s apart (`evictionMonitoringPeriod` of
/// `pkg/kubelet/kubelet.go`).
const LOOK: Duration = Duration::from_secs(1);

/// By how much the threshold is missed, for longer than its grace period. Bytes, of `kubepods`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shortage {
    /// The working set at which the threshold is crossed.
    pub(super) level: u64,
    pub(super) usage: u64,
    pub(super) working_set: u64,
}

impl Shortage {
    /// What is above the level; 0 where only the minimum reclaim is missing.
    pub(super) fn excess(self) -> u64 {
        self.working_set.saturating_sub(self.level)
    }
}

#[derive(Debug)]
pub(super) struct Soft {
    threshold: Threshold,
    /// What pods may use, up to the limit of kubepods, bytes.
    capacity: u64,
    watch: Watch,
    start: Instant,
    looked: Option<Instant>,
    memory: Option<MemoryReader>,
    /// Usage and working set of `kubepods` at the last look.
    used: Option<(u64, u64)>,
    due: bool,
}

impl Soft {
    /// `None` where no soft threshold is configured.
    pub(super) fn new(config: &Config, node: &Node, now: Instant) -> Option<Self> {
        let soft = config.soft(Signal::MemoryAvailable)?;
        // A share is one of the node's memory, as for the hard threshold.
        let of_node = |amount: Amount| Amount::Quantity(amount.of(node.memory_capacity.0));
        Some(Self {
            threshold: Threshold {
                signal: Signal::AllocatableMemoryAvailable,
                grace: soft.grace,
                less_than: of_node(soft.less_than),
                min_reclaim: soft.min_reclaim.map(of_node),
            },
            capacity: reserve::allocatable(node).kubepods_memory.as_u64(),
            watch: Watch::default(),
            start: now,
            looked: None,
            memory: None,
            used: None,
            due: false,
        })
    }

    /// Pods may use what `node` leaves them from now on.
    pub(super) fn follow(&mut self, node: &Node) {
        self.capacity = reserve::allocatable(node).kubepods_memory.as_u64();
    }

    /// How long until the next look.
    pub(super) fn due(&self, now: Instant) -> Duration {
        self.looked.map_or(Duration::ZERO, |looked| {
            LOOK.saturating_sub(now.saturating_duration_since(looked))
        })
    }

    /// Reads the working set of `kubepods`; true when [`Soft::level`] has changed.
    pub(super) fn look(&mut self, tree: &Tree, kubepods: &CgroupPath, now: Instant) -> bool {
        self.looked = Some(now);
        self.used = self.used(tree, kubepods);
        self.take(self.used.map(|(_, working_set)| working_set), now)
    }

    /// `None` for a working set that cannot be read, which counts as not crossed.
    fn take(&mut self, working_set: Option<u64>, now: Instant) -> bool {
        let reading = working_set.map(|used| Observation {
            available: self.capacity.saturating_sub(used),
            capacity: self.capacity,
        });
        let readings: BTreeMap<_, _> = reading
            .map(|reading| (self.threshold.signal, reading))
            .into_iter()
            .collect();
        let at = now.saturating_duration_since(self.start);
        let crossed = self.watch.observe(at, &[self.threshold], &readings);
        let due = !crossed.is_empty();
        if due && !self.due {
            tracing::info!(
                threshold = %Bytes(self.less_than()),
                available = reading.map(|reading| reading.available),
                grace = ?self.threshold.grace,
                "the soft eviction threshold was crossed for longer than its grace period"
            );
        }
        std::mem::replace(&mut self.due, due) != due
    }

    /// The level in force for kubepods when the hard one is `hard`, bytes.
    pub(super) fn level(&self, hard: Option<u64>) -> Option<u64> {
        if !self.due {
            return hard;
        }
        [hard, self.own_level()].into_iter().flatten().min()
    }

    /// The level of the threshold itself, bytes; `None` for one of zero, which would end every pod.
    fn own_level(&self) -> Option<u64> {
        let level = self.capacity.saturating_sub(self.less_than());
        (level > 0).then_some(level)
    }

    /// `None` where the threshold is not crossed, or not for long enough.
    pub(super) fn shortage(&self) -> Option<Shortage> {
        let (usage, working_set) = self.used.filter(|_| self.due)?;
        Some(Shortage {
            level: self.own_level()?,
            usage,
            working_set,
        })
    }

    fn less_than(&self) -> u64 {
        self.threshold.less_than.of(self.capacity)
    }

    /// Usage and working set.
    fn used(&mut self, tree: &Tree, kubepods: &CgroupPath) -> Option<(u64, u64)> {
        let read = |memory: &MemoryReader| -> podwarden_cgroup::Result<(u64, u64)> {
            let usage = memory.usage()?;
            Ok((usage, memory.stat()?.working_set(usage)))
        };
        if self.memory.is_none() {
            self.memory = MemoryReader::open(tree, kubepods).ok();
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
    use super::*;
    use crate::config::Overrides;

    const GIB: u64 = 1 << 30;

    fn soft(more: &str) -> Option<Soft> {
        let text = format!(
            "apiVersion: podwarden.io/v1alpha1\nkind: AgentConfig\n\
             capacity: {{cpu: 2, memory: 10Gi}}\nsystemReserved: {{memory: 1Gi}}\n{more}"
        );
        let config = Config::parse("test", &text, Overrides::default()).unwrap();
        let node = Node {
            memory_capacity: Bytes(10 * GIB),
            system_reserved: podwarden_policy::model::Reserved {
                memory: Bytes(GIB),
                ..Default::default()
            },
            ..Node::default()
        };
        Soft::new(&config, &node, Instant::now())
    }

    const SOFT: &str = "evictionSoft: {memory.available: 2Gi}\n\
                        evictionSoftGracePeriod: {memory.available: 10s}\n\
                        evictionMinimumReclaim: {memory.available: 1Gi}\n";

    #[test]
    fn nothing_without_a_soft_threshold() {
        assert!(soft("").is_none());
    }

    #[test]
    fn the_level_is_lowered_after_the_grace_and_raised_after_the_reclaim() {
        let mut soft = soft(SOFT).unwrap();
        let hard = Some(8 * GIB);
        let start = Instant::now();
        let mut take = |working_set, seconds| {
            let changed = soft.take(working_set, start + Duration::from_secs(seconds));
            (changed, soft.level(hard))
        };
        // Available: 9 GiB minus the working set; the soft level is at 7 GiB.
        assert_eq!(take(Some(15 * GIB / 2), 1), (false, hard));
        assert_eq!(take(Some(15 * GIB / 2), 10), (false, hard), "in its grace");
        assert_eq!(take(Some(15 * GIB / 2), 11), (true, Some(7 * GIB)));
        let between = Some(13 * GIB / 2);
        assert_eq!(take(between, 12), (false, Some(7 * GIB)), "not reclaimed");
        assert_eq!(take(Some(6 * GIB), 13), (true, hard));
        assert_eq!(take(between, 14), (false, hard), "relieved");
        assert_eq!(soft.level(None), None);
    }

    #[test]
    fn what_cannot_be_read_is_not_crossed() {
        let mut soft = soft(SOFT).unwrap();
        let start = Instant::now();
        assert!(!soft.take(Some(9 * GIB), start));
        assert!(soft.take(Some(9 * GIB), start + Duration::from_secs(60)));
        assert!(soft.take(None, start + Duration::from_secs(61)));
        assert_eq!(soft.level(Some(8 * GIB)), Some(8 * GIB));
    }

    #[test]
    fn a_soft_threshold_below_the_hard_one_changes_nothing() {
        let mut soft = soft(SOFT).unwrap();
        soft.take(Some(9 * GIB), Instant::now());
        soft.take(Some(9 * GIB), Instant::now() + Duration::from_secs(60));
        assert_eq!(soft.level(Some(5 * GIB)), Some(5 * GIB));
    }
}
