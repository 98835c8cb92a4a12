//! Which columns fit, and how a line of them reads.

use podwarden_policy::QosClass;
use strum::VariantArray as _;

use super::{
    columns::{Column, Tone},
    figures::PodRow,
};
use crate::{
    api::types::{MemoryStats, NodeStats, TierStats},
    cli::{best_effort, events::text, output},
};

/// Below this a pod's name says nothing.
const SHORTEST_NAME: usize = 20;
/// A name this long and longer gives way to figures.
const LONGEST_NAME: usize = 60;
/// Before a pod's name: whether it was evicted.
const MARK: usize = 2;
/// Space between columns.
const GAP: usize = 1;

/// Columns with the width of the pod's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) name: usize,
    pub(super) columns: Vec<Column>,
}

/// One line: parts with their tone, padded.
pub(super) type Cells = Vec<(String, Tone)>;

impl Layout {
    /// Everything, names in full: for files and pipes.
    pub(super) fn unlimited(rows: &[PodRow], wide: bool) -> Self {
        let longest = rows.iter().map(|row| name(row).chars().count()).max();
        Self {
            name: (longest.unwrap_or(0) + MARK).max(SHORTEST_NAME),
            columns: all(wide),
        }
    }

    /// What fits in `width` characters: the least needed columns go until the names have room.
    pub(super) fn fitting(width: usize, wide: bool) -> Self {
        let mut columns = all(wide);
        for least in Column::LEAST_NEEDED {
            if taken(&columns) + SHORTEST_NAME + SHORTEST_NAME / 2 <= width {
                break;
            }
            columns.retain(|column| *column != least);
        }
        let left = width.saturating_sub(taken(&columns));
        Self {
            name: left.min(LONGEST_NAME),
            columns,
        }
    }

    pub(super) fn titles(&self) -> String {
        let mut line = fit("  POD", self.name);
        for column in &self.columns {
            line.push_str(&align(*column, column.title()));
        }
        line
    }

    /// A pod's line.
    pub(super) fn pod(&self, row: &PodRow) -> Cells {
        let (mark, tone) = match row.evicted() {
            true => ("x ", Tone::Alert),
            false => ("  ", Tone::Plain),
        };
        let mut cells = vec![(fit(&format!("{mark}{}", name(row)), self.name), tone)];
        for column in &self.columns {
            let (text, tone) = column.cell(row);
            cells.push((align(*column, &text), tone));
        }
        cells
    }

    /// A tier's line: its own cgroup's figures where it has one, else the sum of its pods'.
    pub(super) fn tier(&self, tier: QosClass, rows: &[PodRow], node: &NodeStats) -> String {
        let pods: Vec<_> = rows.iter().filter(|row| row.tier() == tier).collect();
        let own = tier.tier().and_then(|name| find(node, name));
        let sum = |of: fn(&PodRow) -> Option<u64>| {
            let known: Vec<u64> = pods.iter().filter_map(|row| of(row)).collect();
            (!known.is_empty()).then(|| known.iter().sum::<u64>())
        };
        let memory = own.and_then(|tier| tier.memory.as_ref());
        let own_or_sum =
            |of: fn(&MemoryStats) -> u64, of_pod| memory.map(of).or_else(|| sum(of_pod));
        let total = PodRow {
            usage_nano_cores: sum(|row| row.usage_nano_cores),
            usage_bytes: own_or_sum(|m| m.usage_bytes, |row| row.usage_bytes),
            working_set_bytes: own_or_sum(|m| m.working_set_bytes, |row| row.working_set_bytes),
            rss_bytes: own_or_sum(|m| m.rss_bytes, |row| row.rss_bytes),
            shared_bytes: own_or_sum(|m| m.shared_bytes, |row| row.shared_bytes),
            limit_bytes: memory.and_then(|m| m.limit_bytes),
            run_queue_wait_nanos_per_second: sum(|row| row.run_queue_wait_nanos_per_second),
            throttled_nanos_per_second: sum(|row| row.throttled_nanos_per_second),
            stall_nanos_per_second: sum(|row| row.stall_nanos_per_second),
            context_switches_per_second: sum(|row| row.context_switches_per_second),
            disk_read_bytes_per_second: sum(|row| row.disk_read_bytes_per_second),
            disk_written_bytes_per_second: sum(|row| row.disk_written_bytes_per_second),
            network_rx_bytes_per_second: sum(|row| row.network_rx_bytes_per_second),
            network_tx_bytes_per_second: sum(|row| row.network_tx_bytes_per_second),
            ..PodRow::default()
        };
        let armed = own
            .and_then(|tier| tier.armed_level_bytes)
            .map(|level| format!(" acts at {}", output::bytes(level)))
            .unwrap_or_default();
        let gap = own
            .and_then(|tier| tier.convergence.as_ref())
            .filter(|convergence| convergence.gap_bytes > 0)
            .map(|c| format!(", {} above its reserve", output::bytes(c.gap_bytes)))
            .unwrap_or_default();
        let mut line = fit(
            &format!("{} ({}){armed}{gap}", tier.as_str(), pods.len()),
            self.name,
        );
        for column in &self.columns {
            let text = match column {
                // Percentiles and identities do not add up.
                Column::WaitP99 | Column::DiskP99 | Column::Uid => String::new(),
                Column::Exits => exits(&pods),
                Column::Containers => pods.iter().map(|p| p.containers).sum::<usize>().to_string(),
                column => column.cell(&total).0,
            };
            line.push_str(&align(*column, &text));
        }
        line
    }
}

fn exits(pods: &[&PodRow]) -> String {
    let sum = |of: fn(&PodRow) -> u64| pods.iter().map(|row| of(row)).sum::<u64>();
    format!(
        "{}/{}/{}",
        sum(|row| row.exits.total),
        sum(|row| row.exits.failed),
        sum(|row| row.exits.signaled)
    )
}

/// A tier's cgroup in the node's figures.
pub(super) fn find<'a>(node: &'a NodeStats, name: &str) -> Option<&'a TierStats> {
    node.tiers.iter().find(|tier| tier.name == name)
}

/// One line about the whole: where, how, and how full.
pub(super) fn summary(node: &NodeStats) -> String {
    let mut line = format!(
        "{}  {}, {} profile, cgroup {}/{}, {} CPUs",
        output::printable(&node.node_name),
        node.mode,
        node.profile,
        node.cgroup_version,
        node.cgroup_driver,
        node.cpus,
    );
    let drops = &node.kernel_drops;
    let lost = drops.decisions + drops.telemetry + drops.accounts + drops.stalls;
    if lost > 0 {
        line.push_str(&format!(", {lost} events lost"));
    }
    line
}

/// One line about kubepods' memory.
pub(super) fn memory(node: &NodeStats) -> String {
    let kubepods = find(node, "kubepods");
    let used = kubepods.and_then(|tier| tier.memory.as_ref());
    let mut line = format!(
        "memory  {} of {} allocatable in use",
        used.map_or_else(|| "-".to_owned(), |m| output::bytes(m.usage_bytes)),
        output::bytes(node.allocatable_memory_bytes),
    );
    if let Some(limit) = used.and_then(|m| m.limit_bytes) {
        line.push_str(&format!(", limit {}", output::bytes(limit)));
    }
    if let Some(level) = kubepods.and_then(|tier| tier.armed_level_bytes) {
        line.push_str(&format!(", acts at {}", output::bytes(level)));
    }
    if let Some(reclaimed) = &node.reclaimed {
        let batch = reclaimed.batch;
        let memory = output::bytes(batch.memory_bytes);
        line.push_str(&format!(", batch {}m and {memory}", batch.cpu_milli));
    }
    line
}

/// One line about what best effort may use of the CPU, and why; `None` where nothing holds it back.
pub(super) fn best_effort(node: &NodeStats) -> Option<String> {
    best_effort::cpu(node.best_effort_cpu.as_ref()?)
}

fn name(row: &PodRow) -> String {
    text::name(&row.pod_ref)
}

fn all(wide: bool) -> Vec<Column> {
    match wide {
        true => Column::VARIANTS.to_vec(),
        false => Column::USUAL.to_vec(),
    }
}

fn taken(columns: &[Column]) -> usize {
    columns.iter().map(|column| column.width() + GAP).sum()
}

/// Right-aligned behind a gap; a uid is a text and stands left.
fn align(column: Column, text: &str) -> String {
    let width = column.width();
    match column {
        Column::Uid => format!("{:GAP$}{text:<width$}", ""),
        _ => format!("{:GAP$}{text:>width$}", ""),
    }
}

/// Exactly `width` characters: padded, or cut with a mark.
pub(super) fn fit(text: &str, width: usize) -> String {
    format!("{:<width$}", output::clipped(text, width))
}
