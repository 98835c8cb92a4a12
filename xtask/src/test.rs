//! `cargo xtask test`: unit tests, then the same end-to-end cases on this kernel and on others.

use std::fs;
use std::thread;

use anyhow::{Context as _, Result};
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

impl Args {
    /// Everything, to the end.
    pub(crate) fn everything() -> Self {
        Self {
            cases: Request::everything(),
            skip_unit: false,
        }
    }
}

/// Runs the stages into `report`.
pub(crate) fn run(workspace: &Workspace, args: &Args, report: &mut Report) -> Result<()> {
    let cases = &args.cases;
    if !args.skip_unit {
        setup::for_metrics(workspace);
        setup::for_page(workspace);
    }
    let guests: Vec<&str> = cases.guests().collect();
    let anywhere = cases.native() || !guests.is_empty();
    // First, since the agent embeds them: built later, they would have it built twice.
    build::kernel_programs(workspace)?;
    if anywhere {
        build::release(workspace)?;
    }
    thread::scope(|scope| {
        // What takes the network, beside what takes the CPUs. A filter may leave a machine without cases.
        if cases.filter.is_none() && !guests.is_empty() {
            // What fails is tried again, and reported, with the cases.
            scope.spawn(|| e2e::machine(workspace, "fetch").args(&guests).status());
        }
        match args.skip_unit {
            true => Ok(()),
            false => unit(workspace, args, report),
        }
    })?;
    if anywhere && (cases.keep_going || report.total().failed == 0) {
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

/// `cargo test`, its output kept in a file.
fn unit(workspace: &Workspace, args: &Args, report: &mut Report) -> Result<()> {
    let stage = begin("unit tests");
    let log = workspace.results().join("unit.log");
    fs::create_dir_all(workspace.results()).context("create the results directory")?;
    let mut text = String::new();
    let mut counts = Counts::default();
    let mut cargo = cmd::cargo();
    cargo
        .current_dir(workspace.root())
        .env("PATH", workspace.search_path())
        .envs(
            Some(workspace.axe())
                .filter(|axe| axe.is_file())
                .map(|axe| ("PODWARDEN_AXE", axe)),
        )
        .args(["test", "--no-fail-fast"])
        .args(&args.cases.filter);
    let status = cmd::stream(&mut cargo, |line| {
        text.push_str(line);
        text.push('\n');
        counts += Counts::of_libtest(line).unwrap_or_default();
    })?;
    fs::write(&log, text).with_context(|| format!("write {}", log.display()))?;
    if status.success() {
        report.ended(stage, counts, None);
    } else {
        println!("{}", cmd::tail(&log));
        // A test binary that did not build or crashed counted nothing.
        counts.failed = counts.failed.max(1);
        report.ended(stage, counts, Some(format!("see {}", log.display())));
    }
    Ok(())
}
