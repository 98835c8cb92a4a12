//! The cases on other kernels, each in a virtual machine.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::kernels::Kernel;
use crate::paths::Workspace;
use crate::report::{Counts, Report, begin};
use crate::tally::Tally;
use crate::vm::{Ended, Machine};
use crate::{cmd, initramfs, setup};

/// What to run.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    /// The kernels to boot.
    pub(crate) kernels: &'a [Kernel],
    /// The arguments of the cases.
    pub(crate) arguments: &'a [String],
    /// How many cases there are: counted as skipped where a machine cannot run.
    pub(crate) cases: u64,
    /// When a machine is killed.
    pub(crate) timeout: Duration,
    /// How many machines run at a time.
    pub(crate) at_once: usize,
}

/// Boots each kernel that is to be had here; each is a stage of `report`.
pub(crate) fn run(workspace: &Workspace, plan: &Plan, report: &mut Report) -> Result<()> {
    let skip = |report: &mut Report, kernel: Kernel, why: &anyhow::Error| {
        report.add(
            &stage(kernel),
            Counts::skipped(plan.cases),
            Some(format!("{why:#}")),
        );
    };
    if let Err(error) = supported().and_then(|()| setup::for_machines(workspace)) {
        plan.kernels
            .iter()
            .for_each(|kernel| skip(report, *kernel, &error));
        return Ok(());
    }
    let mut images = Vec::new();
    for kernel in plan.kernels {
        match kernel.fetch(workspace) {
            Ok(image) => images.push((*kernel, image)),
            Err(error) => skip(report, *kernel, &error),
        }
    }
    let initramfs = initramfs::pack(workspace)?;
    boot_all(workspace, plan, &images, &initramfs, report)
}

/// The machine runs the same binaries as the host, and the kernels are of one architecture.
fn supported() -> Result<()> {
    ensure!(
        cfg!(target_arch = "x86_64"),
        "the test kernels are for x86-64"
    );
    Ok(())
}

fn stage(kernel: Kernel) -> String {
    format!("kernel {}", kernel.series)
}

/// Runs the machines, some at a time, and adds each to the report as it ends.
fn boot_all(
    workspace: &Workspace,
    plan: &Plan,
    images: &[(Kernel, PathBuf)],
    initramfs: &Path,
    report: &mut Report,
) -> Result<()> {
    let queue = Mutex::new(images.iter());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        let (done, results) = mpsc::channel();
        for _ in 0..plan.at_once.max(1) {
            let done = done.clone();
            scope.spawn(move || {
                while let Some((kernel, image)) = next() {
                    let stage = begin(&stage(*kernel));
                    let result = boot(workspace, plan, *kernel, image, initramfs);
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
    plan: &Plan,
    kernel: Kernel,
    image: &Path,
    initramfs: &Path,
) -> Result<(Counts, Option<String>)> {
    let machine = Machine {
        kernel: image,
        initramfs,
        dir: &workspace.results().join(kernel.series),
        arguments: plan.arguments,
        timeout: plan.timeout,
    };
    let mut tally = Tally::default();
    let ended = machine.run(|text| {
        if tally.line(text) {
            println!("[{}] {text}", kernel.series);
        }
    })?;
    let (counts, reason) = tally.ended(ended.exit_code);
    if counts.failed > 0 {
        println!("{}", cmd::tail(&ended.console));
    }
    Ok((counts, reason.map(|why| explain(&ended, why, plan.timeout))))
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
