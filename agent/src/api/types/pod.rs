//! Usage of a pod and its containers: `GET /v1/pods` and `GET /v1/pods/{uid}`.

use arcstr::ArcStr;
use podwarden_policy::PodUid;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// Which pod; the same triple as the Summary API's `podRef`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodRef {
    /// `metadata.name`, or the uid where only the cgroup is known.
    pub name: ArcStr,
    /// `metadata.namespace`; empty where only the cgroup is known.
    pub namespace: ArcStr,
    /// `metadata.uid` as it stands in the cgroup's name.
    pub uid: PodUid,
}

/// CPU time and how long runnable tasks waited for a CPU.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuStats {
    /// When the figures were read.
    pub time: ArcStr,
    /// CPU time since the cgroup was first seen, in nanoseconds.
    pub usage_core_nano_seconds: u64,
    /// CPU use over the last sampling window, in billionths of a core.
    pub usage_nano_cores: Option<u64>,
    /// Time that runnable tasks spent waiting for a CPU, in nanoseconds.
    pub run_queue_wait_nano_seconds: u64,
    /// How many waits; bucket `i` counts waits in `[2^i, 2^(i+1))` microseconds, bucket 0 also
    /// everything shorter, the last also everything longer.
    pub run_queue_wait_histogram: Vec<u64>,
    /// Context switches into the pod's tasks.
    pub context_switches: u64,
    /// How often its quota was reached; for a pod the sums of its own cgroup and its containers'. Absent where
    /// no cgroup has had a quota.
    pub throttling: Option<ThrottlingStats>,
}

/// How often a CPU quota was reached, from the kernel's `cpu.stat`, since the cgroup was made; a pod's has those of its
/// containers, also of those that have ended since the agent runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ThrottlingStats {
    /// Periods in which its tasks ran.
    pub periods: u64,
    /// Of these the periods at whose end tasks were throttled.
    pub throttled_periods: u64,
    /// How long they were throttled, summed over CPUs, nanoseconds.
    pub throttled_nano_seconds: u64,
}

/// Memory, from the memory controller.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryStats {
    /// When the figures were read.
    pub time: ArcStr,
    /// `memory.current` (v2) or `memory.usage_in_bytes` (v1).
    pub usage_bytes: u64,
    /// Usage minus `inactive_file`, never below 0, as cAdvisor computes it.
    pub working_set_bytes: u64,
    /// Anonymous memory: `anon` (v2) or `total_rss` (v1).
    pub rss_bytes: u64,
    /// Shared memory: volumes in memory, `/dev/shm` and what processes share, `shmem` (v2) or `total_shmem` (v1). That of
    /// an evicted pod's volumes is free once they are unmounted.
    #[serde(default)]
    pub shared_bytes: u64,
    /// The limit in force on this cgroup; absent when there is none.
    pub limit_bytes: Option<u64>,
    /// Highest usage since the cgroup was made, as the kernel saw it at every charge: `memory.peak` (v2) or
    /// `memory.max_usage_in_bytes` (v1, which another program may have reset). Absent where files are read.
    pub peak_bytes: Option<u64>,
    /// Highest usage since the time of `peakSince`; absent without that parameter.
    pub peak_since_bytes: Option<u64>,
    /// Page faults since the cgroup was made: `pgfault` (v2) or `total_pgfault` (v1). Absent where files are read.
    pub page_faults: Option<u64>,
    /// Of these the ones that waited for a disk: `pgmajfault` (v2) or `total_pgmajfault` (v1).
    pub major_page_faults: Option<u64>,
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

/// How long the tasks of a cgroup and of all below it waited (PSI, `Documentation/accounting/psi.rst` of the kernel), since
/// the cgroup was made: the totals of its `cpu.pressure`, `memory.pressure` and `io.pressure`, up to 2 s old.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PressureStats {
    /// For a CPU, also one that a quota kept from them.
    pub cpu: WaitedStats,
    /// For memory: reclaim, and pages that were read back.
    pub memory: WaitedStats,
    /// For disks.
    pub io: WaitedStats,
}

/// How long tasks waited for a resource. The kernel weighs CPUs by how long the tasks were not idle there: it never grows
/// faster than the clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitedStats {
    /// At least one of them, nanoseconds.
    pub some_nano_seconds: u64,
    /// All of them that were not idle, at the same time, nanoseconds. Absent for the CPU before Linux 5.13.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_nano_seconds: Option<u64>,
}

/// Processes that ended; processes, not threads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExitStats {
    pub total: u64,
    /// Those with a non-zero exit code.
    pub failed: u64,
    /// Those ended by a signal.
    pub signaled: u64,
    /// Those that the kernel's OOM killer chose.
    pub oom_killed: u64,
}

/// What was read from and written to disks, as handed to the topmost device, since the cgroup was first seen. Page cache
/// counts when it is read in and written back.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskStats {
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// Read operations, before the kernel splits and merges them.
    pub reads: u64,
    /// Write operations, flushes of a disk's own cache included.
    pub writes: u64,
    /// How long reads took; absent before the first is done, and where no kernel program times them.
    pub read_latency: Option<LatencyStats>,
    /// How long writes took, as of reads.
    pub write_latency: Option<LatencyStats>,
}

/// How long operations of disks took, from when they were handed to the topmost device until it had done them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LatencyStats {
    /// All of them, nanoseconds.
    pub total_nano_seconds: u64,
    /// How many; bucket `i` counts those that took `[2^i, 2^(i+1))` microseconds, bucket 0 also everything shorter, the
    /// last also everything longer.
    pub histogram: Vec<u64>,
}

/// Counters of a network interface (`/proc/net/dev`); names as in the kubelet's Summary API, and packets and drops.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceStats {
    pub name: String,
    pub rx_bytes: u64,
    pub rx_packets: u64,
    pub rx_errors: u64,
    pub rx_dropped: u64,
    pub tx_bytes: u64,
    pub tx_packets: u64,
    pub tx_errors: u64,
    pub tx_dropped: u64,
}

/// Network of a pod. `eth0` stands in the object itself, too, as in the kubelet's Summary API.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkStats {
    /// When the interfaces were read.
    pub time: ArcStr,
    #[serde(flatten)]
    pub default: Option<InterfaceStats>,
    /// The pod is in the node's network, whose interfaces count the whole node and are not listed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub host_network: bool,
    /// Every interface but `lo`, since it was made.
    pub interfaces: Vec<InterfaceStats>,
    /// TCP segments that the pod's sockets sent again; absent without a v2 mount, where sockets do not know their pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_retransmitted_segments: Option<u64>,
}

/// One container: a cgroup directly below its pod's.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStats {
    /// The container's name where a manifest or runtime told it, else its id.
    pub name: ArcStr,
    /// The runtime's id, or the cgroup's name.
    pub id: ArcStr,
    /// The runtime says that it is the pod's sandbox; it is called `POD` then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sandbox: bool,
    pub cpu: CpuStats,
    /// Memory; absent when the cgroup went away while it was read.
    pub memory: Option<MemoryStats>,
    /// Reclaim stalls.
    pub stall: StallStats,
    /// Waits for CPU, memory and disks; absent on cgroup v1, where the kernel runs without PSI, and where
    /// `cgroup.pressure` is 0.
    pub pressure: Option<PressureStats>,
    pub exits: ExitStats,
    /// Disk; absent where no kernel program counts it.
    pub disk: Option<DiskStats>,
    /// Its tasks now: threads, each of which counts against a limit on processes (`pids.current`); 5 s old at most.
    /// Absent without a pids controller.
    pub tasks: Option<u64>,
    /// Forks that a limit on processes refused, its own or one above it: `max` of `pids.events`, at most
    /// 5 s old. Absent where the kernel has no such file.
    pub refused_forks: Option<u64>,
}

/// Page cache that a pod gave back before anything needed it, since the agent started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProactiveReclaimStats {
    /// What its usage fell by in all steps.
    pub reclaimed_bytes: u64,
    /// Steps in which something was asked of the kernel.
    pub steps: u64,
    /// Pages that it read back, of those and of others.
    pub refaults: u64,
    /// What the last look found: `taken`, or why nothing was: `first`, `refaulted`, `resting`, `pressure`, `nothing`.
    pub last: String,
}

/// One pod with all that is below it.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStats {
    pub pod_ref: PodRef,
    /// `Guaranteed`, `Burstable` or `BestEffort`.
    pub qos_class: ArcStr,
    /// How podwarden knows of it: `apiserver`, `kubelet`, `manifest`, `runtime` or `cgroup`.
    pub source: ArcStr,
    /// `Running`, or `Evicted` once podwarden has killed it.
    pub phase: ArcStr,
    /// The pod's cgroup below the controllers' mount points.
    pub cgroup: ArcStr,
    pub cpu: CpuStats,
    /// Memory; absent when the cgroup went away while it was read.
    pub memory: Option<MemoryStats>,
    /// Reclaim stalls.
    pub stall: StallStats,
    /// Waits for CPU, memory and disks; absent on cgroup v1, where the kernel runs without PSI, and where
    /// `cgroup.pressure` is 0.
    pub pressure: Option<PressureStats>,
    pub exits: ExitStats,
    /// Disk; absent where no kernel program counts it.
    pub disk: Option<DiskStats>,
    /// Its tasks now, as of a container.
    pub tasks: Option<u64>,
    /// Forks of its containers that a limit on processes refused, at most 5 s old. On v1, and before Linux 6.11, those of
    /// cgroups inside containers and of containers that are gone are not in it.
    pub refused_forks: Option<u64>,
    /// Network; absent where it is switched off, and until a process of the pod has been found.
    pub network: Option<NetworkStats>,
    /// Page cache that it gave back; absent for a pod that is not asked.
    pub proactive_reclaim: Option<ProactiveReclaimStats>,
    /// Its containers, by name.
    pub containers: Vec<ContainerStats>,
}

/// `GET /v1/pods`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PodList {
    /// Every pod known, by tier, then namespace, then name.
    pub pods: Vec<PodStats>,
}
