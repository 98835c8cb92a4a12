//! What podwarden costs, measured beside the same work without it, and how fast it is beside others.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use aya::programs::loaded_programs;
use aya::sys::{Stats, enable_stats};
use clap::{Args as ClapArgs, Subcommand};
use nix::time::{ClockId, clock_gettime};

use crate::cases::Context;
use crate::harness::{Node, Options, PodSpec, Sandbox, Workload};

mod busy;
mod converge;
mod cpu;
mod disk;
mod evict;
mod freeing;
mod isolate;
mod kubelet;
mod metrics;
mod plan;
mod sample;
mod scrape;
mod syscalls;
mod trace;

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The cost of a context switch: two processes that wake each other through pipes, on one CPU.
    Switch(Switch),
    /// From a level crossed to the memory back, beside other OOM daemons.
    Evict(evict::Evict),
    /// Another pod's work while a pod's memory is freed: podwarden beside a plain SIGKILL.
    Freeing(freeing::Freeing),
    /// A filler on a real kubelet's node, with podwarden and without.
    Kubelet(kubelet::Kubelet),
    /// A tier above its reserve: podwarden beside a direct write of the target.
    Converge(converge::Converge),
    /// A protected pod's latency beside best-effort work, by what keeps the two apart.
    Cpu(cpu::Cpu),
    /// The reactor's system calls while it evicts, and where it sleeps.
    Syscalls(syscalls::Syscalls),
    /// The time that one plan takes, beside writing the same node as JSON.
    Plan(plan::Plan),
    /// The CPU time that the figures of all pods take: the kernel's iterator beside the files.
    Sample(sample::Sample),
    /// What an agent takes on a node of busy pods, beside a reader of the files that cAdvisor reads.
    Busy(busy::Busy),
    /// A fleet's requests to the API server, and what scraping it takes.
    Scrape(scrape::Scrape),
    /// One scrape of `/metrics`, the first of a sampling pass and those after it.
    Metrics(metrics::Metrics),
    /// The cost of a read of a disk, with what the agent counts of it and without.
    Disk(disk::Disk),
}

#[derive(Debug, ClapArgs)]
struct Switch {
    /// The agent's program.
    #[arg(long, value_name = "PATH")]
    agent: PathBuf,
    /// Round trips of one run; each is two switches.
    #[arg(long, default_value_t = 200_000)]
    rounds: u64,
    /// Runs of each kind, in turn.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// One JSON object in place of the table.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.what {
        What::Switch(switch) => switch.run()?,
        What::Evict(evict) => evict.run()?,
        What::Freeing(freeing) => freeing.run()?,
        What::Kubelet(kubelet) => kubelet.run()?,
        What::Converge(converge) => converge.run()?,
        What::Cpu(cpu) => cpu.run()?,
        What::Syscalls(syscalls) => syscalls.run()?,
        What::Plan(plan) => plan.run()?,
        What::Sample(sample) => sample.run()?,
        What::Busy(busy) => busy.run()?,
        What::Scrape(scrape) => scrape.run()?,
        What::Metrics(metrics) => metrics.run()?,
        What::Disk(disk) => disk.run()?,
    }
    Ok(ExitCode::SUCCESS)
}

/// One kind of run; the medians of its runs.
#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    processes: &'static str,
    /// Wall time of a round trip, nanoseconds, kernel statistics off.
    round_trip_nanos: f64,
    /// As a ratio to the first row.
    ratio: f64,
    /// The switch program by the kernel's own count, nanoseconds a run.
    program_nanos: Option<f64>,
}

impl Switch {
    fn run(&self) -> Result<()> {
        let context = Context::of_bench(&self.agent);
        // Rows are measured in turn, so that the machine's drift meets all of them alike.
        let kinds = ["no agent", "beside the pods", "in a pod, next to the agent"];
        let mut times = [const { Vec::new() }; 3];
        let mut programs = [const { Vec::new() }; 3];
        for _ in 0..self.runs {
            let sandbox = Sandbox::new()?;
            let outside = sandbox.root.child("outside");
            outside.create_below(&sandbox.root)?;
            times[0].push(self.round_trip(&outside)?);
            let node = Node::on(&context, sandbox, &Options::default())?;
            let pod = node.pod(PodSpec::best_effort("pingpong"))?;
            for (row, cgroup) in [(1, &outside), (2, &pod.main)] {
                times[row].push(self.round_trip(cgroup)?);
                programs[row].push(self.program(cgroup)?);
            }
            outside.remove()?;
            node.finish()?;
        }
        let base = median(&mut times[0]);
        let rows: Vec<_> = kinds
            .into_iter()
            .zip(times.iter_mut().zip(&mut programs))
            .map(|(processes, (times, programs))| {
                let round_trip_nanos = median(times);
                Row {
                    processes,
                    round_trip_nanos,
                    ratio: round_trip_nanos / base,
                    program_nanos: (!programs.is_empty()).then(|| median(programs)),
                }
            })
            .collect();
        self.print(&rows)
    }

    fn print(&self, rows: &[Row]) -> Result<()> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(rows)?);
            return Ok(());
        }
        println!(
            "{:<28} {:>14} {:>7} {:>16}",
            "PROCESSES", "ROUND TRIP ns", "RATIO", "PROGRAM ns/run"
        );
        for row in rows {
            let program = row
                .program_nanos
                .map_or_else(|| "-".to_owned(), |n| format!("{n:.0}"));
            println!(
                "{:<28} {:>14.0} {:>7.3} {:>16}",
                row.processes, row.round_trip_nanos, row.ratio, program
            );
        }
        println!(
            "medians of {} runs of {} round trips (two switches each) on one CPU",
            self.runs, self.rounds
        );
        Ok(())
    }

    /// Wall time of a round trip in `cgroup`, nanoseconds.
    fn round_trip(&self, cgroup: &crate::harness::Cgroup) -> Result<f64> {
        let rounds = self.rounds.to_string();
        let args = ["pingpong", "--rounds", &rounds, "--pin", "0"];
        let mut pingpong = Workload::start(cgroup, &args)?;
        let start = Instant::now();
        let done = pingpong.done(Duration::from_secs(300))?;
        ensure!(done.count == self.rounds, "{} round trips", done.count);
        Ok(start.elapsed().as_nanos() as f64 / self.rounds as f64)
    }

    /// What the kernel counts for the switch program while a run goes on, nanoseconds a run.
    fn program(&self, cgroup: &crate::harness::Cgroup) -> Result<f64> {
        let _counting = enable_stats(Stats::RunTime).context("kernel program statistics")?;
        let (time, count) = switch_program()?;
        self.round_trip(cgroup)?;
        let (time_after, count_after) = switch_program()?;
        let runs = count_after.checked_sub(count).filter(|n| *n > 0);
        let runs = runs.context("the switch program did not run")?;
        Ok((time_after - time) as f64 / runs as f64)
    }
}

/// Run time in nanoseconds and runs of the agent's switch program so far.
fn switch_program() -> Result<(u64, u64)> {
    let program = loaded_programs()
        .filter_map(Result::ok)
        .find(|info| info.name_as_str() == Some("sched_switch"))
        .context("no sched_switch program is loaded")?;
    let time = u64::try_from(program.run_time().as_nanos())?;
    Ok((time, program.run_count()))
}

/// CPU time of this thread so far.
fn cpu_time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
