//! A pod that fills memory past the level and stays there until it is evicted.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::{MIB, Rig};
use crate::harness::{Pod, PodSpec, Workload, sleep};

/// How far past the level it fills.
const PAST: u64 = 24 * MIB;

/// See the module.
pub(super) struct Hog {
    pub(super) pod: Pod,
    /// What fills; the first goes on when others have begun.
    fillers: Vec<Workload>,
    /// What they fill in all, bytes.
    wanted: u64,
}

impl Hog {
    pub(super) fn start(rig: &Rig) -> Result<Self> {
        let pod = rig.node.pod(PodSpec::best_effort("hog"))?;
        // Processes that come and go hold some for a moment, which must not be missing later; nor does page cache
        // count that is easily given back.
        let mut usage = u64::MAX;
        for _ in 0..10 {
            usage = usage.min(rig.node.kubepods().memory()?.working_set());
            sleep(Duration::from_millis(20))?;
        }
        let mut this = Self {
            pod,
            fillers: Vec::new(),
            wanted: 0,
        };
        this.fill((rig.node.level()? + PAST).saturating_sub(usage))?;
        Ok(this)
    }

    fn fill(&mut self, bytes: u64) -> Result<()> {
        let mib = bytes / MIB;
        self.fillers.push(self.pod.start(&[
            "fill",
            "--mib",
            &mib.to_string(),
            "--rate",
            "400",
            "--step-kib",
            "64",
            "--hold-ms",
            "600000",
        ])?);
        self.wanted += mib * MIB;
        Ok(())
    }

    /// Nothing of it runs any more.
    pub(super) fn is_dead(&mut self) -> bool {
        !self.fillers.iter_mut().any(Workload::is_alive)
    }

    /// Waits until it has been evicted. Where the other pods have given memory back since it began, it fills that too:
    /// the level is passed in any case. `limit` is for how long it may live without growing: beside other work a
    /// BestEffort pod fills slowly.
    pub(super) fn evicted(&mut self, rig: &Rig, limit: Duration) -> Result<()> {
        let (mut most, mut since) = (0, Instant::now());
        while !self.is_dead() {
            let looked = self.look(rig);
            if let Ok(own) = looked
                && own > most
            {
                (most, since) = (own, Instant::now());
            }
            if since.elapsed() >= limit {
                looked.context("the hog")?;
                bail!(
                    "the hog was not evicted: it lives with {most} bytes of {}, as it did {limit:?} ago; all use {}, the \
                     level is {}",
                    self.wanted,
                    rig.node.kubepods().memory()?.working_set(),
                    rig.node.level()?
                );
            }
            sleep(Duration::from_millis(10))?;
        }
        Ok(())
    }

    /// What it uses, bytes; fills on where the level is not reached by what it was to fill.
    fn look(&mut self, rig: &Rig) -> Result<u64> {
        let (level, usage) = (
            rig.node.level()?,
            rig.node.kubepods().memory()?.working_set(),
        );
        let own = self.pod.cgroup.memory()?.rss;
        if usage < level && own >= self.wanted {
            self.fill(level + PAST - usage)?;
        }
        Ok(own)
    }
}
