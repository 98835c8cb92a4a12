//! The tier's files, read again and again from outside, and what that shows of a limit that is to come down.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::scene::{MARGIN, TARGET};
use crate::harness::{Cgroup, monotonic};

const MIB: u64 = 1 << 20;
/// Between two readings from outside.
const GRAIN: Duration = Duration::from_millis(1);

/// What came of it. Times in milliseconds, sizes in MiB.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Outcome {
    /// Processes that the kernel's OOM killer took from the tier.
    pub(crate) oom_kills: u64,
    /// Pods that podwarden evicted.
    pub(crate) evictions: usize,
    /// From when the agent knew of the pod, its source having told of it, until it had written the
    /// limit that keeps the tier from growing; by the agent's own clock.
    pub(crate) known_to_capped_ms: Option<f64>,
    /// From the pod's arrival (its manifest is in place) until a file of the tier kept it from growing.
    pub(crate) capped_ms: Option<f64>,
    /// From the pod's arrival until the tier grew by less than a tenth of what it asked for.
    pub(crate) stopped_ms: Option<f64>,
    /// How much it grew after the pod's arrival.
    pub(crate) grown_mib: f64,
    /// How much of that after a file of the tier kept it from growing.
    pub(crate) grown_capped_mib: Option<f64>,
    /// From when the tier used a margin less than its target until that was its limit.
    pub(crate) reached_ms: Option<f64>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, ms) in [
            ("capped", self.capped_ms),
            ("stopped", self.stopped_ms),
            ("reached", self.reached_ms),
        ] {
            match ms {
                Some(ms) => write!(f, "{what} in {ms:.1} ms, ")?,
                None => write!(f, "not {what}, ")?,
            }
        }
        let (kills, evictions) = (self.oom_kills, self.evictions);
        write!(f, "{kills} OOM kills, {evictions} evictions")
    }
}

/// One reading from outside.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    at: u64,
    usage: u64,
    max: u64,
    high: u64,
}

/// The tier's files, read again and again.
pub(super) struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Sample>>,
}

/// A limit's file; `max` and what is no limit on v1 are the largest number.
pub(crate) fn limit(path: &Path) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.trim().parse().unwrap_or(u64::MAX)
}

pub(super) fn file(tier: &Cgroup, v1: &str, v2: &str) -> PathBuf {
    let mounts = tier.mounts();
    let name = if mounts.memory_on_v2() { v2 } else { v1 };
    mounts.memory().join(tier.path()).join(name)
}

/// `memory.high`, which v1 does not have.
pub(super) fn high(cgroup: &Cgroup) -> PathBuf {
    file(cgroup, "none", "memory.high")
}

/// The tier's hard limit.
pub(crate) fn hard_limit(tier: &Cgroup) -> PathBuf {
    file(tier, "memory.limit_in_bytes", "memory.max")
}

impl Watch {
    pub(super) fn start(tier: &Cgroup) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let usage = file(tier, "memory.usage_in_bytes", "memory.current");
        let (max, high) = (hard_limit(tier), high(tier));
        let thread = thread::spawn(move || {
            let mut samples = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                samples.push(Sample {
                    at: monotonic(),
                    usage: limit(&usage),
                    max: limit(&max),
                    high: limit(&high),
                });
                thread::sleep(GRAIN);
            }
            samples
        });
        Self { stop, thread }
    }

    pub(super) fn end(self) -> Result<Vec<Sample>> {
        self.stop.store(true, Ordering::Relaxed);
        let samples = self.thread.join();
        samples.map_err(|_| anyhow::anyhow!("the thread that watches has panicked"))
    }
}

/// What is seen from outside.
pub(super) fn measure(samples: &[Sample], arrived: u64, rate: u64) -> Outcome {
    let ms = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6;
    let after: Vec<_> = samples
        .iter()
        .filter(|s| s.at >= arrived)
        .copied()
        .collect();
    let start = after.first().map_or(0, |sample| sample.usage);
    let capped = after.iter().find(|sample| {
        sample.high <= sample.usage || sample.max <= sample.usage.saturating_add(3 * MARGIN)
    });
    let fits = after.iter().find(|sample| sample.usage + MARGIN <= TARGET);
    let until_fits = fits.map_or(u64::MAX, |sample| sample.at);
    let before: Vec<_> = after.iter().filter(|s| s.at < until_fits).collect();
    // A tenth of what it asks for, over a tenth of a second.
    let window = 100_000_000;
    let little = rate * MIB / 100;
    let stopped = before.iter().enumerate().find(|(index, sample)| {
        let later = before[*index..]
            .iter()
            .find(|later| later.at >= sample.at + window);
        later.is_some_and(|later| later.usage.saturating_sub(sample.usage) < little)
    });
    let peak = before.iter().map(|sample| sample.usage).max();
    let peak_capped = capped.and_then(|capped| {
        let later = before.iter().filter(|sample| sample.at >= capped.at);
        Some(
            later
                .map(|sample| sample.usage)
                .max()?
                .saturating_sub(capped.usage),
        )
    });
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    let reached = after.iter().find(|sample| sample.max == TARGET);
    Outcome {
        oom_kills: 0,
        evictions: 0,
        known_to_capped_ms: None,
        capped_ms: capped.map(|sample| ms(arrived, sample.at)),
        stopped_ms: stopped.map(|(_, sample)| ms(arrived, sample.at)),
        grown_mib: mib(peak.unwrap_or(start).saturating_sub(start)),
        grown_capped_mib: peak_capped.map(mib),
        reached_ms: fits
            .zip(reached)
            .map(|(fits, reached)| ms(fits.at, reached.at)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn sample(ms: u64, usage: u64, max: u64, high: u64) -> Sample {
        Sample {
            at: ms * MS,
            usage: usage * MIB,
            max: max * MIB,
            high: high * MIB,
        }
    }

    #[test]
    fn growth_before_the_cap_and_after_it() {
        let samples = [
            sample(0, 320, 640, 640),
            // The pod arrives at 10 ms.
            sample(10, 330, 640, 640),
            sample(20, 340, 640, 336),
            sample(30, 342, 640, 336),
            sample(150, 343, 640, 336),
            // There is room below the target.
            sample(200, 180, 640, 336),
            sample(210, 180, 256, 240),
        ];
        let outcome = measure(&samples, 10 * MS, 1000);
        assert_eq!(outcome.capped_ms, Some(10.0));
        assert_eq!(outcome.stopped_ms, Some(10.0));
        assert_eq!(
            (outcome.grown_mib, outcome.grown_capped_mib),
            (13.0, Some(3.0))
        );
        assert_eq!(outcome.reached_ms, Some(10.0));
    }

    #[test]
    fn a_tier_that_is_never_capped_grows() {
        let samples = [0, 10, 20].map(|ms| sample(ms, 320 + ms, 640, 640));
        let outcome = measure(&samples, 0, 1000);
        assert_eq!((outcome.capped_ms, outcome.stopped_ms), (None, None));
        assert_eq!((outcome.grown_mib, outcome.grown_capped_mib), (20.0, None));
    }
}
