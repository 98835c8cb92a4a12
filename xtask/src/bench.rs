//! `cargo xtask bench`: what podwarden costs, as ratios in one run.

use std::ffi::OsString;

use anyhow::Result;

use crate::become_e2e;
use crate::paths::Workspace;

/// What the benchmark is run with.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// The cost of a context switch, in a pod and beside the pods.
    Switch {
        /// Handed to the benchmark: --rounds N, --runs N, --json.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// The time that one plan takes; takes no root.
    Plan {
        /// Handed to the benchmark: --pods N, --runs N, --seed N, --json.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
}

/// Builds all it takes and becomes the benchmark; returns only when that fails.
pub(crate) fn main(workspace: &Workspace, args: &Args) -> Result<()> {
    match &args.what {
        What::Switch { args } => become_e2e::run(workspace, &["bench", "switch"], args),
        What::Plan { args } => become_e2e::run_without_agent(workspace, &["bench", "plan"], args),
    }
}
