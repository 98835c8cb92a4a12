//! What the agent's process takes: CPU time by thread, kernel programs, and memory of the kernel.

use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

use anyhow::{Context as _, Result};
use aya::programs::loaded_programs;
use aya::sys::{Stats, enable_stats};
use serde::Serialize;

use crate::harness::{Objects, SchedStat};

/// CPU time of a process up to a moment.
#[derive(Debug, Clone)]
pub(super) struct Spent {
    at: Instant,
    /// Clock ticks in user mode and in the kernel, of ended threads too (proc_pid_stat(5), fields 14 and 15).
    user: u64,
    system: u64,
    /// Nanoseconds of the threads that run, by name.
    threads: BTreeMap<String, u64>,
}

/// The same of the time between two moments, in percent of a core.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Cpu {
    pub(super) total: f64,
    pub(super) user: f64,
    pub(super) system: f64,
    pub(super) threads: BTreeMap<String, f64>,
}

impl Spent {
    pub(super) fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/stat");
        let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        // After the name, which may hold anything, comes field 3.
        let (_, rest) = text.rsplit_once(") ").context("a stat without a name")?;
        let fields: Vec<&str> = rest.split(' ').collect();
        let field = |number: usize| -> Result<u64> {
            let field = fields.get(number - 3).context("a stat is short")?;
            field.parse().with_context(|| format!("field {number}"))
        };
        Ok(Self {
            at: Instant::now(),
            user: field(14)?,
            system: field(15)?,
            threads: threads(pid)?,
        })
    }

    /// What the process has spent since.
    pub(super) fn until_now(&self, pid: u32) -> Result<Cpu> {
        let now = Self::of(pid)?;
        let seconds = (now.at - self.at).as_secs_f64();
        // SAFETY: asks for a constant.
        let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
        let percent = |ticks: u64| 100.0 * ticks as f64 / per_second / seconds;
        let (user, system) = (
            percent(now.user - self.user),
            percent(now.system - self.system),
        );
        let threads = now.threads.into_iter().map(|(name, nanos)| {
            let before = self.threads.get(&name).copied().unwrap_or(0);
            let percent = nanos.saturating_sub(before) as f64 / 1e7 / seconds;
            (name, percent)
        });
        Ok(Cpu {
            total: user + system,
            user,
            system,
            threads: threads.collect(),
        })
    }
}

/// CPU time of a process's threads, those of one name added up.
fn threads(pid: u32) -> Result<BTreeMap<String, u64>> {
    let mut threads = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).context("list the agent's threads")? {
        let task = task?;
        let tid = task.file_name().to_str().and_then(|tid| tid.parse().ok());
        // One may have ended since the list was read.
        let (Some(tid), Ok(name)) = (tid, fs::read_to_string(task.path().join("comm"))) else {
            continue;
        };
        if let Ok(stat) = SchedStat::of_thread(tid) {
            *threads.entry(name.trim().to_owned()).or_default() += stat.ran;
        }
    }
    Ok(threads)
}

/// The kernel counts the time of a process's programs.
pub(super) struct Counting {
    programs: Objects,
    before: BTreeMap<u32, Runs>,
    at: Instant,
    /// It ends with this.
    _stats: std::os::fd::OwnedFd,
}

#[derive(Debug, Clone)]
struct Runs {
    name: String,
    count: u64,
    nanos: u64,
}

/// One program's runs in a while.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Program {
    pub(super) name: String,
    pub(super) runs_per_second: f64,
    pub(super) nanos_per_run: f64,
    /// Of a core.
    pub(super) percent: f64,
}

impl Counting {
    /// From now on, which itself takes some.
    pub(super) fn begin(pid: u32) -> Result<Self> {
        let programs = Objects::of_process(pid)?;
        let stats = enable_stats(Stats::RunTime).context("kernel program statistics")?;
        Ok(Self {
            before: runs(&programs),
            programs,
            at: Instant::now(),
            _stats: stats,
        })
    }

    /// Those that ran, the costliest first.
    pub(super) fn end(self) -> Result<Vec<Program>> {
        let seconds = self.at.elapsed().as_secs_f64();
        let mut found = Vec::new();
        for (id, now) in runs(&self.programs) {
            let before = self.before.get(&id);
            let count = now.count - before.map_or(0, |runs| runs.count);
            let nanos = now.nanos - before.map_or(0, |runs| runs.nanos);
            if count > 0 {
                found.push(Program {
                    name: now.name,
                    runs_per_second: count as f64 / seconds,
                    nanos_per_run: nanos as f64 / count as f64,
                    percent: nanos as f64 / 1e7 / seconds,
                });
            }
        }
        found.sort_by(|a, b| b.percent.total_cmp(&a.percent));
        Ok(found)
    }
}

fn runs(programs: &Objects) -> BTreeMap<u32, Runs> {
    let loaded = loaded_programs().filter_map(Result::ok);
    let own = loaded.filter(|info| programs.has_program(info.id()));
    let runs = own.map(|info| {
        let runs = Runs {
            name: info.name_as_str().unwrap_or_default().to_owned(),
            count: info.run_count(),
            nanos: u64::try_from(info.run_time().as_nanos()).unwrap_or(u64::MAX),
        };
        (info.id(), runs)
    });
    runs.collect()
}
