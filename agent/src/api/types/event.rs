//! Events: `GET /v1/events`.

use podwarden_policy::signal::{Detector, ScopeName};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{PodRef, TookOver};

/// One step of an eviction, all by `CLOCK_MONOTONIC`, nanoseconds.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictionTimeline {
    /// When usage passed the level (see `crossing_source`).
    pub crossing_nanos: u64,
    /// Where the crossing's time comes from: `kernel` (stamped by the kernel program), or `sampled`
    /// (interpolated between the last two samples), or `notified` (no earlier than this; the
    /// kernel's eventfd does not stamp).
    pub crossing_source: String,
    /// When the reactor woke.
    pub wake_nanos: u64,
    /// When it had re-read usage and chosen the victim.
    pub verified_nanos: u64,
    /// When the last SIGKILL was sent, or with `graceSeconds` when that time began; absent in observe mode.
    pub killed_nanos: Option<u64>,
    /// When the victim's memory was seen freed; absent until then.
    pub freed_nanos: Option<u64>,
}

/// One eviction, or in observe mode one that would have been.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Eviction {
    /// The victim (`pod` is the event's own field).
    #[serde(rename = "victim")]
    pub pod: PodRef,
    pub qos_class: String,
    /// Whose level was crossed: `kubepods`, `burstable`, `besteffort`, or `node` for all that runs on the
    /// node; `pressure` where tasks waited for memory (the level is then that from which memory is
    /// short), `pids` where process ids ran out (level and usage are then numbers of processes).
    pub scope: ScopeName,
    /// The level that was in force, bytes.
    pub level_bytes: u64,
    /// How far that was below the configured level because of how fast the scope filled, bytes.
    #[serde(default)]
    pub headroom_bytes: u64,
    /// How fast the scope was seen to fill, bytes per second.
    #[serde(default)]
    pub fill_bytes_per_second: u64,
    /// What noticed it first, as in `levelCrossed`.
    pub detected_by: Option<Detector>,
    /// Usage of the scope when it was verified, bytes.
    pub usage_bytes: u64,
    /// What of it counts against the level, bytes: the working set, of a tier usage without page cache. Absent in
    /// event logs of version 0.1.0.
    pub working_set_bytes: Option<u64>,
    /// Where a pod was evicted for this level before: below what usage is brought, bytes
    /// (`evictionMinimumReclaim`).
    pub target_bytes: Option<u64>,
    /// Usage of the victim when it was chosen, bytes.
    pub victim_usage_bytes: u64,
    /// What of it is the victim's working set, by which pods are ranked. Absent in event logs of version 0.1.0.
    pub victim_working_set_bytes: Option<u64>,
    /// What of its usage was shared memory (`/dev/shm`, volumes in memory, what its processes shared), bytes.
    #[serde(default)]
    pub victim_shared_bytes: u64,
    /// Processes that were sent SIGKILL, or with `graceSeconds` that are to end; 0 in observe mode. On v2 `cgroup.kill`
    /// does it and the count is that of the processes found just before.
    pub processes: u32,
    /// The time that the pod has to end (`evictionMaxPodGracePeriod`); absent where it was killed.
    pub grace_seconds: Option<u32>,
    /// True in observe mode: nothing was done.
    pub dry_run: bool,
    /// Why this pod.
    pub reason: String,
    /// True when the agent ended before it saw what came of it: its successor found this in the event
    /// log.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// True when the pod's eviction status is to be written: should the agent end before that, its successor
    /// writes it. Event logs of version 0.1.0 call it `toBeMarked`.
    #[serde(
        default,
        alias = "toBeMarked",
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub status_required: bool,
    /// The kernel's number of the victim's cgroup: for as long as that is there, the pod is dead. Absent
    /// where it was not known any more.
    pub victim_cgroup_id: Option<u64>,
    pub timeline: EvictionTimeline,
}

impl Eviction {
    /// What of the scope's usage counted against its level, bytes; its usage where no more is recorded.
    pub fn working_set(&self) -> u64 {
        self.working_set_bytes.unwrap_or(self.usage_bytes)
    }

    /// The victim's working set when it was chosen, bytes; its usage where no more is recorded.
    pub fn victim_working_set(&self) -> u64 {
        (self.victim_working_set_bytes).unwrap_or(self.victim_usage_bytes)
    }
}

/// What happened; `type` names the variant.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "type",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum EventKind {
    /// A pod's cgroup appeared, or its manifest was read.
    PodAdded { qos_class: String },
    /// A pod's cgroup is gone.
    PodRemoved {
        /// CPU time at the end, nanoseconds.
        usage_core_nano_seconds: u64,
        /// Exits at the end.
        exits: u64,
    },
    /// A container's cgroup appeared.
    ContainerStarted {
        /// Its name or id.
        container: String,
    },
    /// A container's cgroup is gone.
    ContainerStopped {
        /// Its name or id.
        container: String,
    },
    ProcessExit {
        /// Process id in the agent's namespace.
        pid: u32,
        /// `comm`.
        command: String,
        /// Exit code, when it ended by itself.
        exit_code: Option<i32>,
        /// Signal number, when a signal ended it.
        signal: Option<i32>,
        /// True when the kernel's OOM killer chose it.
        oom_killed: bool,
        /// From start to end, nanoseconds.
        run_time_nanos: u64,
        /// Largest resident set, bytes.
        max_rss_bytes: u64,
    },
    /// Processes of the pod ended faster than events are kept of it: so many have no `processExit`. Figures
    /// and metrics count them all.
    ExitsDropped {
        /// Since the last of these, or of `processExit`.
        count: u64,
    },
    /// The kernel's OOM killer chose a process.
    KernelOom { pid: u32 },
    /// A pod's or container's usage reached a part of its own memory limit for the first time since its cgroup was
    /// made or the limit was written.
    MemoryNearLimit {
        /// The container's name or id; absent for the pod's own limit.
        container: Option<String>,
        /// Which part: 80 or 95 percent. Usage that is first seen above 95 has no event for 80.
        percent: u32,
        /// Usage seen, bytes; page cache counts.
        usage_bytes: u64,
        limit_bytes: u64,
    },
    /// Forks of the pod were refused, at its `pids.max` or one above it; at most every 10 s.
    ForksRefused {
        /// The container's name or id; absent where it was not one alone, or the limit is the pod's.
        container: Option<String>,
        /// Since the last of these.
        count: u64,
    },
    LevelCrossed {
        /// As in an eviction.
        scope: ScopeName,
        level_bytes: u64,
        usage_bytes: u64,
        /// What of it counts against the level, as in an eviction.
        working_set_bytes: Option<u64>,
        /// Which source reported it: `charge`, `switch`, `eventfd`, `memory.events`, `psi-some`, `psi-full` or
        /// `sampler`.
        detected_by: Detector,
    },
    /// A pod was evicted, or in observe mode would have been.
    Eviction(Box<Eviction>),
    /// A tier uses more than `qosReserved` leaves it: it is kept from growing, and its limit follows it
    /// down.
    GapOpened {
        /// `burstable` or `besteffort`.
        tier: String,
        /// What it may use, bytes.
        target_bytes: u64,
        /// What it uses, bytes.
        usage_bytes: u64,
    },
    /// A tier's hard limit is where `qosReserved` has it.
    GapClosed {
        tier: String,
        target_bytes: u64,
        /// What it used when the gap opened, bytes.
        usage_before_bytes: u64,
        /// What it uses now, bytes.
        usage_bytes: u64,
        /// Page cache that was dropped meanwhile, bytes.
        reclaimed_bytes: u64,
        /// Limits that were written meanwhile.
        writes: u64,
        /// For how long the gap was open, nanoseconds.
        open_nanos: u64,
    },
    /// Another process changed a value that podwarden keeps.
    ForeignWrite {
        /// The cgroup, as the cgroupfs driver names it.
        cgroup: String,
        /// Which value.
        property: String,
        /// What it held.
        found: String,
        /// What podwarden wrote.
        wanted: String,
        /// False when the kernel refused it.
        corrected: bool,
    },
    /// Another process keeps changing a value: podwarden corrects it at growing intervals from now on, at most
    /// once a minute in the end.
    ForeignWriteContested {
        cgroup: String,
        property: String,
        found: String,
        /// What podwarden will write.
        wanted: String,
    },
    /// A contested value is no longer changed.
    ForeignWriteSettled {
        cgroup: String,
        property: String,
        /// How often it was corrected meanwhile.
        corrections: u32,
    },
    /// A container's CPU quota was raised because it was throttled while the node has free CPU, or lowered
    /// again; in observe mode, would have been.
    CpuQuota {
        /// Its name or id.
        container: String,
        /// How long it had been stopped at its quota, nanoseconds.
        throttled_nanos: u64,
        /// The quota before, microseconds in a period.
        from_us: u64,
        /// The quota now, microseconds in a period.
        to_us: u64,
        period_us: u64,
        /// `throttled`, `nodeBusy` (the share pool's usage is at its threshold) or `noTokens` (it used up what
        /// it may use beyond its limit).
        reason: String,
        /// True in observe mode: nothing was written.
        dry_run: bool,
    },
    /// The besteffort tier may use less CPU, because the event's pod waited for a CPU for longer than its
    /// objective; in observe mode, would have been.
    BestEffortHeld {
        /// What it used, or could use, before, thousandths of a CPU.
        from_milli: u64,
        /// What it may use now, thousandths of a CPU.
        to_milli: u64,
        /// How long the pod had waited, nanoseconds.
        waited_nanos: u64,
        /// From the end of the wait to the write, nanoseconds.
        delay_nanos: u64,
        /// True in observe mode: nothing was written.
        dry_run: bool,
    },
    /// The besteffort tier may use more or less CPU by `cpuSuppressThresholdPercent`; in observe mode, would.
    BestEffortSuppressed {
        /// What was reported before, thousandths of a CPU; absent the first time.
        from_milli: Option<u64>,
        /// What it may use now, thousandths of a CPU.
        to_milli: u64,
        /// Its CPUs as a list, where `cpuSuppressPolicy` is `cpuset`.
        cpus: Option<String>,
        /// What other pods and the system used, thousandths of a CPU.
        others_milli: u64,
        /// Of this many all pods and the system may use `threshold_percent`, thousandths of a CPU.
        capacity_milli: u64,
        /// `cpuSuppressThresholdPercent`.
        threshold_percent: u64,
        /// True in observe mode: nothing was written.
        dry_run: bool,
    },
    /// The besteffort tier may use all CPU again: no protected pod waited.
    BestEffortFreed {
        /// For how long it was held back, nanoseconds.
        held_nanos: u64,
        /// How many waits were too long meanwhile.
        waits: u64,
        /// True in observe mode: nothing was written.
        dry_run: bool,
    },
    /// This agent waited for the end of another and works now (`run --wait-for-lock`).
    TookOver(TookOver),
    /// The configuration's file was changed, and the agent has taken over what it can.
    ConfigChanged {
        /// Keys that are in force as the file has them now.
        applied: Vec<String>,
        /// Keys that the agent takes over at its next start.
        pending: Vec<String>,
    },
    /// Something is not as it should be; the text says what and what is lost.
    Degraded {
        /// One sentence.
        message: String,
    },
}

/// One entry of `GET /v1/events`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Counts up without a gap while the agent runs, in the order of publication; the SSE id. Begins at
    /// 1, or with an event log above every id that an agent before gave out.
    pub id: u64,
    /// When it happened, RFC 3339.
    pub time: String,
    /// Which pod, where it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
    #[serde(flatten)]
    pub kind: EventKind,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_reads_back_as_it_was_written() {
        let pod = PodRef {
            name: "a".into(),
            namespace: "b".into(),
            uid: "c".into(),
        };
        let kinds = [
            EventKind::Eviction(Box::new(Eviction {
                pod: pod.clone(),
                ..Eviction::default()
            })),
            EventKind::KernelOom { pid: 7 },
            EventKind::PodAdded {
                qos_class: "Burstable".to_owned(),
            },
        ];
        for kind in kinds {
            let event = Event {
                id: 3,
                time: "2026-01-01T00:00:00.000000Z".to_owned(),
                pod: Some(pod.clone()),
                kind,
            };
            let text = serde_json::to_string(&event).unwrap();
            let read: Event = serde_json::from_str(&text).unwrap();
            assert_eq!(read, event, "{text}");
        }
    }
}
