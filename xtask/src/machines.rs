//! The cases on other kernels, each in a virtual machine.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::guest::Guest;
use crate::paths::Workspace;
use crate::report::{Counts, Report, begin};
use crate::tally::Tally;
use crate::vm::{Ended, Machine};
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

/// What to run.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    /// The machines to boot.
    pub(crate) runs: &'a [Run],
    /// When a machine is killed.
    pub(crate) timeout: Duration,
    /// How many machines run at a time.
    pub(crate) at_once: usize,
}

/// A machine that can be booted.
struct Ready<'a> {
    run: &'a Run,
    kernel: PathBuf,
    initramfs: PathBuf,
}

/// Boots each machine that is to be had here; each is a stage of `report`.
pub(crate) fn run(workspace: &Workspace, plan: &Plan, report: &mut Report) -> Result<()> {
    let supported = supported().and_then(|()| setup::for_machines(workspace));
    let mut ready: Vec<Ready> = Vec::new();
    for run in plan.runs {
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
    boot_all(workspace, plan, &ready, report)
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
fn supported() -> Result<()> {
    ensure!(
        cfg!(target_arch = "x86_64"),
        "the test kernels are for x86-64"
    );
    Ok(())
}

fn stage(guest: Guest) -> String {
    format!("kernel {}", guest.name)
}

/// Runs the machines, some at a time, and adds each to the report as it ends.
fn boot_all(
    workspace: &Workspace,
    plan: &Plan,
    ready: &[Ready],
    report: &mut Report,
) -> Result<()> {
    let queue = Mutex::new(ready.iter());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        let (done, results) = mpsc::channel();
        for _ in 0..plan.at_once.max(1) {
            let done = done.clone();
            scope.spawn(move || {
                while let Some(machine) = next() {
                    let stage = begin(&stage(machine.run.guest));
                    let result = boot(workspace, machine, plan.timeout);
                    if done.send((stage, result)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(done);
        for (stage, result) in results {
            let (counts, reason) = result?;
            report.ended(stage, counts, reason);
        }
        Ok(())
    })
}

/// Runs one machine; what it counted, and what was wrong.
fn boot(
    workspace: &Workspace,
    ready: &Ready,
    timeout: Duration,
) -> Result<(Counts, Option<String>)> {
    let name = ready.run.guest.name;
    let machine = Machine {
        kernel: &ready.kernel,
        kernel_arguments: &ready.run.guest.kernel_arguments(),
        initramfs: &ready.initramfs,
        dir: &workspace.results().join(name),
        arguments: &ready.run.arguments,
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
