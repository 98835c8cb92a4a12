//! The cases on other kernels, each in a virtual machine.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::guest::Guest;
use crate::paths::Workspace;
use crate::pool::{Job, Outcome};
use crate::report::{Counts, Report};
use crate::tally::Tally;
use crate::vm::{Clock, Ended, Machine};
use crate::{cmd, setup};

/// The cases on one machine.
#[derive(Debug)]
pub(crate) struct Run {
    /// The machine.
    pub(crate) guest: Guest,
    /// The arguments of the cases.
    pub(crate) arguments: Vec<String>,
    /// How many cases there are: counted as skipped where the machine cannot run.
    pub(crate) cases: u64,
}

/// A machine that can be booted.
struct Ready<'a> {
    run: &'a Run,
    kernel: PathBuf,
    initramfs: PathBuf,
}

/// Fetches what these machines boot, where nothing of this project is needed for that. What fails is tried
/// again, and told, by [`jobs`].
pub(crate) fn fetch(workspace: &Workspace, guests: &[Guest]) {
    if !guests.is_empty() && prerequisites(workspace).is_ok() {
        let _ = guests.iter().try_for_each(|guest| guest.fetch(workspace));
    }
}

/// Those of the machines that are to be had here, to be booted, and killed after `timeout`; of the others
/// `report` says why not.
pub(crate) fn jobs<'a>(
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
    let machine = Machine {
        kernel: &ready.kernel,
        kernel_arguments: &ready.run.guest.kernel_arguments(),
        initramfs: &ready.initramfs,
        dir: &workspace.results().join(name),
        arguments: &ready.run.arguments,
        clock: Clock::Host,
        timeout,
    };
    let mut tally = Tally::default();
    let ended = machine.run(|text| {
        if tally.line(text) {
            println!("[{name}] {text}");
        }
    })?;
    let (counts, reason) = tally.ended(ended.exit_code);
    if counts.failed > 0 {
        println!("{}", cmd::tail(&ended.console));
    }
    Ok((counts, reason.map(|why| explain(&ended, why, timeout))))
}

fn explain(ended: &Ended, why: String, timeout: Duration) -> String {
    let why = if ended.timed_out {
        format!("killed after {} s", timeout.as_secs())
    } else {
        why
    };
    format!(
        "{why}; console: {}; results: {}",
        ended.console.display(),
        ended.results.display()
    )
}
