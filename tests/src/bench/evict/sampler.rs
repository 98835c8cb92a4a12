//! Reads what the daemon watches and what the victim has, at a steady pace, in a real-time thread, and
//! ends the victim itself where no daemon does.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::harness::{Cgroup, make_fifo, monotonic};

/// Between two samples of a cgroup.
const CGROUP_PERIOD: Duration = Duration::from_micros(100);
/// Between two samples of `/proc/meminfo`, which takes the kernel longer.
const MEMINFO_PERIOD: Duration = Duration::from_micros(500);
/// Between two samples while the victim's memory comes back: what sampling takes is lost to the freeing, so
/// that it must be the same beside every daemon.
const FREEING_PERIOD: Duration = Duration::from_micros(500);
/// Its memory comes back once it has so much less than the most it had, percent.
const FALLEN_PERCENT: u64 = 5;
/// As many as are kept, twenty seconds' worth and more.
const CAPACITY: usize = 400_000;
/// Below the reactor's: it must never wait for us.
const PRIORITY: i32 = 1;

/// What a daemon watches.
#[derive(Debug, Clone)]
pub(super) enum Gauge {
    /// A cgroup's usage, less what of it is page cache that is not in use.
    Usage {
        /// The cgroup.
        cgroup: Cgroup,
        /// That page cache, bytes.
        idle_cache: u64,
    },
    /// The node's `MemAvailable`.
    Available,
}

impl Gauge {
    fn period(&self) -> Duration {
        match self {
            Self::Usage { .. } => CGROUP_PERIOD,
            Self::Available => MEMINFO_PERIOD,
        }
    }

    /// How far it is past `threshold`, bytes; negative before.
    fn past(&self, value: u64, threshold: u64) -> i64 {
        let (value, threshold) = (value.cast_signed(), threshold.cast_signed());
        match self {
            Self::Usage { idle_cache, .. } => value - idle_cache.cast_signed() - threshold,
            Self::Available => threshold - value,
        }
    }
}

/// One look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sample {
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub(super) nanos: u64,
    /// How far the daemon's figure is past its threshold, bytes; negative before.
    pub(super) past: i64,
    /// The victim's usage, bytes.
    pub(super) victim: u64,
}

/// What was seen.
#[derive(Debug)]
pub(super) struct Seen {
    /// In order of time.
    pub(super) samples: Vec<Sample>,
    /// The victim went too far and was ended here.
    pub(super) guarded: bool,
}

/// The thread.
#[derive(Debug)]
pub(super) struct Sampler {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Seen>>>,
}

/// What to look at.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) gauge: Gauge,
    /// In the gauge's own figure, bytes.
    pub(super) threshold: u64,
    pub(super) victim: Cgroup,
    /// The first process of the victim, ended where it gets `bound` bytes past the threshold.
    pub(super) pid: u32,
    pub(super) bound: u64,
}

impl Sampler {
    /// Starts it, and returns once it samples: a new thread may wait long for a busy CPU.
    pub(super) fn start(task: Task) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (begun, begins) = channel();
        let thread = std::thread::Builder::new()
            .name("sampler".to_owned())
            .spawn(move || task.run(&stopped, &begun))?;
        let sampler = Self {
            stop,
            thread: Some(thread),
        };
        match begins.recv() {
            Ok(()) => Ok(sampler),
            // It has ended, with an error that says why.
            Err(_) => match sampler.finish() {
                Err(error) => Err(error),
                Ok(_) => bail!("the sampler ended before it began"),
            },
        }
    }

    /// Ends it.
    pub(super) fn finish(mut self) -> Result<Seen> {
        self.stop.store(true, Ordering::Release);
        let thread = self.thread.take().context("the sampler has ended")?;
        let seen = thread.join();
        seen.map_err(|_| anyhow::anyhow!("the sampler panicked"))?
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // What it saw is not asked for.
            let _ = thread.join();
        }
    }
}

impl Task {
    fn run(&self, stop: &AtomicBool, begun: &Sender<()>) -> Result<Seen> {
        make_fifo(PRIORITY).context("SCHED_FIFO for the sampler")?;
        let gauge = match &self.gauge {
            Gauge::Usage { cgroup, .. } => Number::of_usage(cgroup)?,
            Gauge::Available => Number::of_available()?,
        };
        let victim = Number::of_usage(&self.victim)?;
        let mut seen = Seen {
            samples: Vec::with_capacity(CAPACITY),
            guarded: false,
        };
        let mut most = 0;
        while !stop.load(Ordering::Acquire) && seen.samples.len() < CAPACITY {
            let past = self.gauge.past(gauge.read()?, self.threshold);
            let sample = Sample {
                nanos: monotonic(),
                past,
                victim: victim.read()?,
            };
            seen.samples.push(sample);
            if seen.samples.len() == 1 {
                // The run waits for it.
                let _ = begun.send(());
            }
            if past > self.bound.cast_signed() && !seen.guarded {
                seen.guarded = true;
                // Its other processes end with it. Ended already is as good.
                let _ = kill(Pid::from_raw(self.pid.cast_signed()), Signal::SIGKILL);
            }
            most = most.max(sample.victim);
            std::thread::sleep(if sample.victim < most / 100 * (100 - FALLEN_PERCENT) {
                FREEING_PERIOD
            } else {
                self.gauge.period()
            });
        }
        Ok(seen)
    }
}

/// A number in a file that stays open.
#[derive(Debug)]
struct Number {
    file: File,
    path: PathBuf,
    /// What stands before the number, and what it is to be multiplied by.
    after: &'static str,
    unit: u64,
}

impl Number {
    fn of_usage(cgroup: &Cgroup) -> Result<Self> {
        Self::open(&cgroup.memory_usage_file(), "", 1)
    }

    fn of_available() -> Result<Self> {
        Self::open(Path::new("/proc/meminfo"), "MemAvailable:", 1024)
    }

    fn open(path: &Path, after: &'static str, unit: u64) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
        Ok(Self {
            file,
            path: path.to_owned(),
            after,
            unit,
        })
    }

    fn read(&self) -> Result<u64> {
        let mut buffer = [0; 256];
        let count = match self.file.read_at(&mut buffer, 0) {
            // A cgroup that was removed has nothing.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(0),
            read => read.with_context(|| format!("read {}", self.path.display()))?,
        };
        number(&buffer[..count], self.after)
            .map(|number| number * self.unit)
            .with_context(|| format!("{} has no number", self.path.display()))
    }
}

/// The first number after `after`.
fn number(text: &[u8], after: &str) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let (_, rest) = text.split_once(after)?;
    let rest = rest.trim_start();
    let end = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// `MemAvailable` now, bytes.
pub(in crate::bench) fn available() -> Result<u64> {
    Number::of_available()?.read()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found() {
        let meminfo = b"MemTotal:       24684096 kB\nMemFree:  5 kB\nMemAvailable:   123 kB\nBuf";
        assert_eq!(number(meminfo, "MemAvailable:"), Some(123));
        assert_eq!(number(b"4096\n", ""), Some(4096));
        assert_eq!(number(b"max\n", ""), None);
        assert_eq!(number(meminfo, "Swap:"), None);
    }

    #[test]
    fn past_is_up_for_usage_and_down_for_what_is_available() {
        assert_eq!(Gauge::Available.past(90, 100), 10);
        assert_eq!(Gauge::Available.past(110, 100), -10);
    }
}
