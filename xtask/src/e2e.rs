//! The tasks that build everything and then hand over to the end-to-end program.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use xtask::paths::Workspace;

use crate::build;

/// Builds all it takes and becomes `e2e WORDS --agent AGENT ARGS`, so that Ctrl-C and the exit code are
/// that program's own; returns only when something fails.
pub(crate) fn become_with_agent(
    workspace: &Workspace,
    words: &[&str],
    args: &[OsString],
) -> Result<()> {
    require_root(words)?;
    become_with(workspace, &workspace.agent(), words, args)
}

/// Refuses what loads kernel programs to others than root.
pub(crate) fn require_root(words: &[&str]) -> Result<()> {
    if !geteuid().is_root() {
        bail!(
            "this loads kernel programs and makes cgroups, which takes root: \
             sudo env \"PATH=$PATH\" cargo xtask {}",
            words.join(" ")
        );
    }
    Ok(())
}

/// The same with another agent; [`require_root`] comes before that is built.
pub(crate) fn become_with(
    workspace: &Workspace,
    agent: &Path,
    words: &[&str],
    args: &[OsString],
) -> Result<()> {
    let agent = ["--agent".into(), agent.as_os_str().to_owned()];
    become_it(workspace, words, &[&agent, args].concat())
}

/// The same for what starts no agent here, and so takes no root.
pub(crate) fn become_it(workspace: &Workspace, words: &[&str], args: &[OsString]) -> Result<()> {
    build::all(workspace)?;
    let program = workspace.e2e();
    let error = Command::new(&program).args(words).args(args).exec();
    Err(error).with_context(|| format!("start {}", program.display()))
}

/// `e2e machine WORD`, which ends when the thread that starts it does.
pub(crate) fn machine(workspace: &Workspace, word: &str) -> Command {
    let mut command = Command::new(workspace.e2e());
    command
        .args(["machine", word])
        .env("PATH", workspace.search_path());
    // SAFETY: between fork and exec only one system call is made.
    unsafe {
        command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGTERM)?));
    }
    command
}
