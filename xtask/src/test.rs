//! `cargo xtask test`: unit tests, then the same end-to-end cases on this kernel and on others; and the same in the order
//! of `cargo xtask ci`.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use xtask::cases::Request;
use xtask::paths::Workspace;
use xtask::report::{Counts, Report, begin};
use xtask::{cmd, setup};

use crate::{build, e2e};

/// What `cargo xtask test` is run with.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    cases: Request,
    /// Leaves out the unit tests.
    #[arg(long)]
    skip_unit: bool,
}

/// What is built and linted beside the cases comes behind them and their machines, nice(2).
const LAST: i32 = 19;

/// Runs everything to the end, with `checks` and the build of the unit tests beside the cases, which wait for more than
/// half of the time and have their limits; the unit tests after both, since they have limits, too. No case begins after
/// `until`.
pub(crate) fn everything(
    workspace: &Workspace,
    until: Instant,
    checks: impl FnOnce(&mut Report) + Send,
    report: &mut Report,
) -> Result<()> {
    let mut cases = Request::everything();
    prepare(workspace, &cases, true)?;
    cases.within = Some(until.saturating_duration_since(Instant::now()).as_secs());
    let ended = thread::scope(|scope| {
        let beside = scope.spawn(|| {
            let mut report = Report::default();
            // Of this thread and what it starts. Refused, it is as it was.
            let _ = rustix::process::nice(LAST);
            checks(&mut report);
            // What does not build fails with the unit tests.
            let _ = cmd::run(tests(workspace).args(["--no-run", "--quiet"]));
            report
        });
        let ended = end_to_end(workspace, &cases, report);
        report.append(beside.join().map_err(|_| anyhow!("a check panicked"))?);
        ended
    });
    unit(workspace, &cases, report)?;
    ended
}

/// Installs and builds what the stages take.
fn prepare(workspace: &Workspace, cases: &Request, with_unit: bool) -> Result<()> {
    if with_unit {
        setup::for_metrics(workspace);
        setup::for_page(workspace);
    }
    match cases.anywhere() {
        true => build::all(workspace),
        // The agent embeds them: built later, they would have it built twice.
        false => build::kernel_programs(workspace),
    }
}

/// Runs the stages into `report`.
pub(crate) fn run(workspace: &Workspace, args: &Args, report: &mut Report) -> Result<()> {
    let cases = &args.cases;
    prepare(workspace, cases, !args.skip_unit)?;
    if !args.skip_unit {
        unit(workspace, cases, report)?;
    }
    if cases.anywhere() && (cases.keep_going || report.total().failed == 0) {
        end_to_end(workspace, cases, report)?;
    }
    Ok(())
}

/// The cases, whose stages the end-to-end program prints and leaves as a file.
fn end_to_end(workspace: &Workspace, cases: &Request, report: &mut Report) -> Result<()> {
    let stages = workspace.stages();
    // A file of an earlier run would count for this one.
    match fs::remove_file(&stages) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("remove {}", stages.display()));
        }
        _ => {}
    }
    let request = serde_json::to_string(cases).context("write the request")?;
    let ended = cmd::run(e2e::machine(workspace, "test").arg(request));
    let read = report.read(&stages);
    ended.and(read)
}

/// `cargo test`. Most runs are the first in a clone: without what makes a second build shorter, and without tables of
/// lines, which a failed test does not need, that takes a quarter less.
fn tests(workspace: &Workspace) -> Command {
    let mut cargo = cmd::cargo();
    cargo
        .current_dir(workspace.root())
        .envs([
            ("CARGO_INCREMENTAL", "0"),
            ("CARGO_PROFILE_TEST_DEBUG", "0"),
        ])
        .arg("test");
    cargo
}

/// `cargo test`, its output kept in a file.
fn unit(workspace: &Workspace, cases: &Request, report: &mut Report) -> Result<()> {
    let stage = begin("unit tests");
    let log = workspace.results().join("unit.log");
    fs::create_dir_all(workspace.results()).context("create the results directory")?;
    let mut text = String::new();
    let mut failures = Failures::default();
    let mut counts = Counts::default();
    let mut cargo = tests(workspace);
    cargo
        .env("PATH", workspace.search_path())
        .envs(
            Some(workspace.axe())
                .filter(|axe| axe.is_file())
                .map(|axe| ("PODWARDEN_AXE", axe)),
        )
        .arg("--no-fail-fast")
        .args(&cases.filter);
    let status = cmd::stream(&mut cargo, |line| {
        text.push_str(line);
        text.push('\n');
        failures.line(line);
        counts += Counts::of_libtest(line).unwrap_or_default();
    })?;
    fs::write(&log, text).with_context(|| format!("write {}", log.display()))?;
    if status.success() {
        report.ended(stage, counts, None);
    } else {
        // A test binary that did not build or crashed counted nothing, and said nothing of a test.
        let said = match failures.text.is_empty() {
            true => cmd::tail(&log),
            false => failures.text,
        };
        println!("{said}");
        counts.failed = counts.failed.max(1);
        let names = failures.names.join(", ");
        report.ended(
            stage,
            counts,
            Some(format!("{names}; see {}", log.display())),
        );
    }
    Ok(())
}

/// What libtest says of the tests that failed, read a line at a time.
#[derive(Debug, Default)]
struct Failures {
    /// Their outputs, as they were printed.
    text: String,
    names: Vec<String>,
    inside: bool,
}

impl Failures {
    fn line(&mut self, line: &str) {
        if line.starts_with("test result: ") {
            self.inside = false;
        } else if line == "failures:" {
            self.inside = true;
        }
        if !self.inside {
            return;
        }
        self.text.push_str(line);
        self.text.push('\n');
        let head = line
            .strip_prefix("---- ")
            .and_then(|rest| rest.strip_suffix(" stdout ----"));
        self.names.extend(head.map(str::to_owned));
    }
}

#[cfg(test)]
mod tests {
    use super::Failures;

    #[test]
    fn tests_that_failed_are_named_with_what_they_said() {
        let printed = "\
running 2 tests
test a ... ok
test m::b ... FAILED

failures:

---- m::b stdout ----
thread 'm::b' panicked at src/m.rs:1:2:
left is not right

failures:
    m::b

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s
test a ... ok";
        let mut failures = Failures::default();
        printed.lines().for_each(|line| failures.line(line));
        assert_eq!(failures.names, ["m::b"]);
        assert!(failures.text.contains("left is not right"));
        assert!(!failures.text.contains("test a"), "{}", failures.text);
    }
}
