//! `cargo xtask test`: unit tests, then the same end-to-end cases on this kernel and on others.

use std::cmp::Reverse;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::guest::{GUESTS, Guest};
use crate::paths::Workspace;
use crate::pool::{self, Job, Outcome};
use crate::report::{Counts, Report, begin};
use crate::tally::Tally;
use crate::{build, cmd, machines, setup};

/// When a virtual machine is killed, in seconds.
const VM_TIMEOUT: u64 = 1800;
/// How many kernels run the cases at a time, this one among them. They wait for more than half of the time,
/// and what a case asks for does not depend on how fast a machine is.
const AT_ONCE: usize = 3;

/// Where the end-to-end cases run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    /// They do not.
    Nowhere,
    /// On the kernel that runs here.
    Here,
    /// In a virtual machine.
    On(Guest),
}

/// Reads one value of `--kernels`.
fn place(text: &str) -> Result<Where, String> {
    match text {
        "none" => Ok(Where::Nowhere),
        "native" => Ok(Where::Here),
        name => Guest::of(name).map(Where::On).ok_or_else(|| {
            let known: Vec<&str> = GUESTS.iter().map(|guest| guest.name).collect();
            format!("known are native, {} and none", known.join(", "))
        }),
    }
}

/// Reads `--filter`, which goes onto a kernel's command line.
fn filter(text: &str) -> Result<String, String> {
    if text.chars().any(|c| c.is_whitespace() || c == '"') {
        return Err("names of cases have no spaces and no quotes".to_owned());
    }
    // What systemd understands (`runlevel_to_target` of `src/core/main.c`, and the words beside it).
    let is_runlevel = text.len() < 2 || matches!(text, "single" | "rescue" | "emergency");
    if is_runlevel {
        return Err("too short, or a word that systemd takes for itself".to_owned());
    }
    Ok(text.to_owned())
}

/// What `cargo xtask test` is run with.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the end-to-end cases run: native, 6.1, 6.12, 7.2, 6.12-systemd (those about its
    /// cgroup driver), or none.
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = place,
        default_value = "native,6.1,6.12,7.2,6.12-systemd"
    )]
    kernels: Vec<Where>,
    /// Runs only what has this in its name.
    #[arg(long, value_parser = filter)]
    filter: Option<String>,
    /// Leaves out the unit tests.
    #[arg(long)]
    skip_unit: bool,
    /// Goes on after a stage that failed.
    #[arg(long)]
    keep_going: bool,
    /// Kills a virtual machine after this many seconds.
    #[arg(long, default_value_t = VM_TIMEOUT)]
    vm_timeout: u64,
    /// Runs a case that failed again, at most this often; its failures are shown all the same.
    #[arg(long, default_value_t = 0)]
    retries: u32,
    /// How often the cases that repeat themselves do so, instead of a few times.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: Option<u32>,
    /// Runs the cases on that many kernels at a time, this one among them.
    #[arg(long, value_name = "N", default_value_t = AT_ONCE)]
    at_once: usize,
}

impl Args {
    /// Everything, to the end.
    pub(crate) fn everything() -> Self {
        Self {
            kernels: std::iter::once(Where::Here)
                .chain(GUESTS.iter().copied().map(Where::On))
                .collect(),
            filter: None,
            skip_unit: false,
            keep_going: true,
            vm_timeout: VM_TIMEOUT,
            retries: 2,
            repeat: None,
            at_once: AT_ONCE,
        }
    }

    /// Whether the next stage runs.
    fn goes_on(&self, report: &Report) -> bool {
        self.keep_going || report.total().failed == 0
    }

    /// The arguments of the cases. They go onto a kernel's command line, where systemd takes a number that
    /// stands alone for a runlevel: 1 is rescue mode.
    fn cases(&self) -> Vec<String> {
        let filter = self.filter.iter();
        let mut arguments: Vec<_> = filter
            .flat_map(|filter| ["--filter".to_owned(), filter.clone()])
            .collect();
        if self.retries > 0 {
            arguments.push(format!("--retries={}", self.retries));
        }
        if let Some(times) = self.repeat {
            arguments.push(format!("--repeat={times}"));
        }
        arguments
    }
}

/// Runs the stages into `report`.
pub(crate) fn run(workspace: &Workspace, args: &Args, report: &mut Report) -> Result<()> {
    let native = args.kernels.contains(&Where::Here);
    let guests: Vec<Guest> = args
        .kernels
        .iter()
        .filter_map(|place| match place {
            Where::On(guest) => Some(*guest),
            Where::Here | Where::Nowhere => None,
        })
        .collect();
    // First, since the agent embeds them: built later, they would have it built twice.
    build::kernel_programs(workspace)?;
    let goes_on = thread::scope(|scope| -> Result<bool> {
        // What takes the network, beside what takes the CPUs. A filter may leave a machine without cases.
        if args.filter.is_none() {
            scope.spawn(|| machines::fetch(workspace, &guests));
        }
        if !args.skip_unit {
            unit(workspace, args, report)?;
        }
        let goes_on = (native || !guests.is_empty()) && args.goes_on(report);
        if goes_on {
            build::release(workspace)?;
        }
        Ok(goes_on)
    })?;
    if !goes_on {
        return Ok(());
    }
    let mut runs = guests
        .into_iter()
        .map(|guest| {
            let arguments = guest.arguments(&args.cases());
            let cases = count_cases(workspace, &arguments)?;
            Ok(machines::Run {
                guest,
                arguments,
                cases,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    // The longest first, so that the others run beside it.
    runs.sort_by_key(|run| Reverse(run.cases));
    let timeout = Duration::from_secs(args.vm_timeout);
    let mut jobs = match runs.is_empty() {
        true => Vec::new(),
        false => machines::jobs(workspace, &runs, timeout, report),
    };
    if native {
        jobs.splice(..0, on_this_kernel(workspace, args, report)?);
    }
    pool::run(jobs, args.at_once, args.keep_going, report)
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
        .args(["test", "--no-fail-fast"])
        .args(&args.filter);
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

/// The cases on the kernel that runs here; `None` where they cannot, which `report` is told.
fn on_this_kernel<'a>(
    workspace: &'a Workspace,
    args: &'a Args,
    report: &mut Report,
) -> Result<Option<Job<'a>>> {
    const NAME: &str = "this kernel";
    if !rustix::process::geteuid().is_root() {
        let cases = Counts::skipped(count_cases(workspace, &args.cases())?);
        let why = "loading kernel programs takes root".to_owned();
        report.add(NAME, cases, Some(why));
        return Ok(None);
    }
    setup::for_runtime(workspace);
    Ok(Some(Job {
        name: NAME.to_owned(),
        run: Box::new(|| here(workspace, args)),
    }))
}

fn here(workspace: &Workspace, args: &Args) -> Result<Outcome> {
    let dir = workspace.results().join("native");
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let mut tally = Tally::default();
    let mut e2e = Command::new(workspace.e2e());
    e2e.args(["run", "--agent"])
        .arg(workspace.agent())
        .arg("--json")
        .arg(dir.join("results.json"))
        .args(args.cases());
    let status = cmd::stream(&mut e2e, |text| {
        println!("[native] {text}");
        tally.line(text);
    })?;
    Ok(tally.ended(status.code()))
}

/// How many cases there are, for those that cannot run.
fn count_cases(workspace: &Workspace, arguments: &[String]) -> Result<u64> {
    let mut e2e = Command::new(workspace.e2e());
    let names = cmd::capture(e2e.args(["run", "--list"]).args(arguments))?;
    Ok(names.lines().filter(|name| !name.trim().is_empty()).count() as u64)
}

#[cfg(test)]
mod tests {
    use super::{Args, Where, filter, place};

    #[test]
    fn kernels_are_chosen_by_series() {
        assert_eq!(place("none"), Ok(Where::Nowhere));
        assert_eq!(place("native"), Ok(Where::Here));
        assert!(matches!(place("6.12"), Ok(Where::On(guest)) if guest.name == "6.12"));
        assert!(place("5.4").is_err_and(|why| why.contains("6.1, 6.12, 7.2, 6.12-systemd")));
    }

    #[test]
    fn a_filter_fits_on_a_command_line() {
        assert_eq!(filter("eviction_"), Ok("eviction_".to_owned()));
        for unfit in ["two words", "1", "s", "single", "rescue", ""] {
            assert!(filter(unfit).is_err(), "{unfit:?}");
        }
    }

    #[test]
    fn no_argument_of_the_cases_is_a_runlevel() {
        let args = Args {
            repeat: Some(3),
            filter: Some("relief".to_owned()),
            ..Args::everything()
        };
        let words = ["--filter", "relief", "--retries=2", "--repeat=3"];
        assert_eq!(args.cases(), words);
    }
}
