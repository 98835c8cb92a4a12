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

/// Figures of one line of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    Exits,
    Containers,
    Switches,
    DiskRead,
    DiskWritten,
    DiskP99,
    Received,
    Sent,
    Uid,
}

/// A wait this long shows in response times.
const LONG_WAIT: u64 = 20_000_000;
/// A disk this slow is overloaded, whatever it is made of.
const SLOW_DISK: u64 = 100_000_000;
/// A tenth of a second in each second.
const MUCH_STALL: u64 = 100_000_000;

impl Column {
    /// In the order of the table.
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
    /// With `-o wide`.
    pub(super) const WIDE: [Self; 19] = [
        Self::Cpu,
        Self::Usage,
        Self::WorkingSet,
        Self::Rss,
        Self::Shared,
        Self::Limit,
        Self::WaitP99,
        Self::Wait,
        Self::Throttled,
        Self::Stall,
        Self::Switches,
        Self::DiskRead,
        Self::DiskWritten,
        Self::DiskP99,
        Self::Received,
        Self::Sent,
        Self::Exits,
        Self::Containers,
        Self::Uid,
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

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Usage => "MEM",
            Self::WorkingSet => "WS",
            Self::Rss => "RSS",
            Self::Shared => "SHMEM",
            Self::Limit => "LIMIT",
            Self::WaitP99 => "P99",
            Self::Wait => "WAIT",
            Self::Throttled => "THROT",
            Self::Stall => "STALL",
            Self::Exits => "EXITS",
            Self::Containers => "CT",
            Self::Switches => "CSW/s",
            Self::DiskRead => "DISK-R",
            Self::DiskWritten => "DISK-W",
            Self::DiskP99 => "DISK99",
            Self::Received => "NET-RX",
            Self::Sent => "NET-TX",
            Self::Uid => "UID",
        }
    }

    /// In characters, without the gap before it.
    pub(super) fn width(self) -> usize {
        match self {
            Self::Cpu | Self::Wait | Self::Throttled | Self::Stall => 6,
            Self::Usage
            | Self::WorkingSet
            | Self::Rss
            | Self::Shared
            | Self::Limit
            | Self::WaitP99
            | Self::DiskRead
            | Self::DiskWritten
            | Self::DiskP99
            | Self::Received
            | Self::Sent => 7,
            Self::Exits => 11,
            Self::Containers => 3,
            Self::Switches => 8,
            Self::Uid => 36,
        }
    }

    pub(super) fn cell(self, row: &PodRow) -> (String, Tone) {
        match self {
            Self::Cpu => known(row.usage_nano_cores, output::cores, |_| Tone::Plain),
            Self::Usage => bytes(row.usage_bytes),
            Self::WorkingSet => {
                let own = |used| figures::percent(used, row.limit_bytes);
                known(row.working_set_bytes, output::bytes, |used| {
                    match own(used).max(row.percent_of_limit) {
                        Some(96..) => Tone::Alert,
                        Some(80..) => Tone::Warn,
                        _ => Tone::Plain,
                    }
                })
            }
            Self::Rss => bytes(row.rss_bytes),
            Self::Shared => bytes(row.shared_bytes),
            Self::Limit => bytes(row.limit_bytes),
            Self::WaitP99 => known(row.run_queue_wait_p99_nano_seconds, bound, |nanos| {
                above(nanos, LONG_WAIT)
            }),
            Self::Wait => known(
                row.run_queue_wait_nanos_per_second,
                output::millis_per_second,
                |_| Tone::Plain,
            ),
            Self::Throttled => known(
                row.throttled_nanos_per_second,
                output::millis_per_second,
                |nanos| above(nanos, MUCH_STALL),
            ),
            Self::Stall => known(
                row.stall_nanos_per_second,
                output::millis_per_second,
                |nanos| above(nanos, MUCH_STALL),
            ),
            Self::Exits => exits(row),
            Self::Containers => (row.containers.to_string(), Tone::Plain),
            Self::Switches => known(
                row.context_switches_per_second,
                |n| n.to_string(),
                |_| Tone::Plain,
            ),
            Self::DiskRead => bytes(row.disk_read_bytes_per_second),
            Self::DiskWritten => bytes(row.disk_written_bytes_per_second),
            Self::DiskP99 => known(row.disk_latency_p99_nano_seconds, bound, |nanos| {
                above(nanos, SLOW_DISK)
            }),
            Self::Received => bytes(row.network_rx_bytes_per_second),
            Self::Sent => bytes(row.network_tx_bytes_per_second),
            Self::Uid => (output::printable(&row.pod_ref.uid), Tone::Dim),
        }
    }
}

fn known(
    value: Option<u64>,
    text: impl FnOnce(u64) -> String,
    tone: impl FnOnce(u64) -> Tone,
) -> (String, Tone) {
    match value {
        None => ("-".to_owned(), Tone::Dim),
        Some(0) => (text(0), Tone::Dim),
        Some(value) => (text(value), tone(value)),
    }
}

fn bytes(value: Option<u64>) -> (String, Tone) {
    known(value, output::bytes, |_| Tone::Plain)
}

fn above(value: u64, level: u64) -> Tone {
    if value > level {
        Tone::Warn
    } else {
        Tone::Plain
    }
}

/// A power of two of microseconds, to the nearest unit: `<32us`, `<33ms`.
fn bound(nanos: u64) -> String {
    match nanos / 1000 {
        us @ 0..1000 => format!("<{us}us"),
        us @ 1000..1_000_000 => format!("<{}ms", us.div_ceil(1000)),
        us => format!("<{}s", us.div_ceil(1_000_000)),
    }
}

fn exits(row: &PodRow) -> (String, Tone) {
    let exits = &row.exits;
    let text = format!("{}/{}/{}", exits.total, exits.failed, exits.signaled);
    let tone = match exits {
        e if e.oom_killed > 0 => Tone::Alert,
        e if e.total == 0 => Tone::Dim,
        _ => Tone::Plain,
    };
    (text, tone)
}
