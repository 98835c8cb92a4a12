//! The events that `/v1/events` can replay: a ring for each group, so that a pod whose processes end all the
//! time pushes out no eviction, and a rate of exits for each pod.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use metrics::counter;
use podwarden_policy::PodUid;
use tokio::sync::broadcast;

use super::Published;
use crate::api::types::{Event, EventKind, PodRef};

/// Exits of one pod that become events at once, and then in a second.
const EXITS_AT_ONCE: u32 = 256;
const EXITS_A_SECOND: u32 = 16;

/// Pods whose rate is remembered; the one that has been quiet for longest goes first.
const PODS: usize = 4096;

/// What an event is about, as far as it decides what it can push out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    /// Evictions, degradations, levels: what an operator looks for afterwards.
    Decisions,
    /// Pods and containers, foreign writes.
    Changes,
    /// Exits of processes.
    Exits,
}

impl Group {
    fn of(kind: &EventKind) -> Self {
        match kind {
            EventKind::Eviction(_)
            | EventKind::Degraded { .. }
            | EventKind::ConfigChanged { .. }
            | EventKind::TookOver(_)
            | EventKind::KernelOom { .. }
            | EventKind::LevelCrossed { .. }
            | EventKind::GapOpened { .. }
            | EventKind::GapClosed { .. } => Self::Decisions,
            EventKind::PodAdded { .. }
            | EventKind::PodRemoved { .. }
            | EventKind::ContainerStarted { .. }
            | EventKind::ContainerStopped { .. }
            | EventKind::MemoryNearLimit { .. }
            | EventKind::ForksRefused { .. }
            | EventKind::ForeignWrite { .. }
            | EventKind::ForeignWriteContested { .. }
            | EventKind::ForeignWriteSettled { .. }
            | EventKind::CpuQuota { .. }
            | EventKind::BestEffortHeld { .. }
            | EventKind::BestEffortFreed { .. }
            | EventKind::BestEffortSuppressed { .. } => Self::Changes,
            EventKind::ProcessExit { .. } | EventKind::ExitsDropped { .. } => Self::Exits,
        }
    }

    /// Events that are kept.
    const fn most(self) -> usize {
        match self {
            Self::Decisions | Self::Changes => 1024,
            Self::Exits => 2048,
        }
    }
}

/// All that is kept, whatever the group.
pub const EVENTS_KEPT: usize =
    Group::Decisions.most() + Group::Changes.most() + Group::Exits.most();

#[derive(Debug, Default)]
pub(super) struct Rings {
    /// By [`Group`], each by id.
    rings: [VecDeque<Arc<Event>>; 3],
    rates: HashMap<PodUid, Rate>,
}

impl Rings {
    pub(super) fn of(history: Vec<Event>) -> Self {
        let mut this = Self::default();
        for event in history {
            this.push(Arc::new(event));
        }
        this
    }

    pub(super) fn push(&mut self, event: Arc<Event>) {
        let group = Group::of(&event.kind);
        let ring = &mut self.rings[group as usize];
        if ring.len() == group.most() {
            ring.pop_front();
        }
        ring.push_back(event);
    }

    pub(super) fn get(&self, id: u64) -> Option<&Arc<Event>> {
        self.rings.iter().find_map(|ring| {
            let at = ring.binary_search_by_key(&id, |event| event.id).ok()?;
            ring.get(at)
        })
    }

    /// Those with a higher id, by id; of each group the last `most`.
    pub(super) fn after(&self, id: u64, most: usize) -> Vec<Arc<Event>> {
        let later = |ring: &VecDeque<Arc<Event>>| {
            let later = ring.partition_point(|event| event.id <= id);
            later.max(ring.len().saturating_sub(most))
        };
        let rings = self.rings.iter();
        let mut all: Vec<_> = rings
            .flat_map(|ring| ring.range(later(ring)..).cloned())
            .collect();
        all.sort_unstable_by_key(|event| event.id);
        all
    }

    /// Whether this becomes an event. An exit that the kernel's OOM killer caused always does.
    pub(super) fn admit(
        &mut self,
        pod: Option<&PodRef>,
        kind: &EventKind,
        now: Instant,
    ) -> Admitted {
        let Some(pod) = pod else {
            return Admitted::Yes;
        };
        match kind {
            EventKind::ProcessExit { oom_killed, .. } => {
                self.admit_exit(&pod.uid, *oom_killed, now)
            }
            EventKind::PodRemoved { .. } => {
                let dropped = self.rates.remove(&pod.uid).map_or(0, |rate| rate.dropped);
                Admitted::after(dropped)
            }
            _ => Admitted::Yes,
        }
    }

    fn admit_exit(&mut self, uid: &PodUid, oom_killed: bool, now: Instant) -> Admitted {
        if oom_killed {
            return Admitted::Yes;
        }
        if let Some(rate) = self.rates.get_mut(uid) {
            return rate.admit(now);
        }
        self.make_room();
        let rate = self.rates.entry(uid.clone());
        rate.or_insert_with(|| Rate::new(now)).admit(now)
    }

    /// For a pod that has no rate yet.
    fn make_room(&mut self) {
        if self.rates.len() < PODS {
            return;
        }
        let quiet = self.rates.iter().min_by_key(|(_, rate)| rate.at);
        if let Some(uid) = quiet.map(|(uid, _)| uid.clone()) {
            self.rates.remove(&uid);
        }
    }
}

impl Published {
    /// As [`Published::event`] for a process of the pod `uid` that ended. What the event says is only put together where
    /// there is one: of a pod whose processes end by the thousand most have none.
    pub fn exit(
        &self,
        uid: &PodUid,
        oom_killed: bool,
        event: impl FnOnce() -> (String, PodRef, EventKind),
    ) {
        let mut kept = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let admitted = kept.admit_exit(uid, oom_killed, Instant::now());
        self.publish_admitted(&mut kept, admitted, || {
            let (time, pod, kind) = event();
            (time, Some(pod), kind)
        });
    }

    /// Publishes an event as it was admitted, after the count of those that were not before it; `None` where it is not
    /// admitted, and not put together then.
    pub(super) fn publish_admitted(
        &self,
        kept: &mut Rings,
        admitted: Admitted,
        event: impl FnOnce() -> (String, Option<PodRef>, EventKind),
    ) -> Option<u64> {
        if admitted == Admitted::No {
            counter!("podwarden_events_dropped_total", "type" => "processExit").increment(1);
            return None;
        }
        let (time, pod, kind) = event();
        if let Admitted::After(count) = admitted {
            let dropped = EventKind::ExitsDropped { count };
            self.publish_event(kept, time.clone(), pod.clone(), dropped);
        }
        Some(self.publish_event(kept, time, pod, kind))
    }

    /// The kept events after `id` (0 for all) and a receiver of those that follow, without a gap or
    /// a repeat between the two.
    pub fn events_after(&self, id: u64) -> (Vec<Arc<Event>>, broadcast::Receiver<Arc<Event>>) {
        self.last_events(id, usize::MAX)
    }

    /// The same with the last `most` of each group: decisions, changes, exits.
    pub fn last_events(
        &self,
        id: u64,
        most: usize,
    ) -> (Vec<Arc<Event>>, broadcast::Receiver<Arc<Event>>) {
        let log = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        (log.after(id, most), self.subscribers.0.subscribe())
    }
}

/// Whether something becomes an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admitted {
    Yes,
    /// Yes, after an event that says how many of this pod did not.
    After(u64),
    No,
}

impl Admitted {
    const fn after(dropped: u64) -> Self {
        match dropped {
            0 => Self::Yes,
            dropped => Self::After(dropped),
        }
    }
}

/// The exits of one pod: a token bucket.
#[derive(Debug)]
struct Rate {
    tokens: u32,
    at: Instant,
    dropped: u64,
}

impl Rate {
    fn new(now: Instant) -> Self {
        Self {
            tokens: EXITS_AT_ONCE,
            at: now,
            dropped: 0,
        }
    }

    fn admit(&mut self, now: Instant) -> Admitted {
        let passed = now.saturating_duration_since(self.at).as_millis();
        let earned = passed.saturating_mul(u128::from(EXITS_A_SECOND)) / 1000;
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(u32::MAX);
            self.tokens = self.tokens.saturating_add(earned).min(EXITS_AT_ONCE);
            // What does not make a whole token yet still counts.
            let spent = u64::from(earned) * 1000 / u64::from(EXITS_A_SECOND);
            self.at = now.min(self.at + Duration::from_millis(spent));
            if self.tokens == EXITS_AT_ONCE {
                self.at = now;
            }
        }
        if self.tokens == 0 {
            self.dropped += 1;
            return Admitted::No;
        }
        self.tokens -= 1;
        Admitted::after(std::mem::take(&mut self.dropped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: u64, kind: EventKind) -> Arc<Event> {
        Arc::new(Event {
            id,
            time: String::new(),
            pod: None,
            kind,
        })
    }

    fn exit(oom_killed: bool) -> EventKind {
        EventKind::ProcessExit {
            pid: 1,
            command: "a".to_owned(),
            exit_code: Some(0),
            signal: None,
            oom_killed,
            run_time_nanos: 0,
            max_rss_bytes: 0,
        }
    }

    fn pod(uid: &str) -> PodRef {
        PodRef {
            uid: uid.into(),
            ..PodRef::default()
        }
    }

    #[test]
    fn exits_push_out_no_eviction() {
        let mut rings = Rings::default();
        rings.push(event(1, EventKind::Eviction(Box::default())));
        let degraded = EventKind::Degraded {
            message: "x".to_owned(),
        };
        rings.push(event(2, degraded));
        for id in 3..20_000 {
            rings.push(event(id, exit(false)));
        }
        let kept = rings.after(0, usize::MAX);
        assert_eq!(kept[..2].iter().map(|e| e.id).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(kept.len(), 2 + Group::Exits.most());
        assert!(kept.is_sorted_by(|a, b| a.id < b.id));
        assert_eq!(rings.after(19_998, usize::MAX).len(), 1);
        let last = rings.after(0, 2);
        let last: Vec<_> = last.iter().map(|event| event.id).collect();
        assert_eq!(last, [1, 2, 19_998, 19_999], "two of each group");
        assert!(rings.get(1).is_some() && rings.get(3).is_none());
        assert_eq!(rings.get(19_000).map(|e| e.id), Some(19_000));
    }

    #[test]
    fn an_exit_that_is_no_event_is_not_put_together() {
        let published = Published::default();
        let busy = pod("busy");
        let mut built = 0;
        for _ in 0..10 * EXITS_AT_ONCE {
            published.exit(&busy.uid, false, || {
                built += 1;
                (String::new(), busy.clone(), exit(false))
            });
        }
        let (kept, _) = published.events_after(0);
        let exits = kept
            .iter()
            .filter(|event| matches!(event.kind, EventKind::ProcessExit { .. }));
        assert_eq!(exits.count(), built);
        assert!(built >= EXITS_AT_ONCE as usize && built < 10 * EXITS_AT_ONCE as usize);
    }

    #[test]
    fn a_pod_has_a_rate_and_what_it_loses_is_counted() {
        let mut rings = Rings::default();
        let start = Instant::now();
        let (busy, other) = (pod("busy"), pod("other"));
        let mut ask =
            |pod, oom, ms| rings.admit(Some(pod), &exit(oom), start + Duration::from_millis(ms));
        for _ in 0..EXITS_AT_ONCE {
            assert_eq!(ask(&busy, false, 0), Admitted::Yes);
        }
        for _ in 0..9 {
            assert_eq!(ask(&busy, false, 10), Admitted::No);
        }
        assert_eq!(ask(&busy, true, 10), Admitted::Yes, "the kernel killed it");
        assert_eq!(ask(&other, false, 10), Admitted::Yes);
        // One token in 62.5 ms.
        assert_eq!(ask(&busy, false, 63), Admitted::After(9));
        assert_eq!(ask(&busy, false, 64), Admitted::No);
        assert_eq!(ask(&busy, false, 130), Admitted::After(1));
        assert_eq!(ask(&busy, false, 131), Admitted::No);
        let removed = EventKind::PodRemoved {
            usage_core_nano_seconds: 0,
            exits: 0,
        };
        let admitted = rings.admit(Some(&busy), &removed, start);
        assert_eq!(admitted, Admitted::After(1));
        assert!(!rings.rates.contains_key(&PodUid::from("busy")));
    }

    #[test]
    fn rates_are_bounded() {
        let mut rings = Rings::default();
        let start = Instant::now();
        for n in 0..PODS as u64 + 10 {
            let now = start + Duration::from_secs(n);
            rings.admit(Some(&pod(&n.to_string())), &exit(false), now);
        }
        assert_eq!(rings.rates.len(), PODS);
        assert!(!rings.rates.contains_key(&PodUid::from("0")));
    }
}
