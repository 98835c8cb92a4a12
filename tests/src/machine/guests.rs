//! The cases on other kernels, each in a virtual machine.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Error, Result, ensure};
use xtask::paths::Workspace;
use xtask::report::{Counts, Report};
use xtask::{cmd, setup};

use super::guest::{First, Guest};
use super::message::{Message, Request, Selection};
use super::pool::{Job, Outcome};
use super::tally::Tally;
use super::vm::{Machine, Said};

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

/// What machines have in common, found out by the first that needs it.
#[derive(Debug, Default)]
struct Common {
    /// Whether this host can boot any, and why not; `None` until the first asks.
    supported: Option<Result<(), String>>,
    /// The file systems that are packed.
    packed: Vec<(First, PathBuf)>,
}

/// The machines, each to be killed after `timeout`. What they boot is fetched and packed as they come up, while other
/// stages run; one that cannot boot here has its cases skipped, with the reason.
pub(super) fn jobs<'a>(
    workspace: &'a Workspace,
    runs: &'a [Run],
    timeout: Duration,
    report: &mut Report,
) -> Vec<Job<'a>> {
    let common = Arc::new(Mutex::new(Common::default()));
    let (some, none): (Vec<&Run>, Vec<&Run>) = runs.iter().partition(|run| run.cases > 0);
    for run in none {
        let why = "none of the chosen cases concerns it".to_owned();
        report.add(&stage(run.guest), Counts::default(), Some(why));
    }
    let job = |run: &'a Run| {
        let common = Arc::clone(&common);
        Job {
            name: stage(run.guest),
            run: Box::new(move || match prepare(workspace, run.guest, &common) {
                Ok(image) => boot(workspace, run, &image, timeout),
                Err(why) => Ok((Counts::skipped(run.cases), Some(format!("{why:#}")))),
            }),
        }
    };
    some.into_iter().map(job).collect()
}

/// What a machine boots.
struct Image {
    kernel: PathBuf,
    initramfs: PathBuf,
}

/// Fetches and packs it; machines with the same first process share a file system.
fn prepare(workspace: &Workspace, guest: Guest, common: &Mutex<Common>) -> Result<Image> {
    // One after another: they take the same tools and archives.
    let mut common = common.lock().unwrap_or_else(PoisonError::into_inner);
    let supported = common
        .supported
        .get_or_insert_with(|| prerequisites(workspace).map_err(|why| format!("{why:#}")));
    supported.clone().map_err(Error::msg)?;
    let kernel = guest.kernel(workspace)?;
    let mut packed = common.packed.iter();
    let initramfs = match packed.find(|(first, _)| *first == guest.first) {
        Some((_, path)) => path.clone(),
        None => {
            let path = guest.initramfs(workspace)?;
            common.packed.push((guest.first, path.clone()));
            path
        }
    };
    Ok(Image { kernel, initramfs })
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
fn boot(workspace: &Workspace, run: &Run, image: &Image, timeout: Duration) -> Result<Outcome> {
    let name = run.guest.name;
    let dir = workspace.results().join(name);
    let mut selection = run.selection.clone();
    let left =
        |until: Option<Instant>| until.map(|until| until.saturating_duration_since(Instant::now()));
    let seconds_left = |until| left(until).map(|left| left.as_secs());
    selection.portable_within = seconds_left(run.portable_until);
    selection.within = seconds_left(run.until);
    let timeout = left(run.until).map_or(timeout, |left| timeout.min(left + LAST_CASE));
    let machine = Machine {
        kernel: &image.kernel,
        kernel_arguments: &run.guest.kernel_arguments(),
        initramfs: &image.initramfs,
        memory: run.guest.memory,
        dir: &dir,
        request: &Request::Cases(selection),
        clock: run.guest.clock,
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
