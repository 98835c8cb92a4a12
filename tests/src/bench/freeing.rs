//! Another pod's work while a pod's memory is freed: a pod that podwarden evicts, beside the same pod ended by SIGKILL
//! alone, beside nothing that is freed.
//!
//! A probe in a Guaranteed pod has a piece of work due at fixed times; what counts is how long after that each is done.
//! The time during which memory is freed is seen from outside: from the highest usage of the victim's cgroup until
//! hardly any of it is left. The pieces that were due while the victim held its memory and slept are the comparison
//! without freeing.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use workload::latency::{EVERY_US, Lateness, WORKS_A_SECOND};

use super::evict::{Ground, Setting, Sizes, available};
use crate::cases::Context;
use crate::harness::{
    self, Cgroup, Workload, catch_signals, check_interrupt, make_fifo, monotonic, remove_stale,
    sleep,
};

const MIB: u64 = 1 << 20;
/// The victim's, which holds 2 GiB with them.
const PROCESSES: usize = 16;
/// The victim sleeps for so long with its memory before it fills on.
const QUIET: Duration = Duration::from_secs(1);
/// Between two looks at the victim.
const STEP: Duration = Duration::from_millis(1);
/// The probe works for so long in all, seconds.
const PROBED: u32 = 8;
/// No more than this part of the victim's memory is left when it counts as freed.
const REST: u64 = 20;
/// From the level crossed, or the victim's processes killed, to its memory freed.
const PATIENCE: Duration = Duration::from_secs(20);

/// See the module.
#[derive(Debug, clap::Args)]
pub(super) struct Freeing {
    /// The agent's program.
    #[arg(long, value_name = "PATH")]
    agent: PathBuf,
    /// The victim's memory, in multiples of 2 GiB.
    #[arg(long, value_delimiter = ',', default_value = "1,4",
          value_parser = clap::value_parser!(u64).range(1..=16))]
    size: Vec<u64>,
    /// Runs of each kind, in turn.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Also writes every piece of work to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What frees the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum By {
    Nothing,
    Sigkill,
    Podwarden,
}

/// One size and kind, with the figures of all its runs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    by: By,
    victim_mib: u64,
    /// From when each piece of work was due until it was done, microseconds, ascending.
    late_us: Vec<u64>,
    /// How long the memory took to be freed, milliseconds, ascending.
    freed_ms: Vec<u64>,
}

/// From and until when memory was freed, `CLOCK_MONOTONIC`, nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Window {
    from: u64,
    to: u64,
}

impl Freeing {
    pub(super) fn run(&self) -> Result<()> {
        ensure!(
            nix::unistd::geteuid().is_root(),
            "the benchmark makes cgroups: run it as root"
        );
        remove_stale()?;
        catch_signals()?;
        let agent = fs::canonicalize(&self.agent)
            .with_context(|| format!("find {}", self.agent.display()))?;
        let context = Context::of_bench(&agent);
        let mut rows = Vec::new();
        for &size in &self.size {
            let sizes = Sizes::of(setting(), 100 * size);
            let (needed, there) = (sizes.at_most() + (1 << 30), available()?);
            if there < needed {
                println!(
                    "{} MiB in {PROCESSES} processes: not measured, it takes {} MiB of memory that is available, and \
                     there are {}",
                    sizes.victim_bytes() / MIB,
                    needed / MIB,
                    there / MIB
                );
                continue;
            }
            rows.extend(self.measure(&context, &sizes)?);
        }
        print(&rows);
        println!(
            "{} runs of each kind, in turn; {PROCESSES} processes; kernel {}",
            self.runs,
            harness::kernel_release()
        );
        if let Some(path) = &self.json {
            let text = serde_json::to_string(&rows)? + "\n";
            fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
        }
        Ok(())
    }

    /// The three rows of one size.
    fn measure(&self, context: &Context, sizes: &Sizes) -> Result<[Row; 3]> {
        let mut rows = [By::Nothing, By::Sigkill, By::Podwarden].map(|by| Row {
            by,
            victim_mib: sizes.victim_bytes() / MIB,
            late_us: Vec::new(),
            freed_ms: Vec::new(),
        });
        for run in 1..=self.runs {
            for by in [By::Sigkill, By::Podwarden] {
                check_interrupt()?;
                let seen = once(context, by, sizes).with_context(|| format!("run {run}, {by}"))?;
                eprintln!(
                    "{} MiB, run {run} of {}: {by}: freed in {} ms, {} pieces of work meanwhile",
                    sizes.victim_bytes() / MIB,
                    self.runs,
                    seen.freed_ms,
                    seen.freeing.len()
                );
                for row in &mut rows {
                    match row.by {
                        By::Nothing => row.late_us.extend(&seen.quiet),
                        of if of == by => {
                            row.late_us.extend(&seen.freeing);
                            row.freed_ms.push(seen.freed_ms);
                        }
                        _ => {}
                    }
                }
            }
        }
        for row in &mut rows {
            row.late_us.sort_unstable();
            row.freed_ms.sort_unstable();
        }
        Ok(rows)
    }
}

/// As fast as the hogs of `bench evict`, so that its figures are of the same scene.
fn setting() -> Setting {
    Setting {
        rate: Some(500),
        hogs: 0,
        processes: PROCESSES,
    }
}

/// What one run found: how late the pieces of work were, microseconds.
struct Seen {
    quiet: Vec<u64>,
    freeing: Vec<u64>,
    freed_ms: u64,
}

fn once(context: &Context, by: By, sizes: &Sizes) -> Result<Seen> {
    let mut ground = match by {
        By::Podwarden => Ground::of_podwarden(context, setting(), sizes)?,
        By::Sigkill | By::Nothing => Ground::alike(setting())?,
    };
    ground.start_victim(context, setting(), sizes)?;
    let dir = tempfile::tempdir()?;
    let out = dir.path().join("late.json");
    let mut probe = start_probe(&ground, &out)?;
    sleep(QUIET)?;
    let let_go = monotonic();
    ground.let_go();
    let window = std::thread::scope(|scope| {
        let watched = ground.victim_cgroups();
        let watcher = scope.spawn(move || watch(watched, by, sizes.victim_bytes()));
        watcher
            .join()
            .map_err(|_| anyhow::anyhow!("the watcher panicked"))?
    })?;
    let ended = probe.wait(context.limit(u64::from(PROBED) + 20))?;
    ensure!(ended.success(), "the probe ended with {ended}");
    drop(probe);
    if let Some(who) = ground.lost() {
        anyhow::bail!("{who} was killed");
    }
    ground.finish()?;
    let late = Lateness::read(&out, EVERY_US)?;
    let quiet = let_go - u64::try_from((QUIET * 9 / 10).as_nanos())?..let_go;
    let last = late.last_due();
    ensure!(
        last >= window.to,
        "the probe had ended before the memory was freed"
    );
    Ok(Seen {
        quiet: late.due_in(quiet),
        freeing: late.due_in(window.from..window.to),
        freed_ms: (window.to - window.from) / 1_000_000,
    })
}

fn start_probe(ground: &Ground, out: &Path) -> Result<Workload> {
    let count = (PROBED * WORKS_A_SECOND).to_string();
    let out = out.to_str().context("a path in UTF-8")?;
    Workload::start(
        ground.guaranteed(),
        &["probe", "--count", &count, "--out", out],
    )
}

/// Waits until the victim's memory is freed; ends the victim itself where no agent does, at the same usage.
fn watch([pod, main]: [&Cgroup; 2], by: By, victim: u64) -> Result<Window> {
    // It sleeps all but a moment of each millisecond, and must not be late.
    make_fifo(50).context("SCHED_FIFO for the watcher")?;
    let mut end = Instant::now() + PATIENCE + QUIET;
    let (mut most, mut from) = (0, monotonic());
    let mut killed = by == By::Podwarden;
    loop {
        check_interrupt()?;
        let (now, used) = (monotonic(), pod.memory()?.usage);
        if used >= most {
            (most, from) = (used, now);
        }
        if !killed && used >= victim {
            for pid in main.procs() {
                // One that has ended is what is wanted.
                let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
            }
            killed = true;
            end = Instant::now() + PATIENCE;
        }
        if used < most / REST {
            return Ok(Window { from, to: now });
        }
        ensure!(
            Instant::now() < end,
            "the victim has {} MiB still",
            used / MIB
        );
        std::thread::sleep(STEP);
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Nothing => "nothing is freed",
            Self::Sigkill => "SIGKILL",
            Self::Podwarden => "podwarden",
        })
    }
}

/// As [`harness::quantile`], 0 of none.
fn quantile(sorted: &[u64], thousandths: usize) -> u64 {
    harness::quantile(sorted, thousandths).unwrap_or_default()
}

/// A row's p99 as a multiple of that of the row of the same size with SIGKILL.
fn ratio(row: &Row, rows: &[Row]) -> Option<f64> {
    let plain = rows
        .iter()
        .find(|other| other.by == By::Sigkill && other.victim_mib == row.victim_mib)?;
    let [this, plain] = [row, plain].map(|row| quantile(&row.late_us, 990));
    (plain > 0).then(|| this as f64 / plain as f64)
}

fn print(rows: &[Row]) {
    println!(
        "{:>10} {:<17} {:>9} {:>9} {:>9} {:>9} {:>12} {:>9} {:>8}",
        "VICTIM MiB",
        "BY",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "MOST ms",
        "x SIGKILL's",
        "FREED ms",
        "WORKS"
    );
    for row in rows {
        let [p50, p99, p999, most] =
            [500, 990, 999, 1000].map(|at| quantile(&row.late_us, at) as f64 / 1000.0);
        let ratio = ratio(row, rows).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
        println!(
            "{:>10} {:<17} {p50:>9.2} {p99:>9.2} {p999:>9.2} {most:>9.2} {ratio:>12} {:>9} {:>8}",
            row.victim_mib,
            row.by,
            quantile(&row.freed_ms, 500),
            row.late_us.len()
        );
    }
    println!("x SIGKILL's: p99 as a multiple of that beside SIGKILL; FREED: median");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(by: By, victim_mib: u64, late_us: Vec<u64>) -> Row {
        Row {
            by,
            victim_mib,
            late_us,
            freed_ms: Vec::new(),
        }
    }

    #[test]
    fn a_row_is_compared_with_sigkill_of_its_size() {
        let rows = [
            row(By::Sigkill, 2048, vec![100; 100]),
            row(By::Podwarden, 2048, vec![130; 100]),
            row(By::Sigkill, 8192, vec![200; 100]),
            row(By::Podwarden, 8192, vec![100; 100]),
            row(By::Podwarden, 1, vec![100]),
        ];
        let ratios = rows.each_ref().map(|row| ratio(row, &rows));
        assert_eq!(ratios, [Some(1.0), Some(1.3), Some(1.0), Some(0.5), None]);
    }

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let values: Vec<u64> = (1..=1000).collect();
        let found = [500, 990, 999, 1000].map(|at| quantile(&values, at));
        assert_eq!(found, [500, 990, 999, 1000]);
        assert_eq!(quantile(&[], 990), 0);
    }
}
