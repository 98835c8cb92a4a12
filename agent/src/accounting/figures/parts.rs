//! Figures in the API's types.

use arcstr::{ArcStr, literal};
use podwarden_abi::{Account, LatencyAccount, MemoryItem};
use podwarden_cgroup::{CgroupPath, MemoryStat, Throttling, Tree};
use podwarden_policy::QosClass;

use crate::{
    accounting::walked::{self, WalkedMemory},
    api::types::{DiskStats, ExitStats, LatencyStats, MemoryStats, StallStats, ThrottlingStats},
};

/// A class's name; the copies take no memory.
pub(super) fn class_text(class: QosClass) -> ArcStr {
    match class {
        QosClass::Guaranteed => literal!("Guaranteed"),
        QosClass::Burstable => literal!("Burstable"),
        QosClass::BestEffort => literal!("BestEffort"),
    }
}

pub(super) fn memory_stats(
    time: &ArcStr,
    usage: u64,
    stat: MemoryStat,
    limit: Option<u64>,
) -> MemoryStats {
    MemoryStats {
        time: time.clone(),
        usage_bytes: usage,
        working_set_bytes: stat.working_set(usage),
        rss_bytes: stat.rss,
        shared_bytes: stat.shmem,
        limit_bytes: limit,
        ..MemoryStats::default()
    }
}

/// From a record of the kernel's pass.
pub(super) fn walked_memory(time: &ArcStr, walked: WalkedMemory<'_>) -> MemoryStats {
    let record = walked.record;
    let (usage, stat) = (walked::bytes(record.usage_pages), walked::stat(record));
    let faults = |item: MemoryItem| walked.faults.then_some(record.items[item as usize]);
    MemoryStats {
        peak_bytes: Some(walked::bytes(record.peak_pages)),
        page_faults: faults(MemoryItem::Faults),
        major_page_faults: faults(MemoryItem::MajorFaults),
        ..memory_stats(time, usage, stat, walked::limit(record))
    }
}

/// `None` where no quota has had a period.
pub(super) fn throttling(figures: Throttling) -> Option<ThrottlingStats> {
    (figures.periods > 0).then_some(ThrottlingStats {
        periods: figures.periods,
        throttled_periods: figures.throttled_periods,
        throttled_nano_seconds: figures.throttled_nanos,
    })
}

/// A cgroup's path below the controllers' mount points.
pub(super) fn below_mount(tree: &Tree, path: &CgroupPath) -> String {
    match tree.root() {
        "" => format!("/{path}"),
        root => format!("/{root}/{path}"),
    }
}

pub(super) fn stall(account: &Account) -> StallStats {
    StallStats {
        direct_reclaim_nano_seconds: account.direct_stall_ns,
        memcg_reclaim_nano_seconds: account.memcg_stall_ns,
    }
}

pub(super) fn disk(account: &Account) -> DiskStats {
    let disk = account.disk;
    DiskStats {
        read_bytes: disk.read_bytes,
        written_bytes: disk.written_bytes,
        reads: disk.reads,
        writes: disk.writes,
        read_latency: latency(&disk.read_latency),
        write_latency: latency(&disk.write_latency),
    }
}

/// `None` where nothing has been timed: most pods leave the disks alone.
fn latency(of: &LatencyAccount) -> Option<LatencyStats> {
    let timed = of.hist.iter().any(|count| *count > 0);
    timed.then(|| LatencyStats {
        total_nano_seconds: of.total_ns,
        histogram: of.hist.to_vec(),
    })
}

pub(super) fn exits(account: &Account) -> ExitStats {
    ExitStats {
        total: account.exits,
        failed: account.exits_failed,
        signaled: account.exits_signaled,
        oom_killed: account.exits_oom,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::KnownBy;

    #[test]
    fn classes_and_origins_have_their_names() {
        for class in QosClass::ALL {
            assert_eq!(class_text(class), class.as_str());
        }
        for known_by in KnownBy::ALL {
            assert_eq!(known_by.text(), known_by.as_str());
        }
    }
}
