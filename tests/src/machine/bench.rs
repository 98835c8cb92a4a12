//! `e2e machine bench`: a benchmark in a guest whose clock counts instructions.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use xtask::paths::Workspace;
use xtask::{cmd, setup};

use super::debian::{self, PEERS};
use super::guest::{Guest, MEMORY};
use super::kernels::Kernel;
use super::message::{Ended, Message, Request};
use super::vm::{Clock, Machine, Said};

/// The kernel beside the other daemons.
const EVICT_KERNEL: &str = "6.12";
/// One run of each daemon takes some 40 s.
const EVICT_TIMEOUT: Duration = Duration::from_secs(12 * 3600);
/// A run takes about ten seconds there.
const CONVERGE_TIMEOUT: Duration = Duration::from_secs(3 * 3600);
/// Defaults from the machine's speed and size.
const EVICT_DEFAULTS: &[(&str, &str)] = &[
    ("--peers", "oomd,systemd-oomd"),
    ("--rate", "100"),
    ("--hogs", "0"),
    ("--processes", "1"),
    ("--size", "25"),
    ("--runs", "5"),
];

/// Which, and what it is run with.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Bench {
    /// Beside the daemons that take cgroup v2.
    Evict {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// With a kernel of one's choice.
    Converge {
        kernel: String,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
}

impl Bench {
    pub(super) fn run(&self, workspace: &Workspace) -> Result<()> {
        setup::for_machines(workspace)?;
        match self {
            Self::Evict { args } => evict(workspace, args),
            Self::Converge { kernel, args } => converge(workspace, kernel, args),
        }
    }
}

fn converge(workspace: &Workspace, kernel: &str, args: &[OsString]) -> Result<()> {
    let guest = Guest::of(kernel)?;
    let mut request = ["converge", "--counted"].map(str::to_owned).to_vec();
    request.extend(words(args));
    measure(&Machine {
        kernel: &guest.kernel(workspace)?,
        kernel_arguments: &guest.kernel_arguments(),
        initramfs: &guest.initramfs(workspace)?,
        memory: guest.memory,
        dir: &workspace.results().join(format!("bench-converge-{kernel}")),
        request: &Request::Bench(request),
        clock: Clock::Instructions,
        timeout: CONVERGE_TIMEOUT,
    })?;
    Ok(())
}

fn evict(workspace: &Workspace, args: &[OsString]) -> Result<()> {
    let mut given = words(args);
    let [json, svg] = ["--json", "--svg"].map(|option| take(&mut given, option));
    let kernel = Kernel::of(EVICT_KERNEL)
        .with_context(|| format!("there is no kernel {EVICT_KERNEL}"))?
        .fetch(workspace)?;
    let results = measure(&Machine {
        kernel: &kernel,
        kernel_arguments: &debian::kernel_arguments(),
        initramfs: &debian::pack(workspace, &PEERS)?,
        memory: MEMORY,
        dir: &workspace.results().join("bench-evict"),
        request: &Request::Bench(arguments(given)),
        clock: Clock::Instructions,
        timeout: EVICT_TIMEOUT,
    })?;
    if let Some(json) = json {
        fs::copy(&results, &json).with_context(|| format!("write {}", json.display()))?;
    }
    if let Some(svg) = svg {
        draw(workspace, &results, &svg)?;
    }
    Ok(())
}

/// Boots the machine, prints its console, and prints where the figures are.
fn measure(machine: &Machine<'_>) -> Result<PathBuf> {
    let results = machine.dir.join("results.json");
    let mut measured = None;
    let off = machine.run(|said| match said {
        Said::Line(line) => println!("{line}"),
        Said::Message(Message::Measured(figures)) => measured = Some(figures),
        Said::Message(_) => {}
    })?;
    if let Some(figures) = measured {
        fs::write(&results, format!("{figures}\n"))
            .with_context(|| format!("write {}", results.display()))?;
    }
    match off.ended {
        Some(Ended::Exit(0)) => println!("every run as JSON: {}", results.display()),
        Some(Ended::Exit(code)) => bail!("the benchmark ended with exit code {code}"),
        _ => bail!(
            "the benchmark did not finish{}; the end of {}:\n{}",
            if off.timed_out { " in time" } else { "" },
            off.console.display(),
            cmd::tail(&off.console)
        ),
    }
    Ok(results)
}

/// What the command line says, each option one word with its value.
fn words(args: &[OsString]) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for arg in args {
        let arg = arg.to_string_lossy();
        match words.last_mut() {
            Some(option) if !arg.starts_with("--") => {
                option.push('=');
                option.push_str(&arg);
            }
            _ => words.push(arg.into_owned()),
        }
    }
    words
}

/// Takes a file's name out of the words: the file is the host's.
fn take(words: &mut Vec<String>, option: &str) -> Option<PathBuf> {
    let prefix = format!("{option}=");
    let at = words.iter().position(|word| word.starts_with(&prefix))?;
    Some(words.remove(at)[prefix.len()..].into())
}

fn draw(workspace: &Workspace, results: &Path, svg: &Path) -> Result<()> {
    let mut command = Command::new(workspace.e2e());
    command.args(["bench", "evict", "--agent"]);
    command.arg(workspace.agent());
    cmd::capture(command.arg("--show").arg(results).arg("--svg").arg(svg))?;
    println!("as a picture: {}", svg.display());
    Ok(())
}

/// What the benchmark in the machine is run with.
fn arguments(given: Vec<String>) -> Vec<String> {
    // The machine isolates well enough, and systemd works with the process ids of its own namespace.
    let mut words = ["evict", "--isolated"].map(str::to_owned).to_vec();
    for (option, value) in EVICT_DEFAULTS {
        let prefix = format!("{option}=");
        if !given.iter().any(|word| word.starts_with(&prefix)) {
            words.push(prefix + value);
        }
    }
    words.extend(given);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_stands_alone() {
        let given = ["--runs", "1", "--load=cache", "--json"].map(OsString::from);
        assert_eq!(words(&given), ["--runs=1", "--load=cache", "--json"]);
    }

    #[test]
    fn what_is_given_replaces_a_default() {
        let given = ["--runs=2", "--rate=20"].map(str::to_owned).to_vec();
        let words = arguments(given);
        let expected = [
            "evict",
            "--isolated",
            "--peers=oomd,systemd-oomd",
            "--hogs=0",
            "--processes=1",
            "--size=25",
            "--runs=2",
            "--rate=20",
        ];
        assert_eq!(words, expected);
    }

    #[test]
    fn files_are_this_machines() {
        let mut words = ["--svg=a.svg", "--runs=2"].map(str::to_owned).to_vec();
        assert_eq!(take(&mut words, "--svg"), Some("a.svg".into()));
        assert_eq!(take(&mut words, "--svg"), None);
        assert_eq!(words, ["--runs=2"]);
    }
}
