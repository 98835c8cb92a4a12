//! The cases on other kernels, each in a virtual machine.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use xtask::paths::Workspace;
use xtask::report::{Counts, Report};
use xtask::{cmd, setup};

use super::guest::Guest;
use super::message::{Message, Request, Selection};
use super::pool::{Job, Outcome};
use super::tally::Tally;
use super::vm::{Clock, Machine, Said};
use crate::runner;

/// How long a case goes on that began at the last moment: none takes a quarter of it where a machine has the host's CPUs
/// to itself.
const LAST_CASE: Duration = Duration::from_secs(900);
/// How much faster than the host's a machine's clock may be.
const CLOCK_ERROR: f64 = 1.05;

/// The cases on one machine.
#[derive(Debug)]
pub(super) struct Run {
    /// The machine.
    pub(super) guest: Guest,
    /// Which cases.
    pub(super) selection: Selection,
    /// How many there are: counted as skipped where the machine cannot run.
    pub(super) cases: u64,
    /// When it begins no further case that takes the same way on every kernel.
    pub(super) portable_until: Option<Instant>,
    /// When it begins no further case at all.
    pub(super) until: Option<Instant>,
}

/// A machine that can be booted.
struct Ready<'a> {
    run: &'a Run,
    kernel: PathBuf,
    initramfs: PathBuf,
}

/// Fetches what these machines boot, where nothing of this project is needed for that, but for those whose cases all
/// take minutes. [`jobs`] tries again what fails, and reports it.
pub(super) fn fetch(workspace: &Workspace, guests: &[String]) {
    if !guests.is_empty() && prerequisites(workspace).is_ok() {
        let _ = guests.iter().try_for_each(|name| {
            let guest = Guest::of(name)?;
            let usual = guest.selection(Selection::default(), &[], false);
            match runner::chosen(&usual).next() {
                Some(_) => guest.fetch(workspace),
                None => Ok(()),
            }
        });
    }
}

/// The machines that this host can boot, each to be killed after `timeout`; `report` says of the others why
/// not.
pub(super) fn jobs<'a>(
    workspace: &'a Workspace,
    runs: &'a [Run],
    timeout: Duration,
    report: &mut Report,
) -> Vec<Job<'a>> {
    let supported = prerequisites(workspace);
    let mut ready: Vec<Ready> = Vec::new();
    for run in runs {
        let name = stage(run.guest);
        if run.cases == 0 {
            let why = "none of the chosen cases concerns it".to_owned();
            report.add(&name, Counts::default(), Some(why));
            continue;
        }
        let prepared = match &supported {
            Ok(()) => prepare(workspace, run, &ready).map_err(|why| format!("{why:#}")),
            Err(why) => Err(format!("{why:#}")),
        };
        match prepared {
            Ok(machine) => ready.push(machine),
            Err(why) => report.add(&name, Counts::skipped(run.cases), Some(why)),
        }
    }
    let job = |machine: Ready<'a>| Job {
        name: stage(machine.run.guest),
        run: Box::new(move || boot(workspace, &machine, timeout)),
    };
    ready.into_iter().map(job).collect()
}

/// Fetches and packs what the machine boots; machines with the same first process share a file
/// system.
fn prepare<'a>(workspace: &Workspace, run: &'a Run, ready: &[Ready]) -> Result<Ready<'a>> {
    let kernel = run.guest.kernel(workspace)?;
    let packed = ready
        .iter()
        .find(|other| other.run.guest.first == run.guest.first);
    let initramfs = match packed {
        Some(other) => other.initramfs.clone(),
        None => run.guest.initramfs(workspace)?,
    };
    Ok(Ready {
        run,
        kernel,
        initramfs,
    })
}

/// The machine runs the same binaries as the host, and the kernels are of one architecture.
fn prerequisites(workspace: &Workspace) -> Result<()> {
    ensure!(
        cfg!(target_arch = "x86_64"),
        "the test kernels are for x86-64"
    );
    setup::for_machines(workspace)
}

fn stage(guest: Guest) -> String {
    format!("kernel {}", guest.name)
}

/// Runs one machine.
fn boot(workspace: &Workspace, ready: &Ready, timeout: Duration) -> Result<Outcome> {
    let name = ready.run.guest.name;
    let dir = workspace.results().join(name);
    let mut selection = ready.run.selection.clone();
    let left =
        |until: Option<Instant>| until.map(|until| until.saturating_duration_since(Instant::now()));
    let seconds_left = |until| left(until).map(|left| left.as_secs());
    selection.portable_within = seconds_left(ready.run.portable_until);
    selection.within = seconds_left(ready.run.until);
    let timeout = left(ready.run.until).map_or(timeout, |left| timeout.min(left + LAST_CASE));
    let machine = Machine {
        kernel: &ready.kernel,
        kernel_arguments: &ready.run.guest.kernel_arguments(),
        initramfs: &ready.initramfs,
        memory: ready.run.guest.memory,
        dir: &dir,
        request: &Request::Cases(selection),
        clock: Clock::Host,
        timeout,
    };
    let mut tally = Tally::default();
    let (begun, mut seconds) = (Instant::now(), 0.0);
    let off = machine.run(|said| {
        if let Said::Message(message) = said {
            if let Message::Case(verdict) = &message {
                seconds += verdict.seconds;
                for line in verdict.lines() {
                    println!("[{name}] {line}");
                }
            }
            tally.message(message);
        }
    })?;
    let results = dir.join("results.json");
    tally.write(&results)?;
    let (counts, reason) = tally.ended(off.ended);
    if counts.failed > 0 {
        println!("{}", cmd::tail(&off.console));
    }
    let passed = begun.elapsed().as_secs_f64();
    if seconds > passed * CLOCK_ERROR {
        println!(
            "[{name}] its clock counted {seconds:.0} s in {passed:.0} s: limits of cases were shorter"
        );
    }
    let explain = |why: String| {
        let why = match off.timed_out {
            true => format!("killed after {} s", timeout.as_secs()),
            false => why,
        };
        format!(
            "{why}; console: {}; results: {}",
            off.console.display(),
            results.display()
        )
    };
    Ok((counts, reason.map(explain)))
}
