//! cgroups-rs, which Kata Containers stands on: it puts workloads into their cgroups, and reads settings as a
//! second opinion beside this harness and the project's own crate.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use cgroups_rs::cpu::CpuController;
use cgroups_rs::memory::MemController;
use cgroups_rs::pid::PidController;
use cgroups_rs::{CgroupPid, Controller as _, MaxValue};

/// Moves a process into the cgroup of one hierarchy.
pub(super) fn attach(dir: &Path, pid: u32) -> Result<()> {
    // Every controller writes the same `cgroup.procs`.
    let any = PidController::new(dir.to_owned(), false);
    any.add_task_by_tgid(&CgroupPid::from(u64::from(pid)))
        .with_context(|| format!("move process {pid} to {}", dir.display()))
}

/// Limits the number of processes in a cgroup and below it.
pub(super) fn limit_pids(dir: &Path, limit: i64) -> Result<()> {
    let pids = PidController::new(dir.to_owned(), false);
    pids.set_pid_max(MaxValue::Value(limit))
        .with_context(|| format!("limit the processes of {}", dir.display()))
}

/// Fails where cgroups-rs reads another value from a file than `found`, which is in the spelling of
/// [`super::values`].
pub(super) fn agrees(dir: &Path, file: &str, found: &str) -> Result<()> {
    if let Some(value) = read(dir, file).with_context(|| format!("cgroups-rs reads {file}"))? {
        ensure!(
            value == found,
            "{file} of {} holds {found}, cgroups-rs reads {value}",
            dir.display()
        );
    }
    Ok(())
}

/// `None` for files that cgroups-rs does not read.
fn read(dir: &Path, file: &str) -> Result<Option<String>> {
    let cpu = |v2| CpuController::new(dir.to_owned(), v2);
    let memory = |v2| MemController::new(dir.to_owned(), v2);
    Ok(match file {
        "cpu.shares" => Some(cpu(false).shares()?.to_string()),
        "cpu.weight" => Some(cpu(true).shares()?.to_string()),
        "cpu.cfs_quota_us" | "cpu.max" => {
            let cpu = cpu(file == "cpu.max");
            Some(match cpu.cfs_quota()? {
                quota if quota < 0 => "max".to_owned(),
                quota => format!("{quota} {}", cpu.cfs_period()?),
            })
        }
        "memory.limit_in_bytes" => Some(match memory(false).memory_stat().limit_in_bytes {
            limit if limit >= super::values::UNLIMITED.cast_signed() => "max".to_owned(),
            limit => limit.to_string(),
        }),
        "memory.max" => memory(true).get_mem()?.max.map(|max| max.to_string()),
        "memory.high" => memory(true).get_mem()?.high.map(|high| high.to_string()),
        "memory.min" => memory(true).get_mem()?.min.map(|min| min.to_string()),
        "memory.low" => memory(true).get_mem()?.low.map(|low| low.to_string()),
        "pids.max" => {
            let pids = PidController::new(dir.to_owned(), false);
            Some(pids.get_pid_max()?.to_string())
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn both_spellings_are_those_of_the_harness() {
        let dir = tempfile::tempdir().unwrap();
        for (files, found) in [
            (&[("cpu.shares", "512\n")][..], "512"),
            (&[("cpu.weight", "20\n")], "20"),
            (&[("cpu.max", "max 100000\n")], "max"),
            (&[("cpu.max", "5000 100000\n")], "5000 100000"),
            (&[("cpu.cfs_quota_us", "-1\n")], "max"),
            (
                &[
                    ("cpu.cfs_quota_us", "5000\n"),
                    ("cpu.cfs_period_us", "100000\n"),
                ],
                "5000 100000",
            ),
            (&[("memory.limit_in_bytes", "9223372036854771712\n")], "max"),
            // Of these it reads all or none.
            (
                &[
                    ("memory.low", "4096\n"),
                    ("memory.min", "0\n"),
                    ("memory.high", "max\n"),
                    ("memory.max", "max\n"),
                ],
                "4096",
            ),
            (&[("memory.max", "max\n")], "max"),
            (&[("pids.max", "max\n")], "max"),
        ] {
            for (file, text) in files {
                fs::write(dir.path().join(file), text).unwrap();
            }
            agrees(dir.path(), files[0].0, found).unwrap();
            assert!(agrees(dir.path(), files[0].0, "7").is_err());
        }
    }
}
