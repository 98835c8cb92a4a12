//! What Prometheus's client libraries say of every process.

use std::fs;

use nix::{
    sys::resource::{UsageWho, getrusage},
    unistd::{SysconfVar, sysconf},
};

use super::{
    family::{Family, labels},
    text::Text,
};

/// Microseconds in a second.
const MICROS: f64 = 1e6;

/// A figure that cannot be read has no series.
pub(super) fn write(text: &mut Text, start_time: &str) {
    let none = labels([]);
    if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
        let (user, system) = (usage.user_time(), usage.system_time());
        let seconds = (user.tv_sec() + system.tv_sec()) as f64
            + (user.tv_usec() + system.tv_usec()) as f64 / MICROS;
        Family::counter(
            text,
            "process_cpu_seconds_total",
            "Total user and system CPU time spent in seconds.",
        )
        .add(&none, seconds);
    }
    if let Some(bytes) = resident() {
        Family::gauge(
            text,
            "process_resident_memory_bytes",
            "Resident memory size in bytes.",
        )
        .add(&none, bytes);
    }
    if let Some(files) = open_files() {
        Family::gauge(text, "process_open_fds", "Number of open file descriptors.")
            .add(&none, files);
    }
    if let Ok(start) = start_time.parse::<jiff::Timestamp>() {
        Family::gauge(
            text,
            "process_start_time_seconds",
            "Start time of the process since unix epoch in seconds.",
        )
        .add(&none, start.as_microsecond() as f64 / MICROS);
    }
}

/// From Linux 6.2 on the directory's size is their number (`proc_fd_getattr`, fs/proc/fd.c), before it is 0.
fn open_files() -> Option<u64> {
    const DESCRIPTORS: &str = "/proc/self/fd";
    match fs::metadata(DESCRIPTORS).ok()?.len() {
        // One of them reads the directory.
        0 => Some((fs::read_dir(DESCRIPTORS).ok()?.count() as u64).saturating_sub(1)),
        open => Some(open),
    }
}

/// The second figure of `/proc/self/statm` (proc_pid_statm(5)) counts resident pages.
fn resident() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    let page = sysconf(SysconfVar::PAGE_SIZE).ok()??;
    pages.checked_mul(u64::try_from(page).ok()?)
}
