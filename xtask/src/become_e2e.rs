//! The tasks that build everything and then hand over to the end-to-end binary.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::build;
use crate::paths::Workspace;

/// Builds all it takes and becomes `e2e WORDS --agent AGENT ARGS`, so that Ctrl-C and the exit code are
/// that program's own; returns only when something fails.
pub(crate) fn run(workspace: &Workspace, words: &[&str], args: &[OsString]) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!(
            "this loads kernel programs and makes cgroups, which takes root: \
             sudo env \"PATH=$PATH\" cargo xtask {}",
            words.join(" ")
        );
    }
    let agent = ["--agent".into(), workspace.agent().into_os_string()];
    become_it(workspace, words, &[&agent, args].concat())
}

/// The same for what starts no agent, and so takes no root.
pub(crate) fn run_without_agent(
    workspace: &Workspace,
    words: &[&str],
    args: &[OsString],
) -> Result<()> {
    become_it(workspace, words, args)
}

fn become_it(workspace: &Workspace, words: &[&str], args: &[OsString]) -> Result<()> {
    build::kernel_programs(workspace)?;
    build::release(workspace)?;
    let program = workspace.e2e();
    let error = Command::new(&program).args(words).args(args).exec();
    Err(error).with_context(|| format!("start {}", program.display()))
}
