//! `e2e machine test`: the cases on this kernel and in guests, each a stage, a few at a time.

use std::cmp::Reverse;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use xtask::cases::Request;
use xtask::paths::Workspace;
use xtask::report::{Counts, Report};
use xtask::{cmd, setup};

use super::guest::Guest;
use super::guests;
use super::message::{Ended, Selection};
use super::pool::{self, Job, Outcome};
use super::tally::Tally;
use crate::runner;

/// Runs them and leaves the stages where `cargo xtask test` reads them.
pub(super) fn run(workspace: &Workspace, request: &Request) -> Result<()> {
    let mut report = Report::default();
    let ended = stages(workspace, request, &mut report);
    report.write(&workspace.stages())?;
    ended
}

fn stages(workspace: &Workspace, request: &Request, report: &mut Report) -> Result<()> {
    let until =
        |within: Option<u64>| within.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let all = Selection {
        filter: request.filter.iter().cloned().collect(),
        extent: request.extent.clone(),
        within: request.within,
        ..Selection::default()
    };
    let portable_until = until(request.portable_within);
    let until = until(request.within);
    let requested: Vec<_> = request.guests().collect();
    let mut runs = request
        .guests()
        .map(|name| {
            let guest = Guest::of(name)?;
            let selection = guest.selection(all.clone(), &requested, request.everywhere);
            let cases = count(&selection);
            Ok(guests::Run {
                guest,
                selection,
                cases,
                // A machine that is for some cases has few of them.
                portable_until: portable_until.filter(|_| guest.is_for_all()),
                until,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    // The longest first, so that the others run beside it.
    runs.sort_by_key(|run| Reverse(run.cases));
    let timeout = Duration::from_secs(request.vm_timeout);
    let mut jobs = match runs.is_empty() {
        true => Vec::new(),
        false => guests::jobs(workspace, &runs, timeout, report),
    };
    if request.native() {
        jobs.splice(..0, on_this_kernel(workspace, &all, report));
    }
    pool::run(jobs, request.at_once, request.keep_going, report)
}

fn count(selection: &Selection) -> u64 {
    runner::chosen(selection).count() as u64
}

/// The cases on the kernel that runs here; `None` where they cannot run, with the reason in `report`.
fn on_this_kernel<'a>(
    workspace: &'a Workspace,
    selection: &'a Selection,
    report: &mut Report,
) -> Option<Job<'a>> {
    const NAME: &str = "this kernel";
    if !geteuid().is_root() {
        let why = "loading kernel programs takes root".to_owned();
        report.add(NAME, Counts::skipped(count(selection)), Some(why));
        return None;
    }
    setup::for_runtime(workspace);
    Some(Job {
        name: NAME.to_owned(),
        run: Box::new(|| here(workspace, selection)),
    })
}

fn here(workspace: &Workspace, selection: &Selection) -> Result<Outcome> {
    let dir = workspace.results().join("native");
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let messages = dir.join("messages.jsonl");
    fs::write(&messages, "").with_context(|| format!("write {}", messages.display()))?;
    let mut e2e = Command::new(workspace.e2e());
    e2e.args(["machine", "cases", "--agent"])
        .arg(workspace.agent())
        .arg("--messages")
        .arg(&messages)
        .arg(serde_json::to_string(selection).context("write the selection")?);
    // SAFETY: between fork and exec only one system call is made.
    unsafe {
        // The cases then clean up, also where this process alone is ended.
        e2e.pre_exec(|| Ok(set_pdeathsig(Signal::SIGTERM)?));
    }
    let status = cmd::stream(&mut e2e, |text| println!("[native] {text}"))?;
    let tally = read(&messages)?;
    tally.write(&dir.join("results.json"))?;
    Ok(tally.ended(ended(status)))
}

fn read(messages: &Path) -> Result<Tally> {
    let failed = || format!("read {}", messages.display());
    let mut tally = Tally::default();
    let file = fs::File::open(messages).with_context(failed)?;
    for line in BufReader::new(file).lines() {
        // A process that was killed may leave half a line.
        if let Ok(message) = serde_json::from_str(&line.with_context(failed)?) {
            tally.message(message);
        }
    }
    Ok(tally)
}

fn ended(status: ExitStatus) -> Option<Ended> {
    let exit = status.code().map(Ended::Exit);
    exit.or_else(|| status.signal().map(Ended::Signal))
}
