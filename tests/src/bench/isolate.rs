//! Namespaces of our own, so that what a benchmark mounts is gone with it, and that a daemon that
//! kills by what it sees in `/proc` does not see the rest of the machine.

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::harness::{OWNER, catch_signals, check_interrupt};

/// How often the child is looked at.
const STEP: Duration = Duration::from_millis(50);

/// What is to be our own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Isolation {
    /// Mounts only; process ids are the machine's.
    Mounts,
    /// Mounts, process ids and `/proc`.
    Processes,
}

/// Runs this program again, with the same arguments and `--isolated`, and ends as it does.
pub(super) fn run_again(isolation: Isolation) -> Result<()> {
    let program = std::env::current_exe().context("find this program")?;
    let mut unshare = Command::new("unshare");
    unshare
        .args(["--mount", "--fork", "--kill-child"])
        .args(match isolation {
            Isolation::Mounts => &[][..],
            Isolation::Processes => &["--pid", "--mount-proc"],
        })
        // The namespace's first process is another than ours, which would take itself for a machine's.
        .args(["sh", "-c", "\"$@\"; exit $?", "sh"])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .arg("--isolated")
        .env(OWNER, std::process::id().to_string())
        .process_group(0);
    // SAFETY: one system call between fork and exec, and no allocation.
    unsafe {
        unshare.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?));
    }
    catch_signals()?;
    let mut child = unshare.spawn().context("start unshare (util-linux)")?;
    let mut told = false;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if check_interrupt().is_err() && !told {
            told = true;
            killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM)?;
        }
        std::thread::sleep(STEP);
    };
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(code), _) => std::process::exit(code),
        (None, signal) => bail!("the benchmark was killed by signal {signal:?}"),
    }
}
