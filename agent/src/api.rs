//! The wire types of `/v1`: what `podwarden top`, scripts and dashboards read.
//!
//! Field names are those of the kubelet's Summary API wherever it has one
//! (kubelet `pkg/apis/stats/v1alpha1/types.go`); times are RFC 3339 in UTC.
//! An absent field is a figure that is not known here, never a zero.

use serde::{Deserialize, Serialize};

mod flight;

pub use flight::{Curve, EventLogStats, EventRecord, Exit, Flight, Level, Ranked};

/// Which pod; the same triple as the Summary API's `podRef`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodRef {
    /// `metadata.name`, or the uid where only the cgroup is known.
    pub name: String,
    /// `metadata.namespace`; empty where only the cgroup is known.
    pub namespace: String,
    /// `metadata.uid` as it stands in the cgroup's name.
    pub uid: String,
}

/// CPU time and how long runnable tasks waited for a CPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuStats {
    /// When the figures were read.
    pub time: String,
    /// CPU time since the cgroup was first seen, in nanoseconds.
    pub usage_core_nano_seconds: u64,
    /// CPU use over the last sampling window, in billionths of a core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_nano_cores: Option<u64>,
    /// Time that runnable tasks spent waiting for a CPU, in nanoseconds.
    pub run_queue_wait_nano_seconds: u64,
    /// How many waits; bucket `i` counts waits in `[2^i, 2^(i+1))` microseconds, bucket 0 also
    /// everything shorter, the last also everything longer.
    pub run_queue_wait_histogram: Vec<u64>,
    /// Context switches into the pod's tasks.
    pub context_switches: u64,
}

/// Memory, from the memory controller.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryStats {
    /// When the figures were read.
    pub time: String,
    /// `memory.current` (v2) or `memory.usage_in_bytes` (v1).
    pub usage_bytes: u64,
    /// Usage minus `inactive_file`, never below 0, as cAdvisor computes it.
    pub working_set_bytes: u64,
    /// Anonymous memory: `anon` (v2) or `total_rss` (v1).
    pub rss_bytes: u64,
    /// The limit in force on this cgroup; absent when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
}

/// Time that tasks spent reclaiming memory instead of running their program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StallStats {
    /// In reclaim for the whole node (`mm_vmscan_direct_reclaim_*`), nanoseconds.
    pub direct_reclaim_nano_seconds: u64,
    /// In reclaim for a memory cgroup's own limit (`mm_vmscan_memcg_reclaim_*`), nanoseconds.
    pub memcg_reclaim_nano_seconds: u64,
}

/// Processes that ended; processes, not threads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExitStats {
    /// All of them.
    pub total: u64,
    /// Those with a non-zero exit code.
    pub failed: u64,
    /// Those ended by a signal.
    pub signaled: u64,
    /// Those that the kernel's OOM killer chose.
    pub oom_killed: u64,
}

/// One container: a cgroup directly below its pod's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStats {
    /// The container's name where a manifest or runtime told it, else its id.
    pub name: String,
    /// The runtime's id, or the cgroup's name.
    pub id: String,
    /// The runtime says that it is the pod's sandbox; it is called `POD` then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sandbox: bool,
    /// CPU.
    pub cpu: CpuStats,
    /// Memory; absent when the cgroup went away while it was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStats>,
    /// Reclaim stalls.
    pub stall: StallStats,
    /// Exits.
    pub exits: ExitStats,
}

/// One pod with all that is below it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStats {
    /// Which pod.
    pub pod_ref: PodRef,
    /// `Guaranteed`, `Burstable` or `BestEffort`.
    pub qos_class: String,
    /// How podwarden knows of it: `apiserver`, `kubelet`, `manifest`, `runtime` or `cgroup`.
    pub source: String,
    /// `Running`, or `Evicted` once podwarden has killed it.
    pub phase: String,
    /// The pod's cgroup below the controllers' mount points.
    pub cgroup: String,
    /// CPU.
    pub cpu: CpuStats,
    /// Memory; absent when the cgroup went away while it was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStats>,
    /// Reclaim stalls.
    pub stall: StallStats,
    /// Exits.
    pub exits: ExitStats,
    /// Its containers, by name.
    pub containers: Vec<ContainerStats>,
}

/// `GET /v1/pods`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PodList {
    /// Every pod known, by tier, then namespace, then name.
    pub pods: Vec<PodStats>,
}

/// Where pods come from, and how that is doing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceStats {
    /// `apiserver` or `file`.
    pub name: String,
    /// It has told everything that it has at least once.
    pub reported: bool,
    /// Pods that it tells of.
    pub pods: u64,
    /// Changes that it told, beginning with its first list.
    pub updates: u64,
    /// What keeps it from its work; what it told before stays in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// One QoS tier's cgroup: `kubepods` itself, `burstable` or `besteffort`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TierStats {
    /// `kubepods`, `burstable` or `besteffort`.
    pub name: String,
    /// The cgroup below the controllers' mount points.
    pub cgroup: String,
    /// CPU of everything below.
    pub cpu: CpuStats,
    /// Memory of everything below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStats>,
    /// The level at which the reactor acts, bytes; absent when nothing is armed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub armed_level_bytes: Option<u64>,
    /// How far its hard limit is from where `qosReserved` has it; absent without one, and in observe
    /// mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub convergence: Option<TierConvergence>,
}

/// How a tier's hard limit follows its target.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TierConvergence {
    /// What `qosReserved` leaves to the tier, bytes; absent while nothing limits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_bytes: Option<u64>,
    /// What the tier uses above that, bytes.
    pub gap_bytes: u64,
    /// The hard limit is the target.
    pub reached: bool,
    /// `memory.high` of the tier, bytes; absent without such a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high_bytes: Option<u64>,
    /// From when the pods became known that lowered the target last until a limit kept the tier, above
    /// it, from growing, nanoseconds; absent until that was needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap_nano_seconds: Option<u64>,
    /// Page cache that was dropped, bytes.
    pub reclaimed_bytes: u64,
    /// Steps taken since the agent started.
    pub steps: ConvergenceSteps,
}

/// How often each file of a tier was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConvergenceSteps {
    /// The hard limit.
    pub max: u64,
    /// `memory.high`.
    pub high: u64,
    /// `memory.reclaim`; on v1 the hard limit, to drop page cache.
    pub reclaim: u64,
}

/// What the kernel programs could not deliver, since the agent started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DropStats {
    /// Decision events lost because their ring was full.
    pub decisions: u64,
    /// Telemetry events lost because their ring was full (figures are counted in maps and stay right).
    pub telemetry: u64,
    /// Cgroups that found no free account.
    pub accounts: u64,
    /// Reclaim begins that found no free entry.
    pub stalls: u64,
    /// Context switches that the kernel did not trace; their CPU time is found by other means.
    pub untraced_switches: u64,
}

/// What the agent did to cgroups since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CgroupWrites {
    /// Cgroups made.
    pub created: u64,
    /// Values written and read back.
    pub updated: u64,
    /// Cgroups removed.
    pub removed: u64,
    /// Any of these refused, or read back as something else; also page cache that was to be dropped.
    pub failed: u64,
    /// Of the values written, those that undid what somebody else had written.
    pub corrected: u64,
}

/// One comparison of the whole tree with what it should be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReconcileStats {
    /// What the plan asked for.
    pub actions: u64,
    /// Values written.
    pub writes: u64,
    /// Operations that failed.
    pub failed: u64,
    /// How long carrying the plan out took.
    pub duration_nano_seconds: u64,
}

/// `GET /v1/node`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStats {
    /// `--node-name`, or the host's name.
    pub node_name: String,
    /// `observe` or `enforce`.
    pub mode: String,
    /// The profile that runs: `full`, `standard` or `sampling`.
    pub profile: String,
    /// `v1`, `hybrid` or `v2`.
    pub cgroup_version: String,
    /// `cgroupfs` or `systemd`.
    pub cgroup_driver: String,
    /// What this node cannot do, one sentence each.
    pub degradations: Vec<String>,
    /// When the agent started.
    pub start_time: String,
    /// When the figures were read.
    pub time: String,
    /// CPUs that are online.
    pub cpus: u32,
    /// Memory that pods may use, bytes.
    pub allocatable_memory_bytes: u64,
    /// kubepods and the two tiers.
    pub tiers: Vec<TierStats>,
    /// Lost events.
    pub drops: DropStats,
    /// What was done to cgroups.
    #[serde(default)]
    pub cgroup_writes: CgroupWrites,
    /// How often the whole tree was compared with what it should be.
    #[serde(default)]
    pub reconciles: u64,
    /// The last time; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_reconcile: Option<ReconcileStats>,
    /// What others wrote to files of ours.
    #[serde(default)]
    pub drift: DriftStats,
    /// The event log; absent where none is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_log: Option<EventLogStats>,
    /// What the API server is told of evictions; absent where it is told nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub marks: Option<MarkStats>,
    /// Where pods come from; empty where they are known from their cgroups alone.
    #[serde(default)]
    pub sources: Vec<SourceStats>,
    /// The container runtime; absent where none is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<RuntimeStats>,
}

/// The container runtime, and how the agent gets on with it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeStats {
    /// Its socket.
    pub endpoint: String,
    /// `containerd`, `cri-o`; absent until it has answered once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its version; absent likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// What keeps it from answering; what it told before stays in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// What the API server is told of evictions, and of the node's pressure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MarkStats {
    /// It has not been told yet.
    pub waiting: u64,
    /// It was told, since the agent started.
    pub delivered: u64,
    /// It will not be: the pod is gone, another has its name, or it refuses to be told; since the agent
    /// started.
    pub given_up: u64,
}

/// What others wrote to files that podwarden keeps, since the agent started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DriftStats {
    /// Cgroups whose files are watched; foreign writes to others are found by the timer.
    pub watched_cgroups: u64,
    /// Files that somebody keeps writing against podwarden, now.
    pub contested: u64,
    /// By property; those that nobody wrote are left out.
    pub properties: Vec<DriftCount>,
}

/// What others wrote to files of one property.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DriftCount {
    /// As in `explain`: `memory limit`, `cpu shares`.
    pub property: String,
    /// Foreign values that were replaced.
    pub corrected: u64,
    /// Foreign values that the kernel did not let podwarden replace.
    pub refused: u64,
    /// How often a file became contested.
    pub contests: u64,
}

/// One step of an eviction, all by `CLOCK_MONOTONIC`, nanoseconds.
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
    /// When the last SIGKILL was sent; absent in observe mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub killed_nanos: Option<u64>,
    /// When the victim's memory was seen freed; absent until then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub freed_nanos: Option<u64>,
}

/// One eviction, or in observe mode one that would have been.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Eviction {
    /// The victim (`pod` is the event's own field).
    #[serde(rename = "victim")]
    pub pod: PodRef,
    /// Its QoS class.
    pub qos_class: String,
    /// Whose level was crossed: `kubepods`, `burstable`, `besteffort`, or `node` for all that runs on the
    /// node; `pressure` where tasks waited for memory (the level is then that from which memory is
    /// short).
    pub scope: String,
    /// The level that was in force, bytes.
    pub level_bytes: u64,
    /// How far that was below the configured level because of how fast the scope filled, bytes.
    #[serde(default)]
    pub headroom_bytes: u64,
    /// How fast the scope was seen to fill, bytes per second.
    #[serde(default)]
    pub fill_bytes_per_second: u64,
    /// What noticed it first, as in `levelCrossed`.
    #[serde(default)]
    pub detected_by: String,
    /// Usage of the scope when it was verified, bytes.
    pub usage_bytes: u64,
    /// Usage of the victim when it was chosen, bytes.
    pub victim_usage_bytes: u64,
    /// Processes that were sent SIGKILL; 0 in observe mode. On v2 `cgroup.kill` does it and the
    /// count is that of the processes found just before.
    pub processes: u32,
    /// True in observe mode: nothing was done.
    pub dry_run: bool,
    /// Why this pod.
    pub reason: String,
    /// True when the agent ended before it saw what came of it: its successor found this in the event
    /// log.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// True when the API server is to be told of it: should the agent end before that, its successor
    /// does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub to_be_marked: bool,
    /// The kernel's number of the victim's cgroup: for as long as that is there, the pod is dead. Absent
    /// where it was not known any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub victim_cgroup_id: Option<u64>,
    /// The steps.
    pub timeline: EvictionTimeline,
}

/// What happened; `type` names the variant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "type",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum EventKind {
    /// A pod's cgroup appeared, or its manifest was read.
    PodAdded {
        /// Its class.
        qos_class: String,
    },
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
    /// A process ended.
    ProcessExit {
        /// Process id in the agent's namespace.
        pid: u32,
        /// `comm`.
        command: String,
        /// Exit code, when it ended by itself.
        #[serde(skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        /// Signal number, when a signal ended it.
        #[serde(skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
        /// True when the kernel's OOM killer chose it.
        oom_killed: bool,
        /// From start to end, nanoseconds.
        run_time_nanos: u64,
        /// Largest resident set, bytes.
        max_rss_bytes: u64,
    },
    /// The kernel's OOM killer chose a process.
    KernelOom {
        /// Its process id.
        pid: u32,
    },
    /// A level was crossed.
    LevelCrossed {
        /// As in an eviction.
        scope: String,
        /// The level, bytes.
        level_bytes: u64,
        /// Usage seen, bytes.
        usage_bytes: u64,
        /// Which source reported it: `charge`, `switch`, `eventfd`, `memory.events`, `psi-some`, `psi-full` or
        /// `sampler`.
        detected_by: String,
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
        /// As above.
        tier: String,
        /// As above.
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
    /// Somebody else changed a value that podwarden keeps.
    Drift {
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
    /// Somebody keeps changing a value: it is corrected at growing intervals from now on, at most once
    /// a minute in the end.
    DriftContested {
        /// As above.
        cgroup: String,
        /// As above.
        property: String,
        /// As above.
        found: String,
        /// What podwarden will write.
        wanted: String,
    },
    /// Nobody changes a value any more that was contested.
    DriftSettled {
        /// As above.
        cgroup: String,
        /// As above.
        property: String,
        /// How often it was corrected meanwhile.
        corrections: u32,
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
    /// What.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// Body of every answer with a status of 400 or above.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What is wrong and what to do about it.
    pub error: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_reads_back_as_it_was_written() {
        let pod = PodRef {
            name: "a".to_owned(),
            namespace: "b".to_owned(),
            uid: "c".to_owned(),
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
            assert_eq!(
                serde_json::from_str::<Event>(&text).unwrap(),
                event,
                "{text}"
            );
        }
    }
}
