//! Work that is due at fixed times, and how long after that it is done.
//!
//! The times are set before the first piece of work. One that begins late is measured from when it was due, so
//! that a stall counts for all the work that it delays (no coordinated omission).

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;

use super::burn::thread_cpu;
use crate::clock::monotonic;

/// A request, and its reply: the number of the request.
pub const MESSAGE: usize = 8;

/// Between two pieces of work, unless a probe is told another time, microseconds.
pub const EVERY_US: u64 = 2000;
/// So many are due in a second then.
pub const WORKS_A_SECOND: u32 = 500;

/// [`crate::Workload::Probe`].
#[derive(Debug, Args)]
pub struct Probe {
    /// Between two pieces of work, microseconds.
    #[arg(long, default_value_t = EVERY_US)]
    every_us: u64,
    /// CPU time of each, microseconds.
    #[arg(long, default_value_t = 500)]
    work_us: u64,
    /// How many.
    #[arg(long)]
    count: u32,
    /// Gets the time from when each was due until it was done, microseconds, as a JSON array.
    #[arg(long)]
    out: PathBuf,
}

impl Probe {
    pub(crate) fn run(&self) -> Result<()> {
        exact_sleep()?;
        let (every, work) = (self.every_us, Duration::from_micros(self.work_us));
        let start = Instant::now() + Duration::from_millis(10);
        let due_first = monotonic() + 10_000_000;
        let done: Vec<u64> = (0..u64::from(self.count))
            .map(|number| {
                let due = start + Duration::from_micros(every * number);
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                use_cpu(work);
                micros(due.elapsed())
            })
            .collect();
        replace(&first_due(&self.out), &due_first.to_string())?;
        replace(&self.out, &serde_json::to_string(&done)?)
    }
}

/// Where a probe writes when its first piece of work was due, `CLOCK_MONOTONIC`, nanoseconds.
fn first_due(out: &Path) -> PathBuf {
    out.with_extension("due")
}

/// What a probe has written.
#[derive(Debug)]
pub struct Lateness {
    first_due: u64,
    every_us: u64,
    late_us: Vec<u64>,
}

/// One piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// When it was due, `CLOCK_MONOTONIC`, nanoseconds.
    pub due: u64,
    /// From then until it was done, microseconds.
    pub late_us: u64,
}

impl Lateness {
    /// Reads the file `--out` of a probe that has ended, which had `--every-us`.
    pub fn read(out: &Path, every_us: u64) -> Result<Self> {
        let text = |path: &Path| {
            fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
        };
        Ok(Self {
            first_due: text(&first_due(out))?.parse()?,
            every_us,
            late_us: serde_json::from_str(&text(out)?)?,
        })
    }

    /// All of it, in the order in which it was due.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> {
        let due = (0..).map(|number| self.due(number));
        let pairs = self.late_us.iter().zip(due);
        pairs.map(|(&late_us, due)| Piece { due, late_us })
    }

    /// How late those pieces of work were done that were due in `times`, `CLOCK_MONOTONIC`, microseconds.
    pub fn due_in(&self, times: Range<u64>) -> Vec<u64> {
        let pieces = self.pieces().filter(|piece| times.contains(&piece.due));
        pieces.map(|piece| piece.late_us).collect()
    }

    /// When the last piece was due.
    pub fn last_due(&self) -> u64 {
        self.due((self.late_us.len() as u64).saturating_sub(1))
    }

    fn due(&self, number: u64) -> u64 {
        self.first_due + number * self.every_us * 1000
    }
}

/// [`crate::Workload::Gaps`].
#[derive(Debug, Args)]
pub struct Gaps {
    /// Ends after this much time, milliseconds.
    #[arg(long)]
    for_ms: u64,
    /// Gets the times in which it did not run, as a JSON array of pairs, `CLOCK_MONOTONIC`, nanoseconds.
    #[arg(long)]
    out: PathBuf,
}

/// A shorter time without the CPU is an interrupt's.
const SHORTEST_GAP_NS: u64 = 100_000;

impl Gaps {
    pub(crate) fn run(&self) -> Result<()> {
        let start = monotonic();
        let end = start + self.for_ms * 1_000_000;
        let (mut last, mut gaps) = (start, Vec::new());
        while last < end {
            let now = monotonic();
            if now - last >= SHORTEST_GAP_NS {
                gaps.push((last, now));
            }
            last = now;
        }
        replace(&self.out, &serde_json::to_string(&gaps)?)
    }
}

/// What a workload `gaps` has written.
pub fn read_gaps(out: &Path) -> Result<Vec<(u64, u64)>> {
    let text = fs::read_to_string(out).with_context(|| format!("read {}", out.display()))?;
    Ok(serde_json::from_str(&text)?)
}

/// [`crate::Workload::Serve`].
#[derive(Debug, Args)]
pub struct Serve {
    /// CPU time of each request, microseconds.
    #[arg(long, default_value_t = 500)]
    work_us: u64,
    /// Gets the port of loopback that it listens on.
    #[arg(long)]
    port_file: PathBuf,
}

impl Serve {
    pub(crate) fn run(&self) -> Result<()> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("listen on loopback")?;
        replace(&self.port_file, &listener.local_addr()?.port().to_string())?;
        let work = Duration::from_micros(self.work_us);
        std::thread::scope(|scope| {
            for stream in listener.incoming() {
                let mut stream = stream.context("accept")?;
                scope.spawn(move || answer(&mut stream, work));
            }
            Ok(())
        })
    }
}

/// Answers until the other side has closed.
fn answer(stream: &mut TcpStream, work: Duration) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut request = [0; MESSAGE];
    loop {
        match stream.read_exact(&mut request) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        use_cpu(work);
        stream.write_all(&request)?;
    }
}

/// A timer fires when it is due, not up to 50 us later.
pub fn exact_sleep() -> Result<()> {
    nix::sys::prctl::set_timerslack(1).context("set the timer slack")
}

/// As whole microseconds.
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn use_cpu(work: Duration) {
    let end = thread_cpu() + work;
    while thread_cpu() < end {
        std::hint::spin_loop();
    }
}

/// A reader never sees half of it.
fn replace(path: &Path, text: &str) -> Result<()> {
    let draft = path.with_extension("draft");
    fs::write(&draft, text).with_context(|| format!("write {}", draft.display()))?;
    fs::rename(&draft, path).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_work_are_chosen_by_when_they_were_due() {
        let late = Lateness {
            first_due: 5_000_000,
            every_us: EVERY_US,
            late_us: vec![1, 2, 3, 4],
        };
        assert_eq!(late.due_in(0..u64::MAX), [1, 2, 3, 4]);
        assert_eq!(late.due_in(5_000_001..9_000_001), [2, 3]);
        assert_eq!(late.due_in(7_000_000..9_000_000), [2]);
        assert_eq!(late.last_due(), 11_000_000);
        assert_eq!(u64::from(WORKS_A_SECOND) * EVERY_US, 1_000_000);
    }
}
