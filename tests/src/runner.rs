//! Runs cases one after another and says how they ended.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use xtask::cases::Share;
use xtask::report::Counts;

use crate::cases::{self, Case, Context, Skip};
use crate::harness::{catch_signals, check_interrupt, remove_stale};
use crate::machine::message::{Message, Outcome, Report, Selection, Sender, Summary, Verdict};

/// Why a case did not run.
pub(crate) const TIME_IS_UP: &str = "the time of the whole run is up";
const PORTABLE_TIME_IS_UP: &str = "time is up, and it takes the same way on the host's kernel";
/// Lines of the agent's log that a failed case shows.
const LOG_LINES: usize = 30;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The agent's program.
    #[arg(long, value_name = "PATH", required_unless_present = "list")]
    agent: Option<PathBuf>,
    /// Prints the names and runs nothing.
    #[arg(long)]
    list: bool,
    /// Writes results and figures to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    selection: Selection,
}

/// `e2e run`.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.list {
        chosen(&args.selection).for_each(|case| println!("{}", case.name));
        return Ok(ExitCode::SUCCESS);
    }
    let agent = args.agent.as_deref().context("--agent is missing")?;
    let (summary, verdicts) = run_chosen(agent, &args.selection, &Sender::to(None)?)?;
    if let Some(path) = &args.json {
        let report = Report {
            summary: &summary,
            cases: &verdicts,
        };
        report.write(path)?;
    }
    end(&summary)
}

/// The same with each result sent as it comes.
pub(crate) fn run_for(agent: &Path, selection: &Selection, sender: &Sender) -> Result<ExitCode> {
    let (summary, _) = run_chosen(agent, selection, sender)?;
    end(&summary)
}

/// The cases of a selection, in their order; where time is short, first those that depend on the kernel, from a different
/// one on in each machine that shares the others: should time be up, each of them has run in one.
pub(crate) fn chosen(selection: &Selection) -> impl Iterator<Item = Case> {
    let mut cases = cases::all(selection.pods);
    if selection.portable_within.is_some() {
        cases.sort_by_key(|case| case.portable);
        let everywhere = cases.partition_point(|case| !case.portable);
        let Share { part, of } = selection.portable;
        cases[..everywhere].rotate_left(everywhere * part / of);
    }
    cases.retain(|case| {
        (selection.extent.include_slow || !case.slow)
            && (!case.portable || selection.portable.has(case.name))
            && selection
                .filter
                .iter()
                .all(|text| case.name.contains(text.as_str()))
    });
    selection.lane.take_of(cases).into_iter()
}

/// How many these are.
pub(crate) fn count(selection: &Selection) -> u64 {
    chosen(selection).count() as u64
}

fn run_chosen(
    agent: &Path,
    selection: &Selection,
    sender: &Sender,
) -> Result<(Summary, Vec<Verdict>)> {
    let agent = fs::canonicalize(agent).with_context(|| format!("find {}", agent.display()))?;
    ensure!(
        nix::unistd::geteuid().is_root(),
        "the cases make cgroups: run them as root"
    );
    catch_signals()?;
    remove_stale()?;
    let context = Context::new(&agent, selection.extent.clone());
    let begun = Instant::now();
    let mut counts = Counts::default();
    let mut verdicts = Vec::new();
    for case in chosen(selection) {
        if check_interrupt().is_err() {
            break;
        }
        let is_late = |within: Option<u64>| {
            within.is_some_and(|seconds| begun.elapsed().as_secs() >= seconds)
        };
        let verdict = if is_late(selection.within) {
            left_out(case, TIME_IS_UP)
        } else if case.portable && is_late(selection.portable_within) {
            left_out(case, PORTABLE_TIME_IS_UP)
        } else {
            run_until_passed(&context, case, selection.extent.retries)
        };
        print(&verdict);
        sender.send(&Message::Case(verdict.clone()))?;
        counts += verdict.counts();
        verdicts.push(verdict);
    }
    let summary = Summary {
        kernel: crate::harness::kernel_release(),
        emulated: context.emulated(),
        counts,
    };
    sender.send(&Message::Summary(summary.clone()))?;
    Ok((summary, verdicts))
}

/// Prints the counts as the last line.
fn end(summary: &Summary) -> Result<ExitCode> {
    println!("{}", summary.counts);
    check_interrupt()?;
    Ok(if summary.counts.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A case for which there is no time.
fn left_out(case: Case, why: &str) -> Verdict {
    Verdict {
        name: case.name.to_owned(),
        outcome: Outcome::Skipped,
        reason: Some(why.to_owned()),
        seconds: 0.0,
        figures: Vec::new(),
        log: Vec::new(),
        earlier: Vec::new(),
    }
}

/// Runs a case, and runs it again after a failure, `retries` times at most.
fn run_until_passed(context: &Context, case: Case, retries: u32) -> Verdict {
    let mut earlier = Vec::new();
    loop {
        let verdict = run_case(context, case);
        let again = verdict.outcome == Outcome::Failed
            && earlier.len() < retries as usize
            && check_interrupt().is_ok();
        if !again {
            return Verdict { earlier, ..verdict };
        }
        earlier.extend(verdict.reason);
    }
}

fn run_case(context: &Context, case: Case) -> Verdict {
    let start = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| (case.run)(context)));
    let seconds = start.elapsed().as_secs_f64();
    let (outcome, reason) = match result {
        Ok(Ok(())) => (Outcome::Passed, None),
        Ok(Err(error)) if error.is::<Skip>() => (Outcome::Skipped, Some(error.to_string())),
        Ok(Err(error)) => (Outcome::Failed, Some(format!("{error:#}"))),
        Err(panic) => (Outcome::Failed, Some(message(panic.as_ref()))),
    };
    // The thread that collects the log may be a few lines behind.
    std::thread::sleep(Duration::from_millis(if outcome == Outcome::Failed {
        50
    } else {
        0
    }));
    let log = context.take_log();
    let log = if outcome == Outcome::Failed {
        log.tail(LOG_LINES)
    } else {
        Vec::new()
    };
    Verdict {
        name: case.name.to_owned(),
        outcome,
        reason,
        seconds,
        figures: context.take_figures(),
        log,
        earlier: Vec::new(),
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panicked: {}", text.unwrap_or("(no message)"))
}

fn print(verdict: &Verdict) {
    for line in verdict.lines() {
        println!("{line}");
    }
    for figure in &verdict.figures {
        println!(
            "     {} = {} {}",
            figure.name,
            round(figure.value),
            figure.unit
        );
    }
    for line in &verdict.log {
        println!("     | {line}");
    }
}

/// Three decimals for small figures, none for large.
fn round(value: f64) -> String {
    if value.abs() < 1000.0 {
        format!("{value:.3}")
    } else {
        format!("{value:.0}")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn machines_that_share_the_portable_cases_begin_with_different_ones() {
        let in_part = |part| {
            let selection = Selection {
                portable: Share { part, of: 3 },
                portable_within: Some(1),
                ..Selection::default()
            };
            let cases: Vec<Case> = chosen(&selection).collect();
            let depends = cases.iter().take_while(|case| !case.portable);
            depends.map(|case| case.name).collect::<Vec<_>>()
        };
        let parts = [0, 1, 2].map(in_part);
        let first: BTreeSet<_> = parts.iter().map(|part| part[0]).collect();
        assert_eq!(first.len(), 3);
        let all = parts.map(BTreeSet::from_iter);
        assert!(all.iter().all(|part| *part == all[0]));
    }
}
