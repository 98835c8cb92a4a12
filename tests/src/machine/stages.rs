//! `e2e machine test`: the cases on this kernel and in guests, each a stage, a few at a time.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use anyhow::Result;
use xtask::cases::Request;
use xtask::paths::Workspace;
use xtask::report::Report;

use super::guest::Guest;
use super::message::Selection;
use super::{guests, here, pool};
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
            let cases = runner::count(&selection);
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
    let parts = here::parts(&all);
    let mut jobs = match runs.is_empty() {
        true => Vec::new(),
        false => guests::jobs(workspace, &runs, timeout, report),
    };
    if request.native() {
        jobs.splice(..0, here::jobs(workspace, &parts, report));
    }
    pool::run(jobs, request.at_once, request.keep_going, report)
}
