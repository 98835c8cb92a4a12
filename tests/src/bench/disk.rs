//! What a read of a disk costs: pages read past the page cache, by what the agent counts of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use aya::programs::loaded_programs;
use aya::sys::{Stats, enable_stats};

use super::median;
use crate::cases::Context;
use crate::harness::{Cgroup, DISK_PROGRAMS, Node, Options, PodSpec, Sandbox, Workload};

#[derive(Debug, clap::Args)]
pub(super) struct Disk {
    /// The agent's program.
    #[arg(long, value_name = "PATH")]
    agent: PathBuf,
    /// Pages that a run reads.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    reads: u64,
    /// Runs of each kind, in turn.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// One JSON object in place of the table.
    #[arg(long)]
    json: bool,
}

/// The file that is read.
const FILE: usize = 16 << 20;

/// What the agent is configured to count; `None` for no agent.
const KINDS: [(&str, Option<&str>); 3] = [
    ("no agent", None),
    ("disk off", Some("sampling: {disk: false}\n")),
    ("disk", Some("")),
];

/// Medians of a kind's runs.
#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    counted: &'static str,
    /// Wall time of a read, nanoseconds, kernel statistics off.
    read_nanos: f64,
    /// As a ratio to the first row.
    ratio: f64,
    /// The agent's programs by the kernel's own count, nanoseconds a read.
    program_nanos: Option<f64>,
}

impl Disk {
    pub(super) fn run(&self) -> Result<()> {
        let context = Context::of_bench(&self.agent);
        let home = tempfile::tempdir_in("/var/tmp")?;
        let file = home.path().join("file");
        fs::write(&file, vec![0x5a; FILE])?;
        nix::unistd::sync();
        let mut times = KINDS.map(|_| Vec::new());
        let mut programs = KINDS.map(|_| Vec::new());
        // In turn, so that the machine's drift meets all of them alike.
        for _ in 0..self.runs {
            for (kind, (_, config)) in KINDS.iter().enumerate() {
                let Some(config) = config else {
                    let sandbox = Sandbox::new()?;
                    let outside = sandbox.root.child("outside");
                    outside.create_below(&sandbox.root)?;
                    times[kind].push(self.read(&outside, &file)?);
                    outside.remove()?;
                    continue;
                };
                let options = Options {
                    config: (*config).to_owned(),
                    ..Options::default()
                };
                let node = Node::start(&context, &options)?;
                let pod = node.pod(PodSpec::best_effort("reads"))?;
                times[kind].push(self.read(&pod.main, &file)?);
                programs[kind].push(self.program(&pod.main, &file)?);
                node.finish()?;
            }
        }
        let base = median(&mut times[0]);
        let rows = KINDS.iter().zip(times.iter_mut().zip(&mut programs));
        let rows = rows.map(|((counted, _), (times, programs))| {
            let read_nanos = median(times);
            Row {
                counted,
                read_nanos,
                ratio: read_nanos / base,
                program_nanos: (!programs.is_empty()).then(|| median(programs)),
            }
        });
        self.print(&rows.collect::<Vec<_>>())
    }

    fn print(&self, rows: &[Row]) -> Result<()> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(rows)?);
            return Ok(());
        }
        println!(
            "{:<20} {:>10} {:>7} {:>18}",
            "COUNTED", "READ ns", "RATIO", "PROGRAM ns/read"
        );
        for row in rows {
            let programs = row
                .program_nanos
                .map_or_else(|| "-".to_owned(), |n| format!("{n:.0}"));
            println!(
                "{:<20} {:>10.0} {:>7.3} {:>18}",
                row.counted, row.read_nanos, row.ratio, programs
            );
        }
        println!(
            "medians of {} runs of {} reads of a page past the page cache",
            self.runs, self.reads
        );
        Ok(())
    }

    /// Wall time of a read in `cgroup`, nanoseconds.
    fn read(&self, cgroup: &Cgroup, file: &Path) -> Result<f64> {
        let (count, file) = (self.reads.to_string(), file.display().to_string());
        let args = ["reads", "--count", &count, "--file", &file];
        let mut reads = Workload::start(cgroup, &args)?;
        let start = Instant::now();
        let done = reads.done(Duration::from_secs(300))?;
        ensure!(done.count == self.reads, "{} reads", done.count);
        Ok(start.elapsed().as_nanos() as f64 / self.reads as f64)
    }

    /// What the kernel counts for the agent's programs while a run goes on, nanoseconds a read. Their runs for other disk
    /// operations of the machine count too.
    fn program(&self, cgroup: &Cgroup, file: &Path) -> Result<f64> {
        let _counting = enable_stats(Stats::RunTime).context("kernel program statistics")?;
        let before = run_time();
        self.read(cgroup, file)?;
        Ok((run_time() - before).as_nanos() as f64 / self.reads as f64)
    }
}

/// Run time of [`DISK_PROGRAMS`] so far; none where they are not loaded.
fn run_time() -> Duration {
    let all = loaded_programs().filter_map(Result::ok);
    let ours = all.filter(|info| {
        info.name_as_str()
            .is_some_and(|name| DISK_PROGRAMS.contains(&name))
    });
    ours.map(|info| info.run_time()).sum()
}
