//! One container's cgroup, or the pod's: as it was found and as it was left, and its next quota.

use std::time::{Duration, Instant};

use podwarden_cgroup::{CgroupPath, Error, Tree};
use podwarden_policy::{
    MilliCpu,
    colocation::burst::{
        Bandwidth, BurstConfig, Container, NodeState, Operation, base_quota, kernel_burst_us,
        next_quota, operation,
    },
    convert::{DEFAULT_PERIOD_US, quota_to_milli},
    limits::{CpuMax, Limit},
};

use super::{
    Parts, Why,
    meter::{Meter, Quota, Seen},
};
use crate::colocation::found::{Found, Originals};

/// A quota falls by no more than a step in this time, and a container that cannot be helped is looked at no
/// more often.
pub(super) const PACE: Duration = Duration::from_millis(100);
/// A cgroup as it was found and as it was left.
#[derive(Debug)]
pub(super) struct Cgroup {
    pub(super) path: CgroupPath,
    pub(super) found: Found,
    pub(super) now: Found,
}

#[derive(Debug)]
pub(super) struct Tracked {
    pub(super) name: String,
    pub(super) cgroup: Cgroup,
    pub(super) meter: Meter,
    /// When its quota was last stepped down.
    pub(super) lowered: Option<Instant>,
    /// When a report was sent, and the quota that it named.
    pub(super) reported: (Option<Instant>, u64),
    /// What the next report says, besides its quotas.
    pub(super) why: (Why, u64),
}

impl Cgroup {
    pub(super) fn open(tree: &Tree, path: &CgroupPath) -> Result<Self, Error> {
        let found = Found::read(tree, path)?;
        Ok(Self {
            path: path.to_owned(),
            found,
            now: found,
        })
    }

    /// Takes what another writer has set as found; true where there was something.
    pub(super) fn adopt(&mut self, tree: &Tree, originals: &mut Originals) -> Result<bool, Error> {
        let read = Found::read(tree, &self.path)?;
        if read.max == self.now.max && read.id == self.now.id {
            return Ok(false);
        }
        let burst_us = self.found.burst_us.filter(|_| read.id == self.found.id);
        self.found = Found {
            burst_us: burst_us.or(read.burst_us),
            ..read
        };
        self.now = read;
        if originals.has(&self.path) {
            originals.set(&self.path, self.found);
        }
        Ok(true)
    }

    pub(super) fn change(&self, then: Bandwidth) -> (Bandwidth, Bandwidth) {
        (self.now.bandwidth(), then)
    }
}

impl Tracked {
    pub(super) fn quota(&self) -> Quota {
        let of = |found: &Found| found.bandwidth().quota_us.unwrap_or(0);
        Quota {
            base_us: of(&self.cgroup.found),
            now_us: of(&self.cgroup.now),
            burst_us: self.cgroup.now.burst_us.unwrap_or(0),
            period_us: self.cgroup.now.max.period_us,
        }
    }

    pub(super) fn limit(&self) -> MilliCpu {
        let quota = self.quota();
        quota_to_milli(Some(quota.base_us), quota.period_us)
    }

    /// The quota after a step, and why.
    pub(super) fn next(
        &self,
        seen: &Seen,
        config: &BurstConfig,
        state: NodeState,
        now: Instant,
    ) -> (u64, Why) {
        let quota = self.quota();
        let container = Container {
            limit: self.limit(),
            quota_us: scale(quota.now_us, quota.period_us, DEFAULT_PERIOD_US),
            throttled: Some(seen.throttled),
            allowed: seen.allowed,
        };
        let why = match (seen.allowed, state) {
            (false, _) => Why::NoTokens,
            (true, NodeState::Overload) => Why::NodeBusy,
            _ => Why::Throttled,
        };
        let lowered_now = self.lowered.is_some_and(|at| now.duration_since(at) < PACE);
        let falls = operation(&container, config, state) == Operation::Down;
        if (falls && lowered_now) || base_quota(container.limit).is_none() {
            return (quota.now_us, why);
        }
        let next = next_quota(&container, config, state).unwrap_or(container.quota_us);
        let next = scale(next, DEFAULT_PERIOD_US, quota.period_us);
        (next.max(quota.base_us), why)
    }

    /// The burst beside a quota. It stays within the quota that was found, which the kubelet and the runtime write again at
    /// any change: the kernel refuses a quota below the burst.
    pub(super) fn burst(&self, config: &BurstConfig, quota_us: u64) -> u64 {
        let period = self.cgroup.now.max.period_us;
        let hundred = scale(quota_us, period, DEFAULT_PERIOD_US);
        let burst = kernel_burst_us(self.limit(), config, Some(hundred));
        let burst = scale(burst, DEFAULT_PERIOD_US, period);
        burst
            .max(self.cgroup.found.burst_us.unwrap_or(0))
            .min(self.quota().base_us)
    }
}

/// A quota of one period as that of another.
fn scale(quota_us: u64, from: u64, to: u64) -> u64 {
    let scaled = (u128::from(quota_us) * u128::from(to)).checked_div(from.into());
    u64::try_from(scaled.unwrap_or(0)).unwrap_or(u64::MAX)
}

pub(super) fn note(parts: &Parts, cgroup: &Cgroup, then: Bandwidth) {
    if let Some(quota_us) = then.quota_us {
        let written = CpuMax {
            quota_us: Limit::At(quota_us),
            period_us: cgroup.now.max.period_us,
        };
        parts.ours.note(&cgroup.path, cgroup.found.max, written);
    }
}
