//! A Guaranteed pod arrives while the BestEffort tier is above its reserve: podwarden beside a writer
//! that knows only the target. What is measured is in [`crate::cases::converge::scene`].

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use crate::cases::Context;
use crate::cases::converge::scene::{Growth, Load, Scene, Writer};
use crate::cases::converge::seen::Outcome;
use crate::harness::check_interrupt;

/// Runs of one writer with one load after each other, on one node.
const IN_A_ROW: u32 = 10;

#[derive(Debug, clap::Args)]
pub(super) struct Converge {
    /// The agent's program.
    #[arg(long, value_name = "PATH")]
    agent: PathBuf,
    /// Runs of each writer with each load, in turn.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// What the tier's memory is.
    #[arg(long, value_delimiter = ',', default_values_t = Load::ALL)]
    load: Vec<Load>,
    /// How fast the tier wants more, MiB a second.
    #[arg(long, default_value_t = 50)]
    rate: u64,
    /// Also writes every run to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Set where time counts the emulator's instructions: nothing takes longer then than elsewhere.
    #[arg(long, hide = true)]
    counted: bool,
}

/// The file of `--json`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report<'a> {
    kernel: String,
    emulated: bool,
    counted: bool,
    rate_mib: u64,
    rows: &'a [Row],
}

/// One writer with one load.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    writer: Writer,
    load: Load,
    runs: Vec<Outcome>,
}

impl Converge {
    pub(super) fn run(&self) -> Result<()> {
        let context = Context::of_bench(&self.agent);
        let emulated = context.emulated();
        let context = if self.counted {
            context.at_full_speed()
        } else {
            context
        };
        let writers = [Writer::Podwarden, Writer::Naive];
        let kinds = self
            .load
            .iter()
            .flat_map(|load| writers.map(|w| (w, *load)));
        let mut rows: Vec<Row> = kinds
            .map(|(writer, load)| Row {
                writer,
                load,
                runs: Vec::new(),
            })
            .collect();
        // In turn, so that the machine's drift meets all of them alike.
        let mut done = 0;
        while done < self.runs {
            let count = IN_A_ROW.min(self.runs - done);
            for row in &mut rows {
                let outcomes = self.some(&context, row.writer, row.load, done, count);
                let outcomes = outcomes.with_context(|| {
                    let (writer, load) = (row.writer.as_str(), row.load);
                    format!("runs {} to {} of {writer}, {load}", done + 1, done + count)
                })?;
                row.runs.extend(outcomes);
            }
            done += count;
        }
        print(&rows);
        println!(
            "{} runs each; kernel {}{}; the tier wants {} MiB/s more",
            self.runs,
            release(),
            match (emulated, self.counted) {
                (true, true) => ", emulated, an instruction a nanosecond",
                (true, false) => ", emulated",
                (false, _) => "",
            },
            self.rate
        );
        if let Some(path) = &self.json {
            let report = Report {
                kernel: release(),
                emulated,
                counted: self.counted,
                rate_mib: self.rate,
                rows: &rows,
            };
            let text = serde_json::to_string(&report)? + "\n";
            // Opened without truncating what cannot be: it may be a serial port.
            fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
        }
        let killed: u64 = rows
            .iter()
            .filter(|row| row.writer == Writer::Podwarden)
            .flat_map(|row| &row.runs)
            .map(|run| run.oom_kills)
            .sum();
        ensure!(killed == 0, "{killed} OOM kills beside podwarden");
        Ok(())
    }

    /// So many runs after those that are done, on one node, or on one more after each eviction.
    fn some(
        &self,
        context: &Context,
        writer: Writer,
        load: Load,
        done: u32,
        count: u32,
    ) -> Result<Vec<Outcome>> {
        let new = || Scene::new(context, writer, load, Growth::beyond(self.rate), "");
        let mut scene = new()?;
        let mut outcomes: Vec<Outcome> = Vec::new();
        for run in done + 1..=done + count {
            check_interrupt()?;
            match outcomes.last() {
                None => {}
                Some(last) if last.evictions > 0 => {
                    scene.end()?;
                    scene = new()?;
                }
                Some(_) => scene.again(context)?,
            }
            let outcome = scene.play(context, |_| Ok(()))?;
            eprintln!(
                "{}, {load}, run {run} of {}: {outcome}",
                writer.as_str(),
                self.runs
            );
            outcomes.push(outcome);
        }
        scene.end()?;
        Ok(outcomes)
    }
}

fn release() -> String {
    crate::harness::kernel_release()
}

fn print(rows: &[Row]) {
    println!(
        "{:<10} {:<10} {:>9} {:>9} {:>16} {:>16} {:>16} {:>16} {:>14}",
        "WRITER",
        "LOAD",
        "OOM KILLS",
        "EVICTIONS",
        "KNOWN-CAPPED ms",
        "CAPPED ms",
        "STOPPED ms",
        "REACHED ms",
        "GROWN MiB"
    );
    for row in rows {
        let times = |of: fn(&Outcome) -> Option<f64>| {
            let mut values: Vec<f64> = row.runs.iter().filter_map(of).collect();
            values.sort_by(f64::total_cmp);
            match (values.get(values.len() / 2), values.last()) {
                (Some(median), Some(most)) if values.len() == row.runs.len() => {
                    format!("{median:.1} ({most:.1})")
                }
                (Some(median), Some(most)) => {
                    format!("{median:.1} ({most:.1}) {}x", values.len())
                }
                _ => "-".to_owned(),
            }
        };
        println!(
            "{:<10} {:<10} {:>9} {:>9} {:>16} {:>16} {:>16} {:>16} {:>14}",
            row.writer.as_str(),
            row.load.to_string(),
            row.runs.iter().map(|run| run.oom_kills).sum::<u64>(),
            row.runs.iter().map(|run| run.evictions).sum::<usize>(),
            times(|run| run.known_to_capped_ms),
            times(|run| run.capped_ms),
            times(|run| run.stopped_ms),
            times(|run| run.reached_ms),
            times(|run| Some(run.grown_mib)),
        );
    }
    println!("medians (and the most); Nx: in N of the runs alone");
}
