//! `cargo xtask bench evict --vm`: the benchmark beside the daemons that take cgroup v2, in a machine
//! that has it.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::debian::{self, PEERS};
use crate::kernels::Kernel;
use crate::paths::Workspace;
use crate::vm::{Clock, Machine};
use crate::{bench_vm, cmd};

/// The machine's kernel.
const SERIES: &str = "6.12";
/// One run of each daemon takes some 40 s.
const TIMEOUT: Duration = Duration::from_secs(12 * 3600);
/// What the machine's speed and size allow, unless the command line says otherwise.
const DEFAULTS: &[(&str, &str)] = &[
    ("--peers", "oomd,systemd-oomd"),
    ("--rate", "100"),
    ("--hogs", "0"),
    ("--processes", "1"),
    ("--size", "25"),
    ("--runs", "5"),
];

/// Builds all it takes, boots the machine and shows what it measured.
pub(crate) fn main(workspace: &Workspace, args: &[OsString]) -> Result<()> {
    let mut given = bench_vm::words(args)?;
    let [json, svg] = ["--json", "--svg"].map(|option| take(&mut given, option));
    let arguments = arguments(given);
    bench_vm::prepare(workspace)?;
    let kernel = Kernel::of(SERIES)
        .with_context(|| format!("there is no kernel {SERIES}"))?
        .fetch(workspace)?;
    let results = bench_vm::run(&Machine {
        kernel: &kernel,
        kernel_arguments: &debian::kernel_arguments(),
        initramfs: &debian::pack(workspace, &PEERS)?,
        dir: &workspace.results().join("bench-evict"),
        arguments: &arguments,
        clock: Clock::Instructions,
        timeout: TIMEOUT,
    })?;
    if let Some(json) = json {
        fs::copy(&results, &json).with_context(|| format!("write {}", json.display()))?;
    }
    if let Some(svg) = svg {
        draw(workspace, &results, &svg)?;
    }
    Ok(())
}

/// Takes a file's name out of the words: it is to be on this machine, not in the one that measures.
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
    // The machine is isolation enough, and systemd must know our process ids.
    let mut words = ["bench", "evict", "--isolated"].map(str::to_owned).to_vec();
    for (option, value) in DEFAULTS {
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
    fn what_is_given_replaces_a_default() {
        let given = ["--runs=2", "--rate=20"].map(str::to_owned).to_vec();
        let words = arguments(given);
        let expected = [
            "bench",
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
