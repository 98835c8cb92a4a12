//! `cargo xtask bench evict --vm`: the benchmark beside the daemons that take cgroup v2, in a machine
//! that has it.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::bench_vm;
use crate::debian::{self, PEERS};
use crate::kernels::Kernel;
use crate::paths::Workspace;
use crate::vm::{Clock, Machine};

/// The machine's kernel.
const SERIES: &str = "6.12";
/// A run takes about half a minute there.
const TIMEOUT: Duration = Duration::from_secs(3600);
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
    let arguments = arguments(args)?;
    bench_vm::prepare(workspace)?;
    let kernel = Kernel::of(SERIES)
        .with_context(|| format!("there is no kernel {SERIES}"))?
        .fetch(workspace)?;
    bench_vm::run(&Machine {
        kernel: &kernel,
        kernel_arguments: &debian::kernel_arguments(),
        initramfs: &debian::pack(workspace, &PEERS)?,
        dir: &workspace.results().join("bench-evict"),
        arguments: &arguments,
        clock: Clock::Instructions,
        timeout: TIMEOUT,
    })
}

/// What the benchmark in the machine is run with.
fn arguments(args: &[OsString]) -> Result<Vec<String>> {
    // The machine is isolation enough, and systemd must know our process ids.
    let mut words = ["bench", "evict", "--isolated"].map(str::to_owned).to_vec();
    let given = bench_vm::words(args)?;
    for (option, value) in DEFAULTS {
        let prefix = format!("{option}=");
        if !given.iter().any(|word| word.starts_with(&prefix)) {
            words.push(prefix + value);
        }
    }
    words.extend(given);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_replaces_a_default() {
        let given = ["--runs", "2", "--rate=20"].map(OsString::from);
        let words = arguments(&given).unwrap();
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
        assert!(arguments(&["two words".into()]).is_err());
    }
}
