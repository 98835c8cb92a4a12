//! The processes inside the pods, and their clock. Each does one thing, for long enough to be watched, and what it
//! did is told by the kernel (`getrusage`) or by stamps that the harness can read from outside.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Subcommand;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

mod burn;
pub mod clock;
pub mod latency;
mod memory;
mod processes;
mod pulse;
pub mod stamps;
mod switches;
mod traffic;
mod victim;

/// See the module.
#[derive(Debug, Subcommand)]
pub enum Workload {
    /// Uses CPU.
    Burn(burn::Burn),
    /// Writes a file and reads it again and again, so that it stays in the page cache.
    Cache(memory::Cache),
    /// Holds anonymous memory.
    Anon(memory::Anon),
    /// Fills anonymous memory at a rate and stamps every step.
    Fill(memory::Fill),
    /// Starts many processes that live briefly.
    Storm(processes::Storm),
    /// Starts processes that stay until they are killed.
    Forkbomb(processes::Forkbomb),
    /// Starts processes that wake a few times a second and work for a moment.
    Pulse(pulse::Pulse),
    /// Sleeps.
    Sleep {
        /// For how long, milliseconds.
        #[arg(long, default_value_t = 600_000)]
        for_ms: u64,
    },
    /// As [`Workload::Sleep`], called what a sandbox's process is called.
    Pause {
        /// For how long, milliseconds.
        #[arg(long, default_value_t = 600_000)]
        for_ms: u64,
    },
    /// Fills memory from one or several processes once it may: the benchmark's victim.
    Victim(victim::Victim),
    /// Does a piece of work at fixed times, and tells how late each was done.
    Probe(latency::Probe),
    /// Runs all the time, and tells when it did not.
    Gaps(latency::Gaps),
    /// Answers requests over loopback TCP.
    Serve(latency::Serve),
    /// Two processes hand a byte to and fro.
    Pingpong(switches::Pingpong),
    /// Writes and reads files.
    Disk(traffic::Disk),
    /// Reads a file page by page.
    Reads(traffic::Reads),
    /// Sleeps in a network of its own.
    Network(traffic::Network),
    /// Repeats the first packet of a connection.
    Unanswered(traffic::Unanswered),
}

impl Workload {
    fn name(&self) -> &'static std::ffi::CStr {
        match self {
            Self::Burn(_) => c"burn",
            Self::Cache(_) => c"cache",
            Self::Anon(_) => c"anon",
            Self::Fill(_) => c"fill",
            Self::Storm(_) => c"storm",
            Self::Forkbomb(_) => c"forkbomb",
            Self::Pulse(_) => c"pulse",
            Self::Sleep { .. } => c"sleep",
            Self::Pause { .. } => c"pause",
            Self::Victim(_) => victim::NAME,
            Self::Probe(_) => c"probe",
            Self::Gaps(_) => c"gaps",
            Self::Serve(_) => c"serve",
            Self::Pingpong(_) => c"pingpong",
            Self::Disk(_) => c"disk",
            Self::Reads(_) => c"reads",
            Self::Network(_) => c"network",
            Self::Unanswered(_) => c"unanswered",
        }
    }

    /// Runs to its end.
    pub fn run(self) -> Result<()> {
        // Started as /proc/self/exe they would all be called "exe".
        nix::sys::prctl::set_name(self.name())?;
        match self {
            Self::Burn(burn) => burn.run(),
            Self::Cache(cache) => cache.run(),
            Self::Anon(anon) => anon.run(),
            Self::Fill(fill) => fill.run(),
            Self::Storm(storm) => storm.run(),
            Self::Forkbomb(bomb) => bomb.run(),
            Self::Pulse(pulse) => pulse.run(),
            Self::Sleep { for_ms } | Self::Pause { for_ms } => {
                sleep_ms(for_ms);
                Ok(())
            }
            Self::Victim(victim) => victim.run(),
            Self::Probe(probe) => probe.run(),
            Self::Gaps(gaps) => gaps.run(),
            Self::Serve(serve) => serve.run(),
            Self::Pingpong(pingpong) => pingpong.run(),
            Self::Disk(disk) => disk.run(),
            Self::Reads(reads) => reads.run(),
            Self::Network(network) => network.run(),
            Self::Unanswered(unanswered) => unanswered.run(),
        }
    }
}

fn sleep_ms(ms: u64) {
    std::thread::sleep(std::time::Duration::from_millis(ms));
}

/// What `storm`, `pingpong` and `reads` print as their last line.
#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
pub struct Done {
    /// Processes that ended, round trips, or pages read.
    pub count: u64,
    /// CPU time of the processes that ended, as the kernel told by `getrusage(RUSAGE_CHILDREN)`,
    /// nanoseconds.
    pub children_cpu_ns: u64,
}

impl Done {
    fn print(self) -> Result<()> {
        println!("{}", serde_json::to_string(&self)?);
        Ok(())
    }
}

pub use victim::NAMES as VICTIM_NAMES;

/// Where `fill` puts its stamps.
type StampFile = PathBuf;

/// Keeps the calling thread, and what it starts, on one CPU.
fn pin(cpu: Option<usize>) -> Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("pin to CPU {cpu}"))
}
