//! What was measured, as a table or as JSON.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::INTERVAL;
use super::agent::{Cpu, Program};

/// See the module.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub(super) pods: u32,
    pub(super) containers: usize,
    /// `iterator` or `files`.
    pub(super) sampling: String,
    pub(super) windows: Vec<Window>,
    /// The kernel programs with a reader, while the kernel counted their time.
    pub(super) programs: Vec<Program>,
    pub(super) resident_bytes: u64,
    pub(super) anonymous_bytes: u64,
    pub(super) kernel_maps_bytes: u64,
    pub(super) kernel_programs_bytes: u64,
    pub(super) files: FileReader,
}

/// The agent's CPU time in one part of the measurement.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Window {
    reader: &'static str,
    cpu: Cpu,
}

/// What a loop over the files takes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FileReader {
    files: usize,
    /// CPU time of a pass, milliseconds.
    pass_millis: f64,
    /// Of a core, with a pass each [`INTERVAL`].
    percent: f64,
}

impl Window {
    pub(super) fn new(reader: &'static str, cpu: Cpu) -> Self {
        Self { reader, cpu }
    }
}

impl FileReader {
    pub(super) fn new(files: usize, passes: u32, spent: Duration) -> Self {
        let pass = spent / passes.max(1);
        Self {
            files,
            pass_millis: pass.as_secs_f64() * 1e3,
            percent: 100.0 * pass.as_secs_f64() / INTERVAL.as_secs_f64(),
        }
    }
}

/// Threads below this are left out of the table, percent of a core.
const SHOWN: f64 = 0.01;

impl Report {
    pub(super) fn print(&self, json: bool) -> Result<()> {
        if json {
            println!("{}", serde_json::to_string_pretty(self)?);
            return Ok(());
        }
        println!(
            "{:<46} {:>9} {:>9} {:>9}",
            "CPU, % OF A CORE", "TOTAL", "USER", "KERNEL"
        );
        for window in &self.windows {
            let cpu = &window.cpu;
            println!(
                "{:<46} {:>9.2} {:>9.2} {:>9.2}",
                format!("podwarden, {}", window.reader),
                cpu.total,
                cpu.user,
                cpu.system
            );
            for (name, percent) in &cpu.threads {
                if *percent >= SHOWN {
                    println!("{:<46} {percent:>9.2}", format!("  thread {name}"));
                }
            }
        }
        println!(
            "{:<46} {:>9.2}",
            format!(
                "a reader of the {} files of cAdvisor's loop",
                self.files.files
            ),
            self.files.percent
        );
        println!();
        println!(
            "{:<46} {:>9} {:>9} {:>9}",
            "KERNEL PROGRAMS", "RUNS/s", "ns/RUN", "% CORE"
        );
        for program in &self.programs {
            println!(
                "{:<46} {:>9.0} {:>9.0} {:>9.3}",
                program.name, program.runs_per_second, program.nanos_per_run, program.percent
            );
        }
        println!(
            "(walk and flush run in the agent's time, the others in that of the tasks that run)"
        );
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        println!();
        println!(
            "{} pods with {} containers, each of which ran within each pass; figures by {}. Resident {:.1} MiB, {:.1} \
             of them the agent's own; maps take {:.1} MiB of the kernel's memory, programs {:.2}",
            self.pods,
            self.containers,
            self.sampling,
            mib(self.resident_bytes),
            mib(self.anonymous_bytes),
            mib(self.kernel_maps_bytes),
            mib(self.kernel_programs_bytes)
        );
        Ok(())
    }
}
