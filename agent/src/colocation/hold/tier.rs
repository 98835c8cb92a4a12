//! The besteffort tier's cgroup: what it uses, and its quota.

use std::time::{Duration, Instant};

use podwarden_cgroup::{CgroupPath, Error, KernelCpu, QuotaWriter, Tree};
use podwarden_policy::{
    MilliCpu,
    limits::{CpuMax, Limit},
};

use crate::colocation::found::{Found, Originals};

/// The period of the tier's quota, microseconds: short, so that a tier that has used its quota up stands still for
/// a short time only.
const PERIOD_US: u64 = 10_000;
/// The same for a quota that would be too small for that.
const LONG_PERIOD_US: u64 = 100_000;
/// The least quota that the kernel takes (`min_cfs_quota_period` of `kernel/sched/core.c`), microseconds.
const LEAST_US: u64 = 1000;
/// The usage of a shorter time says little.
const SHORTEST: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct Tier {
    path: CgroupPath,
    cpu: KernelCpu,
    quota: QuotaWriter,
    found: Found,
    last: (Instant, u64),
    used: MilliCpu,
    written: bool,
}

impl Tier {
    /// Opens the tier's files, and keeps its quota among the originals.
    pub(super) fn open(
        tree: &Tree,
        path: &CgroupPath,
        originals: Option<&mut Originals>,
    ) -> Result<Self, Error> {
        let cpu = KernelCpu::open(tree, path)?;
        let now = Found::read(tree, path)?;
        let found = originals.map_or(now, |originals| originals.of(path, now).0);
        Ok(Self {
            path: path.clone(),
            last: (Instant::now(), cpu.usage_nanos()?),
            cpu,
            quota: QuotaWriter::open(tree, path)?,
            found,
            used: MilliCpu::ZERO,
            written: false,
        })
    }

    /// What the tier has used of the CPU so far, nanoseconds.
    pub(super) fn used_nanos(&self) -> Option<u64> {
        self.cpu.usage_nanos().ok()
    }

    /// What the tier has used of the CPU lately.
    pub(super) fn used(&mut self, now: Instant) -> MilliCpu {
        let (at, before) = self.last;
        let elapsed = now.duration_since(at);
        if elapsed >= SHORTEST
            && let Ok(used) = self.cpu.usage_nanos()
        {
            let milli = u128::from(used.saturating_sub(before)) * 1000 / elapsed.as_nanos();
            self.used = MilliCpu(u64::try_from(milli).unwrap_or(u64::MAX));
            self.last = (now, used);
        }
        self.used
    }

    /// The figure of the last time that [`Tier::used`] was called.
    pub(super) fn last_used(&self) -> MilliCpu {
        self.used
    }

    /// Takes what another writer has set as found, while the quota is not podwarden's.
    pub(super) fn adopt(&mut self, tree: &Tree, originals: Option<&mut Originals>) {
        if !self.written
            && let Ok(now) = Found::read(tree, &self.path)
            && now != self.found
        {
            self.found = now;
            if let Some(originals) = originals {
                originals.set(&self.path, now);
            }
        }
    }

    /// Lets the tier use so much CPU; `None` for what it could use when it was found.
    pub(super) fn limit(&mut self, limit: Option<MilliCpu>) -> Result<(), Error> {
        let max = limit.map_or(self.found.max, |limit| self.within(limit));
        self.quota.set(max)?;
        self.written = limit.is_some();
        Ok(())
    }

    /// The quota of a limit, never above what was found.
    fn within(&self, limit: MilliCpu) -> CpuMax {
        let of = |period_us: u64| limit.0.saturating_mul(period_us) / 1000;
        let period_us = match of(PERIOD_US) {
            LEAST_US.. => PERIOD_US,
            _ => LONG_PERIOD_US,
        };
        let found = match self.found.max {
            CpuMax {
                quota_us: Limit::At(quota),
                period_us: found,
            } => quota.saturating_mul(period_us) / found.max(1),
            _ => u64::MAX,
        };
        CpuMax {
            quota_us: Limit::At(of(period_us).min(found).max(LEAST_US)),
            period_us,
        }
    }

    /// True where the quota is podwarden's.
    pub(super) fn is_held(&self) -> bool {
        self.written
    }
}
