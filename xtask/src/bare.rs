//! The policy on a target without an operating system: proof that it needs none.

use anyhow::Result;

use xtask::cmd;
use xtask::paths::Workspace;
use xtask::toolchain;

/// A target that has `core` and `alloc` and nothing else.
const TARGET: &str = "x86_64-unknown-none";

/// Builds the policy for it.
pub(crate) fn build(workspace: &Workspace) -> Result<()> {
    let mut cargo = toolchain::require()?.cargo("build", TARGET, "core,alloc");
    cargo
        .current_dir(workspace.root())
        .args(["--package", "podwarden-policy"])
        .arg("--target-dir")
        .arg(workspace.bare_build());
    cmd::run(&mut cargo)
}
