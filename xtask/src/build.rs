//! Builds what the demo and the tests run.

use std::io::IsTerminal as _;

use anyhow::Result;
use xtask::paths::Workspace;
use xtask::step::step;
use xtask::{cmd, setup};

use crate::ebpf;

/// The kernel programs, and before them what building them takes.
pub(crate) fn kernel_programs(workspace: &Workspace) -> Result<()> {
    setup::for_build(workspace)?;
    step("build the kernel programs", || ebpf::build(workspace))
}

/// The agent, with the kernel programs in it, and the cases; release builds.
pub(crate) fn release(workspace: &Workspace) -> Result<()> {
    step("build the agent and the cases", || {
        let mut cargo = cmd::cargo();
        cargo.current_dir(workspace.root()).args([
            "build",
            "--release",
            "--package",
            "podwarden",
            "--package",
            "e2e",
        ]);
        // The progress bar is for people; elsewhere it would be a line for each crate.
        if !std::io::stderr().is_terminal() {
            cargo.arg("--quiet");
        }
        cmd::run(&mut cargo)
    })
}
