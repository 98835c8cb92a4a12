//! `cargo xtask bench converge --vm KERNEL`: the benchmark in a machine with that kernel and cgroup v2.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::guest::Guest;
use crate::paths::Workspace;
use crate::vm::Machine;
use crate::{build, cmd, setup};

/// A run takes about ten seconds there.
const TIMEOUT: Duration = Duration::from_secs(3 * 3600);

/// Builds all it takes, boots the machine and shows what it measured.
pub(crate) fn main(workspace: &Workspace, kernel: &str, args: &[OsString]) -> Result<()> {
    let guest = Guest::of(kernel).with_context(|| format!("there is no kernel {kernel}"))?;
    setup::for_machines(workspace)?;
    build::kernel_programs(workspace)?;
    build::release(workspace)?;
    let mut arguments = ["bench", "converge"].map(str::to_owned).to_vec();
    arguments.extend(args.iter().map(|arg| arg.to_string_lossy().into_owned()));
    let machine = Machine {
        kernel: &guest.kernel(workspace)?,
        kernel_arguments: &guest.kernel_arguments(),
        initramfs: &guest.initramfs(workspace)?,
        dir: &workspace.results().join(format!("bench-converge-{kernel}")),
        arguments: &arguments,
        timeout: TIMEOUT,
    };
    let ended = machine.run(|line| println!("{line}"))?;
    match ended.exit_code {
        Some(0) => println!("every run as JSON: {}", ended.results.display()),
        Some(code) => bail!("the benchmark ended with exit code {code}"),
        None => bail!(
            "the benchmark did not come to an end{}; the end of {}:\n{}",
            if ended.timed_out { " in time" } else { "" },
            ended.console.display(),
            cmd::tail(&ended.console)
        ),
    }
    Ok(())
}
