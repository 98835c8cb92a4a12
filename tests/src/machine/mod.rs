//! Virtual machines: the same cases, and benchmarks, on other kernels.
//!
//! ```text
//!  stages    `e2e machine test`: this kernel and the guests, a few at a time
//!  here      the cases on this kernel    guests   the cases in guests
//!  bench     `e2e machine bench`: a benchmark in a guest
//!  guest     what there is to choose from: a kernel and a first process
//!  kernels   Debian's kernels          initramfs, debian, archive   what a guest boots into
//!  vm        boots a guest and reads its messages until it is off
//!  tally     counts cases from messages         pool     stages that run beside each other
//!  message   the messages between host and guest
//!  init      the guest's side: PID 1, or a unit of systemd's
//! ```

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use xtask::cases::Request;
use xtask::paths::Workspace;

use crate::runner;
use message::{Selection, Sender};

mod archive;
mod bench;
mod debian;
mod guest;
mod guests;
mod here;
pub(crate) mod init;
mod initramfs;
mod kernels;
pub(crate) mod message;
mod pool;
mod stages;
mod tally;
mod vm;

/// `e2e machine`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Machine {
    /// Runs the cases on this kernel and in machines, and leaves the stages as JSON.
    Test {
        /// Where and how, as JSON.
        request: String,
    },
    /// Runs a benchmark in a machine.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Runs cases and writes each result to a file or a port.
    Cases {
        /// The agent's program.
        #[arg(long)]
        agent: PathBuf,
        /// Where the results go.
        #[arg(long)]
        messages: Option<PathBuf>,
        /// Which, as JSON.
        selection: String,
    },
    /// Does what the host requests as a unit of a guest whose first process is systemd.
    Unit,
}

impl Machine {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let workspace = Workspace::locate();
        match self {
            Self::Test { request } => {
                let request: Request = serde_json::from_str(request).context("read the request")?;
                stages::run(&workspace, &request)?;
            }
            Self::Bench(bench) => bench.run(&workspace)?,
            Self::Cases {
                agent,
                messages,
                selection,
            } => {
                let selection: Selection =
                    serde_json::from_str(selection).context("read the selection")?;
                return runner::run_for(agent, &selection, &Sender::to(messages.as_deref())?);
            }
            Self::Unit => init::unit()?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
