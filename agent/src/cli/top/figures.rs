//! Two samples -> the figures of a row.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;

use arcstr::ArcStr;
use clap::ValueEnum;
use jiff::Timestamp;
use podwarden_policy::QosClass;
use serde::Serialize;
use serde_with::skip_serializing_none;

use crate::api::types::{
    DiskStats, ExitStats, InterfaceStats, MemoryStats, NetworkStats, NodeStats, PodRef, PodStats,
};

/// The agent's figures at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Sample {
    pub(super) node: NodeStats,
    pub(super) pods: Vec<PodStats>,
}

/// One pod's line. A rate is absent until two samples of the pod exist.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodRow {
    pub(super) pod_ref: PodRef,
    pub(super) qos_class: ArcStr,
    pub(super) phase: ArcStr,
    /// CPU use between the samples, billionths of a core.
    pub(super) usage_nano_cores: Option<u64>,
    pub(super) usage_bytes: Option<u64>,
    pub(super) working_set_bytes: Option<u64>,
    pub(super) rss_bytes: Option<u64>,
    pub(super) shared_bytes: Option<u64>,
    pub(super) limit_bytes: Option<u64>,
    /// Working set in percent of its limit, the highest of the pod and its containers; absent without a limit.
    pub(super) percent_of_limit: Option<u64>,
    /// Upper bound of the bucket that holds the 99th percentile of the waits between the samples;
    /// absent when there was none.
    pub(super) run_queue_wait_p99_nano_seconds: Option<u64>,
    /// Nanoseconds waited for a CPU in each second, all tasks together.
    pub(super) run_queue_wait_nanos_per_second: Option<u64>,
    /// Nanoseconds throttled by a CPU quota in each second, all CPUs together; absent without a quota.
    pub(super) throttled_nanos_per_second: Option<u64>,
    /// Nanoseconds spent in reclaim in each second, all tasks together.
    pub(super) stall_nanos_per_second: Option<u64>,
    pub(super) context_switches_per_second: Option<u64>,
    /// Absent where disk is not counted.
    pub(super) disk_read_bytes_per_second: Option<u64>,
    pub(super) disk_written_bytes_per_second: Option<u64>,
    /// Upper bound of the bucket with the 99th percentile of how long the disks took since the reading before.
    pub(super) disk_latency_p99_nano_seconds: Option<u64>,
    /// All interfaces together; absent for a pod in the node's network, and between two readings of its interfaces.
    pub(super) network_rx_bytes_per_second: Option<u64>,
    pub(super) network_tx_bytes_per_second: Option<u64>,
    pub(super) exits: ExitStats,
    pub(super) containers: usize,
}

/// From the one protected most to the one evicted first.
pub(super) const TIERS: [QosClass; 3] = [
    QosClass::Guaranteed,
    QosClass::Burstable,
    QosClass::BestEffort,
];

impl PodRow {
    pub(super) fn tier(&self) -> QosClass {
        let mut classes = TIERS.into_iter();
        let class = classes.find(|class| self.qos_class == class.as_str());
        class.unwrap_or(QosClass::BestEffort)
    }

    pub(super) fn evicted(&self) -> bool {
        self.phase == "Evicted"
    }
}

/// What comes first within a tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum SortKey {
    /// The busiest
    #[default]
    Cpu,
    /// The largest working set
    Memory,
    /// The longest in reclaim, then the longest waiting for a CPU
    Pressure,
    /// By namespace and name
    Name,
}

impl SortKey {
    pub(super) fn next(self) -> Self {
        let all = Self::value_variants();
        all[(self as usize + 1) % all.len()]
    }

    /// As the command line has it.
    pub(super) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// One row for each pod of `now`.
pub(super) fn rows(before: Option<&Sample>, now: &Sample) -> Vec<PodRow> {
    let before: HashMap<&str, &PodStats> = before
        .into_iter()
        // The counters of another agent process start anew.
        .filter(|before| before.node.start_time == now.node.start_time)
        .flat_map(|before| &before.pods)
        .map(|pod| (pod.pod_ref.uid.as_str(), pod))
        .collect();
    now.pods
        .iter()
        .map(|pod| row(before.get(pod.pod_ref.uid.as_str()).copied(), pod))
        .collect()
}

fn row(before: Option<&PodStats>, now: &PodStats) -> PodRow {
    let window = before.and_then(|before| {
        let nanos = elapsed(&before.cpu.time, &now.cpu.time)?;
        Some((before, nanos))
    });
    let rate = |of: fn(&PodStats) -> u64| {
        let (before, nanos) = window?;
        per_second(of(before), of(now), nanos)
    };
    let disk = |of: fn(&DiskStats) -> u64| {
        let (before, nanos) = window?;
        per_second(of(before.disk.as_ref()?), of(now.disk.as_ref()?), nanos)
    };
    let network = |of: fn(&InterfaceStats) -> u64| network_rate(before?, now, of);
    let memory = now.memory.as_ref();
    PodRow {
        pod_ref: now.pod_ref.clone(),
        qos_class: now.qos_class.clone(),
        phase: now.phase.clone(),
        usage_nano_cores: rate(|pod| pod.cpu.usage_core_nano_seconds).or(now.cpu.usage_nano_cores),
        usage_bytes: memory.map(|m| m.usage_bytes),
        working_set_bytes: memory.map(|m| m.working_set_bytes),
        rss_bytes: memory.map(|m| m.rss_bytes),
        shared_bytes: memory.map(|m| m.shared_bytes),
        limit_bytes: memory.and_then(|m| m.limit_bytes),
        percent_of_limit: percent_of_limit(now),
        run_queue_wait_p99_nano_seconds: window.and_then(|(before, _)| {
            p99(
                &before.cpu.run_queue_wait_histogram,
                &now.cpu.run_queue_wait_histogram,
            )
        }),
        run_queue_wait_nanos_per_second: rate(|pod| pod.cpu.run_queue_wait_nano_seconds),
        throttled_nanos_per_second: now.cpu.throttling.and_then(|_| {
            rate(|pod| {
                pod.cpu
                    .throttling
                    .unwrap_or_default()
                    .throttled_nano_seconds
            })
        }),
        stall_nanos_per_second: rate(|pod| {
            pod.stall.direct_reclaim_nano_seconds + pod.stall.memcg_reclaim_nano_seconds
        }),
        context_switches_per_second: rate(|pod| pod.cpu.context_switches),
        disk_read_bytes_per_second: disk(|disk| disk.read_bytes),
        disk_written_bytes_per_second: disk(|disk| disk.written_bytes),
        disk_latency_p99_nano_seconds: window.and_then(|(before, _)| {
            let before = before.disk.as_ref().map(disk_latencies).unwrap_or_default();
            p99(&before, &disk_latencies(now.disk.as_ref()?))
        }),
        network_rx_bytes_per_second: network(|of| of.rx_bytes),
        network_tx_bytes_per_second: network(|of| of.tx_bytes),
        exits: now.exits.clone(),
        containers: now.containers.iter().filter(|one| !one.sandbox).count(),
    }
}

/// The histogram of reads and writes together.
fn disk_latencies(disk: &DiskStats) -> Vec<u64> {
    let mut sum = Vec::new();
    for latency in [&disk.read_latency, &disk.write_latency] {
        let counts = latency.as_ref().map_or(&[][..], |of| &of.histogram);
        sum.resize(sum.len().max(counts.len()), 0);
        for (sum, count) in sum.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    sum
}

/// See [`PodRow::percent_of_limit`].
fn percent_of_limit(pod: &PodStats) -> Option<u64> {
    let containers = pod.containers.iter().map(|one| one.memory.as_ref());
    let all = containers.chain([pod.memory.as_ref()]).flatten();
    let percent = |m: &MemoryStats| percent(m.working_set_bytes, m.limit_bytes);
    all.filter_map(percent).max()
}

/// `used` in percent of `limit`, rounded up; `None` without a limit.
pub(super) fn percent(used: u64, limit: Option<u64>) -> Option<u64> {
    let limit = u128::from(limit?);
    let percent = (u128::from(used) * 100).checked_next_multiple_of(limit)? / limit;
    u64::try_from(percent).ok()
}

fn per_second(before: u64, now: u64, nanos: u64) -> Option<u64> {
    let delta = now.checked_sub(before)?;
    let per_second = u128::from(delta) * 1_000_000_000 / u128::from(nanos);
    u64::try_from(per_second).ok()
}

/// Of all interfaces; they are read at times of their own.
fn network_rate(before: &PodStats, now: &PodStats, of: fn(&InterfaceStats) -> u64) -> Option<u64> {
    let (before, now) = (before.network.as_ref()?, now.network.as_ref()?);
    if now.host_network {
        return None;
    }
    let sum = |of_pod: &NetworkStats| of_pod.interfaces.iter().map(of).sum();
    per_second(sum(before), sum(now), elapsed(&before.time, &now.time)?)
}

/// Nanoseconds between two readings; `None` when they are one and the same.
fn elapsed(before: &str, now: &str) -> Option<u64> {
    let from: Timestamp = before.parse().ok()?;
    let to: Timestamp = now.parse().ok()?;
    let nanos = to.duration_since(from).as_nanos();
    u64::try_from(nanos).ok().filter(|nanos| *nanos > 0)
}

/// Upper bound, in nanoseconds, of the log2 bucket with the 99th percentile of what was added
/// between two histograms (bucket `i` ends at `2^(i+1)` us). The last bucket has no end; its
/// nominal one is given.
pub(super) fn p99(before: &[u64], now: &[u64]) -> Option<u64> {
    let added = |i: usize, n: u64| n.saturating_sub(before.get(i).copied().unwrap_or(0));
    let total: u64 = now.iter().enumerate().map(|(i, &n)| added(i, n)).sum();
    // The rank that at least 99 % of the waits do not exceed.
    let rank = (total * 99).div_ceil(100).max(1);
    let mut seen = 0;
    now.iter().enumerate().find_map(|(i, &n)| {
        seen += added(i, n);
        let shift = u32::try_from(i + 1).ok()?;
        (seen >= rank).then(|| {
            1u64.checked_shl(shift)
                .unwrap_or(u64::MAX)
                .saturating_mul(1000)
        })
    })
}

/// By tier, within a tier by `key`, ties by name.
pub(super) fn sort(rows: &mut [PodRow], key: SortKey) {
    rows.sort_by(|a, b| {
        b.tier()
            .cmp(&a.tier())
            .then_with(|| by(key, a, b))
            .then_with(|| identity(a).cmp(&identity(b)))
    });
}

fn by(key: SortKey, a: &PodRow, b: &PodRow) -> Ordering {
    // What is unknown comes last, after a known nothing.
    match key {
        SortKey::Cpu => Reverse(a.usage_nano_cores).cmp(&Reverse(b.usage_nano_cores)),
        SortKey::Memory => Reverse(a.working_set_bytes).cmp(&Reverse(b.working_set_bytes)),
        SortKey::Pressure => {
            let pressure = |row: &PodRow| {
                (
                    Reverse(row.stall_nanos_per_second),
                    Reverse(row.run_queue_wait_nanos_per_second),
                )
            };
            pressure(a).cmp(&pressure(b))
        }
        SortKey::Name => Ordering::Equal,
    }
}

fn identity(row: &PodRow) -> (&str, &str, &str) {
    let pod = &row.pod_ref;
    (&pod.namespace, &pod.name, &pod.uid)
}
