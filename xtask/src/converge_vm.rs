//! `cargo xtask bench converge --vm KERNEL`: the benchmark in a machine with that kernel and cgroup v2.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::bench_vm;
use crate::guest::Guest;
use crate::paths::Workspace;
use crate::vm::{Clock, Machine};

/// A run takes about ten seconds there.
const TIMEOUT: Duration = Duration::from_secs(3 * 3600);

/// Builds all it takes, boots the machine and shows what it measured.
pub(crate) fn main(workspace: &Workspace, kernel: &str, args: &[OsString]) -> Result<()> {
    let guest = Guest::of(kernel).with_context(|| format!("there is no kernel {kernel}"))?;
    let mut arguments = ["bench", "converge", "--counted"]
        .map(str::to_owned)
        .to_vec();
    arguments.extend(bench_vm::words(args)?);
    bench_vm::prepare(workspace)?;
    bench_vm::run(&Machine {
        kernel: &guest.kernel(workspace)?,
        kernel_arguments: &guest.kernel_arguments(),
        initramfs: &guest.initramfs(workspace)?,
        dir: &workspace.results().join(format!("bench-converge-{kernel}")),
        arguments: &arguments,
        clock: Clock::Instructions,
        timeout: TIMEOUT,
    })?;
    Ok(())
}
