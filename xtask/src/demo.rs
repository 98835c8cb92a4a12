//! `cargo xtask demo`: from a clone to a visible eviction.

use std::ffi::OsString;

use anyhow::Result;
use xtask::paths::Workspace;

use crate::e2e;

/// What the demo is run with.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Handed to the demo: --headless prints text in place of the live view, --json FILE writes
    /// the figures, --duration S sets how long the workloads run.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Builds all it takes and becomes the demo; returns only when that fails.
pub(crate) fn main(workspace: &Workspace, args: &Args) -> Result<()> {
    e2e::become_with_agent(workspace, &["demo"], &args.args)
}
