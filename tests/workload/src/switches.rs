//! Context switches.

use std::io::{PipeReader, PipeWriter, Read as _, Write as _, pipe};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use nix::sys::wait::{WaitStatus, waitpid};

use super::Done;
use super::processes::{children_cpu, fork};

/// The byte after which the other side ends.
const LAST: u8 = 0;
const AGAIN: u8 = 1;

#[derive(Debug, Args)]
pub struct Pingpong {
    /// Round trips.
    #[arg(long, default_value_t = 10_000)]
    rounds: u64,
    /// Ends after this much time in any case, milliseconds.
    #[arg(long, default_value_t = 600_000)]
    for_ms: u64,
    /// Runs both sides on this CPU alone.
    #[arg(long)]
    pin: Option<usize>,
}

impl Pingpong {
    pub(crate) fn run(&self) -> Result<()> {
        super::pin(self.pin)?;
        let (mut child_reads, mut we_write) = pipe()?;
        let (mut we_read, mut child_writes) = pipe()?;
        let child = fork(|| match echo(&mut child_reads, &mut child_writes) {
            Ok(()) => 0,
            Err(_) => 1,
        })?;
        let end = Instant::now() + Duration::from_millis(self.for_ms);
        let mut count = 0;
        let mut byte = [AGAIN];
        while byte != [LAST] {
            let last = count + 1 >= self.rounds || Instant::now() >= end;
            we_write.write_all(&[if last { LAST } else { AGAIN }])?;
            we_read.read_exact(&mut byte)?;
            count += 1;
        }
        let status = waitpid(child, None).context("wait for the other side")?;
        anyhow::ensure!(
            matches!(status, WaitStatus::Exited(_, 0)),
            "the other side failed: {status:?}"
        );
        Done {
            count,
            children_cpu_ns: children_cpu()?,
        }
        .print()
    }
}

fn echo(reads: &mut PipeReader, writes: &mut PipeWriter) -> std::io::Result<()> {
    let mut byte = [AGAIN];
    while byte != [LAST] {
        reads.read_exact(&mut byte)?;
        writes.write_all(&byte)?;
    }
    Ok(())
}
