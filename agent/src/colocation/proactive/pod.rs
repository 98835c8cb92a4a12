//! One pod: read, decided, taken from.

use std::time::Duration;

use podwarden_cgroup::{CgroupPath, ColdReader, ColdReading, KernelCpu, Reclaims, Result, Tree};
use podwarden_policy::{
    Bytes,
    colocation::proactive::{Decision, Idle, Pace, Reading, Verdict},
};

use crate::{base::clock, config::ProactiveConfig};

/// A look at a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) verdict: Verdict,
    /// What it gave.
    pub(super) bytes: u64,
    /// Pages that it has read back since the last look.
    pub(super) refaults: u64,
}

#[derive(Debug)]
pub(super) struct Pod {
    path: CgroupPath,
    reader: ColdReader,
    /// Of a pod that gives only while it does not work.
    cpu: Option<(KernelCpu, Idle)>,
    pace: Pace,
    refaults: Option<u64>,
}

impl Pod {
    pub(super) fn open(tree: &Tree, path: &CgroupPath, only_cold: bool) -> Result<Self> {
        let cpu = only_cold.then(|| KernelCpu::open(tree, path)).transpose()?;
        Ok(Self {
            path: path.to_owned(),
            reader: ColdReader::open(tree, path)?,
            cpu: cpu.map(|cpu| (cpu, Idle::default())),
            pace: Pace::default(),
            refaults: None,
        })
    }

    /// `None` for a pod that works.
    pub(super) fn look(
        &mut self,
        tree: &Tree,
        how: Reclaims,
        config: &ProactiveConfig,
    ) -> Result<Option<Look>> {
        let at = clock::monotonic();
        if let Some((cpu, idle)) = &mut self.cpu
            && !idle.is_cold(at, cpu.usage_nanos()?, nanos(config.cold))
        {
            // What it missed while it worked says nothing of later.
            self.pace = Pace::default();
            self.refaults = None;
            return Ok(None);
        }
        let read = self.reader.read()?;
        let before = self.refaults.replace(read.refaults);
        let refaults = before.map_or(0, |before| read.refaults.saturating_sub(before));
        let decision = self.pace.decide(reading(at, read), config.step_percent);
        let bytes = match decision {
            Decision::Take(bytes) => self.take(tree, how, read.usage, bytes)?,
            _ => 0,
        };
        Ok(Some(Look {
            verdict: decision.verdict(),
            bytes,
            refaults,
        }))
    }

    /// What usage fell by, bytes: the kernel takes whole batches, or less where there is less.
    fn take(&self, tree: &Tree, how: Reclaims, before: u64, bytes: Bytes) -> Result<u64> {
        tree.reclaim(&self.path, bytes.as_u64(), how)?;
        Ok(before.saturating_sub(self.reader.read()?.usage))
    }
}

fn reading(at: u64, read: ColdReading) -> Reading {
    Reading {
        at,
        usage: Bytes(read.usage),
        cache: Bytes(read.cache),
        protected: Bytes(read.protected),
        stalled_nanos: read.stalled_micros.saturating_mul(1_000),
        refaults: read.refaults,
    }
}

fn nanos(time: Duration) -> u64 {
    clock::nanos(time)
}
