//! The columns: title, width, cells.

use super::figures::{self, PodRow};
use crate::cli::output;

/// How a cell stands out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    /// Zero or unknown.
    Dim,
    /// Worth a look.
    Warn,
    /// A process was OOM-killed, or the figures are old.
    Alert,
}

/// The text in one column of a row, and how it stands out.
type Cell = (String, Tone);

/// Figures of one line of the table, in its order. All are shown with `-o wide`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::VariantArray)]
pub(super) enum Column {
    Cpu,
    Usage,
    WorkingSet,
    Rss,
    Shared,
    Limit,
    WaitP99,
    Wait,
    Throttled,
    Stall,
    Switches,
    DiskRead,
    DiskWritten,
    DiskP99,
    Received,
    Sent,
    Exits,
    Containers,
    Uid,
}

/// A wait this long shows in response times.
const LONG_WAIT: u64 = 20_000_000;
/// A disk this slow is overloaded, whatever it is made of.
const SLOW_DISK: u64 = 100_000_000;
/// A tenth of a second in each second.
const MUCH_STALL: u64 = 100_000_000;

impl Column {
    /// Without `-o wide`.
    pub(super) const USUAL: [Self; 9] = [
        Self::Cpu,
        Self::Usage,
        Self::WorkingSet,
        Self::Limit,
        Self::WaitP99,
        Self::Wait,
        Self::Stall,
        Self::Exits,
        Self::Containers,
    ];
    /// Which go first on a narrow terminal.
    pub(super) const LEAST_NEEDED: [Self; 16] = [
        Self::Uid,
        Self::DiskRead,
        Self::DiskWritten,
        Self::DiskP99,
        Self::Received,
        Self::Sent,
        Self::Switches,
        Self::Throttled,
        Self::Shared,
        Self::Rss,
        Self::Containers,
        Self::WaitP99,
        Self::Usage,
        Self::Exits,
        Self::Limit,
        Self::Stall,
    ];

    /// Title, width in characters without the gap before it, and cell.
    #[rustfmt::skip]
    fn look(self) -> (&'static str, usize, fn(&PodRow) -> Cell) {
        match self {
            Self::Cpu => ("CPU", 6, |row| known(row.usage_nano_cores, output::cores, plain)),
            Self::Usage => ("MEM", 7, |row| bytes(row.usage_bytes)),
            Self::WorkingSet => ("WS", 7, working_set),
            Self::Rss => ("RSS", 7, |row| bytes(row.rss_bytes)),
            Self::Shared => ("SHMEM", 7, |row| bytes(row.shared_bytes)),
            Self::Limit => ("LIMIT", 7, |row| bytes(row.limit_bytes)),
            Self::WaitP99 => ("P99", 7, |row| known(row.run_queue_wait_p99_nano_seconds, bound, above(LONG_WAIT))),
            Self::Wait => ("WAIT", 6, |row| share(row.run_queue_wait_nanos_per_second, plain)),
            Self::Throttled => ("THROT", 6, |row| share(row.throttled_nanos_per_second, above(MUCH_STALL))),
            Self::Stall => ("STALL", 6, |row| share(row.stall_nanos_per_second, above(MUCH_STALL))),
            Self::Exits => ("EXITS", 11, exits),
            Self::Containers => ("CT", 3, |row| (row.containers.to_string(), Tone::Plain)),
            Self::Switches => ("CSW/s", 8, |row| known(row.context_switches_per_second, |n| n.to_string(), plain)),
            Self::DiskRead => ("DISK-R", 7, |row| bytes(row.disk_read_bytes_per_second)),
            Self::DiskWritten => ("DISK-W", 7, |row| bytes(row.disk_written_bytes_per_second)),
            Self::DiskP99 => ("DISK99", 7, |row| known(row.disk_latency_p99_nano_seconds, bound, above(SLOW_DISK))),
            Self::Received => ("NET-RX", 7, |row| bytes(row.network_rx_bytes_per_second)),
            Self::Sent => ("NET-TX", 7, |row| bytes(row.network_tx_bytes_per_second)),
            Self::Uid => ("UID", 36, |row| (output::printable(&row.pod_ref.uid), Tone::Dim)),
        }
    }

    pub(super) fn title(self) -> &'static str {
        self.look().0
    }

    pub(super) fn width(self) -> usize {
        self.look().1
    }

    pub(super) fn cell(self, row: &PodRow) -> Cell {
        self.look().2(row)
    }
}

fn known(
    value: Option<u64>,
    text: impl FnOnce(u64) -> String,
    tone: impl FnOnce(u64) -> Tone,
) -> Cell {
    match value {
        None => ("-".to_owned(), Tone::Dim),
        Some(0) => (text(0), Tone::Dim),
        Some(value) => (text(value), tone(value)),
    }
}

fn bytes(value: Option<u64>) -> Cell {
    known(value, output::bytes, plain)
}

/// Of each second.
fn share(nanos: Option<u64>, tone: impl FnOnce(u64) -> Tone) -> Cell {
    known(nanos, output::millis_per_second, tone)
}

fn plain(_: u64) -> Tone {
    Tone::Plain
}

fn above(level: u64) -> impl FnOnce(u64) -> Tone {
    move |value| match value > level {
        true => Tone::Warn,
        false => Tone::Plain,
    }
}

fn working_set(row: &PodRow) -> Cell {
    known(
        row.working_set_bytes,
        output::bytes,
        |used| match figures::percent(used, row.limit_bytes).max(row.percent_of_limit) {
            Some(96..) => Tone::Alert,
            Some(80..) => Tone::Warn,
            _ => Tone::Plain,
        },
    )
}

/// A power of two of microseconds, to the nearest unit: `<32us`, `<33ms`.
fn bound(nanos: u64) -> String {
    match nanos / 1000 {
        us @ 0..1000 => format!("<{us}us"),
        us @ 1000..1_000_000 => format!("<{}ms", us.div_ceil(1000)),
        us => format!("<{}s", us.div_ceil(1_000_000)),
    }
}

fn exits(row: &PodRow) -> Cell {
    let exits = &row.exits;
    let text = format!("{}/{}/{}", exits.total, exits.failed, exits.signaled);
    let tone = match exits {
        e if e.oom_killed > 0 => Tone::Alert,
        e if e.total == 0 => Tone::Dim,
        _ => Tone::Plain,
    };
    (text, tone)
}
