//! The reactor's reports -> events, flight records, eviction status, and the set of evicted pods.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Instant,
};

use jiff::{SignedDuration, Timestamp};
use podwarden_policy::{Bytes, PodUid};
use tokio::sync::watch;

use super::outside::{Outside, held_back};
use crate::{
    accounting::index::PodEntry,
    api::{
        published::Published,
        types::{EventKind, Eviction, EvictionTimeline, PodRef},
    },
    base::clock::{self, monotonic},
    eviction::{
        recorder::{Incident, Recorder},
        status::EvictionStatus,
    },
    pods::PodSet,
    reactor::report::{Chosen, Crossing, Detector, Report},
};

/// What a report is passed on to.
pub(super) struct Listeners<'a> {
    pub(super) published: &'a Arc<Published>,
    pub(super) outside: &'a Outside<'a>,
    pub(super) recorder: &'a mut Option<Recorder>,
    pub(super) status: &'a mut Option<EvictionStatus>,
    pub(super) sources: &'a watch::Receiver<Arc<PodSet>>,
    pub(super) pods: &'a BTreeMap<PodUid, PodEntry>,
}

/// Evictions under way and done.
#[derive(Debug, Default)]
pub(super) struct Evictions {
    /// Killed, and their memory not seen free yet.
    open: HashMap<u64, (Chosen, Eviction, Incident)>,
    /// uids of pods that are dead and whose cgroup is still there.
    pub(super) evicted: BTreeSet<PodUid>,
}

impl Evictions {
    /// Takes evictions that agents before this one recorded, each with its time: a pod whose cgroup is the
    /// same is still evicted.
    pub(super) fn recall(
        &mut self,
        recorded: &[(String, Eviction)],
        entries: &BTreeMap<PodUid, PodEntry>,
    ) {
        for (time, eviction) in recorded {
            let entry = entries.get(&eviction.pod.uid);
            let cgroup = entry.and_then(PodEntry::cgroup_id);
            if cgroup.is_some()
                && cgroup == eviction.victim_cgroup_id
                && is_of_this_boot(time, &eviction.timeline)
            {
                self.evicted.insert(eviction.pod.uid.clone());
            }
        }
    }

    /// Takes one report; true when a pod was killed, so that limits and levels may follow.
    pub(super) fn take(
        &mut self,
        report: Report,
        listeners: &mut Listeners<'_>,
        pod_of: impl Fn(u64) -> Option<PodRef>,
        incident: impl Fn(&Chosen) -> Incident,
    ) -> bool {
        let published = listeners.published;
        match report {
            Report::Crossed(crossing) => {
                publish_crossing(published, &crossing);
                // Periods of pressure are the memory's.
                if crossing.scope.is_of_memory()
                    && let Some(status) = listeners.status
                {
                    status.crossed(&crossing, Instant::now());
                }
                false
            }
            Report::NoCandidate(crossing) => {
                let message = at_level(&crossing) + ", and no pod may be evicted";
                held_back(listeners, &crossing, message);
                false
            }
            Report::OthersGrow(crossing, growth) => {
                let message = format!(
                    "{}, and what grew is no pod that may be evicted (of late {} of {}): evictions keep the \
                     kubelet's pace",
                    at_level(&crossing),
                    Bytes(growth.others),
                    Bytes(growth.all()),
                );
                held_back(listeners, &crossing, message);
                false
            }
            Report::StrangersGrow(crossing, usage) => {
                let message = format!(
                    "{}, and {} of that may be of pods of which no source has told yet: no other pod goes for it; \
                     they may be evicted once a source has told of them, or none has in 10 s without a problem",
                    at_level(&crossing),
                    crossing.scope.signal().amount(usage),
                );
                degraded(published, crossing.wake, None, message);
                false
            }
            Report::Awaited(crossing) => {
                let message = at_level(&crossing)
                    + ", and all pods that are left use no more than they requested: the memory of those that \
                       were evicted is awaited";
                degraded(published, crossing.wake, None, message);
                false
            }
            Report::RateLimited(crossing) => {
                let message = at_level(&crossing)
                    + ", and no pod is evicted for now: reactor.maxEvictionsPerMinute is reached";
                degraded(published, crossing.wake, None, message);
                false
            }
            Report::Chosen(chosen) => {
                let pod = pod_of(chosen.token).unwrap_or_default();
                self.chosen(chosen, pod, incident(&chosen), listeners)
            }
            Report::NotKilled { token, crossing } => {
                let message = format!(
                    "the pod could not be killed, although {} is at its level: another pid namespace, or no \
                     right to signal its processes; the next one is tried",
                    crossing.scope
                );
                degraded(published, crossing.wake, pod_of(token), message);
                false
            }
            Report::KilledAgain {
                token,
                crossing,
                usage,
            } => {
                let pod = pod_of(token).unwrap_or_default();
                tracing::info!(
                    pod = pod.name.as_str(),
                    uid = %pod.uid,
                    usage = %Bytes(usage),
                    scope = %crossing.scope,
                    "killed what was started in an evicted pod: its scope was at its level again"
                );
                false
            }
            Report::Freed { number, at, left } => {
                if let Some((chosen, mut eviction, incident)) = self.open.remove(&number) {
                    let pod = eviction.pod.clone();
                    if at.is_some() && left > chosen.usage / 10 {
                        let left = Bytes(left);
                        tracing::info!(uid = %pod.uid, %left, "no process is left in it; its volumes hold memory");
                    }
                    if at.is_none() {
                        say_stuck(published, &chosen, &pod);
                    }
                    if let Some(status) = listeners.status {
                        status.pressed(Instant::now());
                    }
                    eviction.timeline.freed_nanos = at;
                    let id = publish_eviction(published, &chosen, eviction);
                    record(listeners.recorder, id, pod, incident.freed(at));
                }
                false
            }
        }
    }

    fn chosen(
        &mut self,
        chosen: Chosen,
        pod: PodRef,
        incident: Incident,
        listeners: &mut Listeners<'_>,
    ) -> bool {
        let Some(outcome) = chosen.outcome else {
            let eviction = eviction_of(&chosen, &pod);
            let id = publish_eviction(listeners.published, &chosen, eviction);
            record(listeners.recorder, id, pod, incident);
            return false;
        };
        if outcome.spared {
            tracing::debug!(pod = pod.name.as_str(), uid = %pod.uid, "its sandbox was left alive");
        }
        if !outcome.complete {
            tracing::warn!(
                pod = pod.name.as_str(),
                uid = %pod.uid,
                "the pod could not be killed whole"
            );
        }
        let time = clock::text_of(outcome.killed);
        let entry = listeners.pods.get(&pod.uid);
        let eviction = Eviction {
            status_required: listeners.status.is_some(),
            victim_cgroup_id: entry.and_then(PodEntry::cgroup_id),
            ..eviction_of(&chosen, &pod)
        };
        if let Some(status) = listeners.status {
            status.evicted(&time, &eviction, listeners.sources);
        }
        listeners.published.begun(time, eviction.clone());
        self.evicted.insert(pod.uid);
        self.open
            .insert(chosen.number, (chosen, eviction, incident));
        true
    }
}

fn record(recorder: &mut Option<Recorder>, id: u64, pod: PodRef, incident: Incident) {
    if let Some(recorder) = recorder {
        recorder.incident(id, pod, incident);
    }
}

fn publish_crossing(published: &Published, crossing: &Crossing) {
    published.event(
        clock::text_of(crossing.crossed),
        None,
        EventKind::LevelCrossed {
            scope: crossing.scope,
            level_bytes: crossing.level,
            usage_bytes: crossing.usage,
            working_set_bytes: Some(crossing.working_set),
            detected_by: crossing.detector,
        },
    );
}

/// The wait for a victim's memory has ended without it.
fn say_stuck(published: &Published, chosen: &Chosen, pod: &PodRef) {
    let name = if pod.name.is_empty() {
        pod.uid.as_str()
    } else {
        &pod.name
    };
    let message = format!(
        "pod {name} was killed and keeps its memory ({} bytes before): a process of it waits inside the \
         kernel (state D in ps, /proc/PID/stack shows where) and ends when what it waits for comes, or is \
         taken away; the pod is passed over for a minute and the next one is evicted if {} is still at \
         its level",
        chosen.usage, chosen.crossing.scope
    );
    degraded(published, monotonic(), Some(pod.clone()), message);
}

/// Reports what keeps an eviction from helping, as an event at `at`.
pub(super) fn degraded(published: &Published, at: u64, pod: Option<PodRef>, message: String) {
    let uid = pod.as_ref().map(|pod| pod.uid.as_str());
    tracing::warn!(uid, "{message}");
    published.event(clock::text_of(at), pod, EventKind::Degraded { message });
}

fn at_level(crossing: &Crossing) -> String {
    let signal = crossing.scope.signal();
    format!(
        "{} uses {}, its level is {}",
        crossing.scope,
        signal.amount(crossing.working_set),
        signal.amount(crossing.level)
    )
}

/// An eviction as the reactor reports it.
fn eviction_of(chosen: &Chosen, pod: &PodRef) -> Eviction {
    let crossing = &chosen.crossing;
    let source = match crossing.detector {
        Detector::Charge | Detector::Switch => "kernel",
        Detector::EventFd | Detector::MemoryEvents | Detector::PsiSome | Detector::PsiFull => {
            "notified"
        }
        Detector::Sampler => "sampled",
    };
    let killed = chosen.outcome.map(|o| o.killed);
    Eviction {
        pod: pod.clone(),
        qos_class: chosen.class.to_string(),
        scope: crossing.scope,
        level_bytes: crossing.level,
        headroom_bytes: crossing.headroom,
        fill_bytes_per_second: crossing.fill_rate,
        detected_by: Some(crossing.detector),
        usage_bytes: crossing.usage,
        working_set_bytes: Some(crossing.working_set),
        target_bytes: (crossing.target < crossing.level).then_some(crossing.target),
        victim_usage_bytes: chosen.usage,
        victim_working_set_bytes: Some(chosen.working_set),
        victim_shared_bytes: chosen.shared,
        processes: chosen.outcome.map_or(0, |o| o.processes),
        grace_seconds: (chosen.outcome)
            .map(|o| o.grace_seconds.into())
            .filter(|grace| *grace > 0),
        dry_run: killed.is_none(),
        reason: reason(chosen),
        interrupted: false,
        status_required: false,
        victim_cgroup_id: None,
        timeline: EvictionTimeline {
            crossing_nanos: crossing.crossed,
            crossing_source: source.to_owned(),
            wake_nanos: crossing.wake,
            verified_nanos: chosen.verified,
            killed_nanos: killed,
            freed_nanos: None,
        },
    }
}

/// Shared memory of a victim below this is not worth a word, bytes.
const WORTH_SAYING: u64 = 1 << 20;

/// The victim's place in the order, and what of its memory outlives its processes.
fn reason(chosen: &Chosen) -> String {
    let place = chosen.place;
    match chosen.shared {
        0..WORTH_SAYING => place.to_string(),
        shared => format!("{place}, {} of it in shared memory", Bytes(shared)),
    }
}

/// Returns the event's id.
fn publish_eviction(published: &Published, chosen: &Chosen, eviction: Eviction) -> u64 {
    let pod = &eviction.pod;
    tracing::info!(
        pod = pod.name.as_str(),
        namespace = pod.namespace.as_str(),
        uid = %pod.uid,
        scope = eviction.scope.as_str(),
        reason = eviction.reason,
        dry_run = eviction.dry_run,
        "evicted"
    );
    let killed = eviction.timeline.killed_nanos;
    let time = clock::text_of(killed.unwrap_or(chosen.verified));
    published.event(
        time,
        Some(pod.clone()),
        EventKind::Eviction(Box::new(eviction)),
    )
}

/// Numbers of cgroups begin anew with every boot, as does `CLOCK_MONOTONIC`. After a step of the wall clock
/// by more than a minute the answer is no.
fn is_of_this_boot(time: &str, timeline: &EvictionTimeline) -> bool {
    const NEAR: SignedDuration = SignedDuration::from_secs(60);
    let Some(killed) = timeline.killed_nanos.filter(|at| *at <= monotonic()) else {
        return false;
    };
    let times = [time, &clock::text_of(killed)].map(str::parse::<Timestamp>);
    match times {
        [Ok(recorded), Ok(now)] => now.duration_since(recorded).abs() < NEAR,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_before_the_boot_is_not_of_this_boot() {
        let now = monotonic();
        let of = |killed, time: &str| {
            let timeline = EvictionTimeline {
                killed_nanos: killed,
                ..EvictionTimeline::default()
            };
            is_of_this_boot(time, &timeline)
        };
        let before = now - 1_000_000;
        assert!(of(Some(before), &clock::text_of(before)));
        assert!(!of(Some(before), "2020-01-01T00:00:00.000000Z"));
        // That the clock has not come to yet.
        assert!(!of(Some(now + 3_600_000_000_000), &clock::now_text()));
        assert!(!of(None, &clock::now_text()));
        assert!(!of(Some(before), "yesterday"));
    }
}
