//! Runs cases one after another and says how they ended.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use crate::cases::{self, Case, Context, Figure, Skip};
use crate::harness::{catch_signals, check_interrupt, remove_stale};

/// Lines of the agent's log that a failed case shows.
const LOG_LINES: usize = 30;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The agent's program.
    #[arg(long, value_name = "PATH", required_unless_present = "list")]
    agent: Option<PathBuf>,
    /// Only cases with this in their name; given more than once, with all of them.
    #[arg(long, value_name = "TEXT")]
    filter: Vec<String>,
    /// Prints the names and runs nothing.
    #[arg(long)]
    list: bool,
    /// Writes results and figures to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also what takes minutes.
    #[arg(long)]
    include_slow: bool,
    /// How often the cases that repeat themselves do so, instead of a few times.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: Option<u32>,
    /// Leaves out what takes the same way on every kernel.
    #[arg(long)]
    without_portable: bool,
    /// Runs a case that failed again, at most this often. It counts as passed when it then holds, and
    /// its failures are shown: on a machine that others use too, a wait can be too short.
    #[arg(long, value_name = "N", default_value_t = 0)]
    retries: u32,
}

/// The file of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    kernel: String,
    emulated: bool,
    passed: usize,
    failed: usize,
    skipped: usize,
    cases: Vec<Verdict>,
}

#[derive(Debug, Serialize)]
struct Verdict {
    name: &'static str,
    outcome: Outcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    seconds: f64,
    figures: Vec<Figure>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    log: Vec<String>,
    /// Why it failed before, once for each try.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    earlier: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Passed,
    Failed,
    Skipped,
}

/// `e2e run`.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let chosen = cases::all().into_iter().filter(|case| {
        (args.include_slow || !case.slow)
            && !(args.without_portable && case.portable)
            && args
                .filter
                .iter()
                .all(|text| case.name.contains(text.as_str()))
    });
    if args.list {
        chosen.for_each(|case| println!("{}", case.name));
        return Ok(ExitCode::SUCCESS);
    }
    let agent = args.agent.as_deref().context("--agent is missing")?;
    let agent = fs::canonicalize(agent).with_context(|| format!("find {}", agent.display()))?;
    ensure!(
        rustix::process::geteuid().is_root(),
        "the cases make cgroups: run them as root"
    );
    catch_signals()?;
    remove_stale()?;
    let context = Context::new(&agent, args.include_slow, args.repeat);
    let mut verdicts = Vec::new();
    for case in chosen {
        if check_interrupt().is_err() {
            break;
        }
        let verdict = run_until_passed(&context, case, args.retries);
        print(&verdict);
        verdicts.push(verdict);
    }
    finish(&context, verdicts, args)
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
        name: case.name,
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
    let name = verdict.name;
    let one_line = |text: &str| text.replace('\n', "; ");
    let reason = one_line(verdict.reason.as_deref().unwrap_or_default());
    match verdict.outcome {
        Outcome::Passed => println!("ok {name} ({:.1} s)", verdict.seconds),
        Outcome::Failed => println!("FAILED {name}: {reason}"),
        Outcome::Skipped => println!("skipped {name}: {reason}"),
    }
    for earlier in &verdict.earlier {
        println!("     failed before: {}", one_line(earlier));
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

fn finish(context: &Context, cases: Vec<Verdict>, args: &Args) -> Result<ExitCode> {
    let count = |outcome| {
        cases
            .iter()
            .filter(|verdict| verdict.outcome == outcome)
            .count()
    };
    let report = Report {
        kernel: rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned(),
        emulated: context.emulated(),
        passed: count(Outcome::Passed),
        failed: count(Outcome::Failed),
        skipped: count(Outcome::Skipped),
        cases,
    };
    if let Some(path) = &args.json {
        // Opened without truncating what cannot be: it may be a serial port.
        let text = serde_json::to_string(&report)? + "\n";
        fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    println!(
        "{} passed, {} failed, {} skipped",
        report.passed, report.failed, report.skipped
    );
    check_interrupt()?;
    Ok(if report.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
