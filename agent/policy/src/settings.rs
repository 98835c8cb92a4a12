//! Values of a cgroup, whatever the kernel calls their files.

use alloc::collections::BTreeMap;
use core::fmt;

use crate::{
    convert,
    limits::{CpuMax, Limit},
    plan::Change,
    units::{Bytes, CpuShares, CpuWeight},
};

/// A value to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "serde",
    serde(
        tag = "property",
        content = "value",
        rename_all = "camelCase",
        rename_all_fields = "camelCase"
    )
)]
pub enum Setting {
    /// `cpu.shares`; `cpu.weight` by [`convert::shares_to_weight`].
    CpuShares(CpuShares),
    /// `cpu.cfs_quota_us` and `cpu.cfs_period_us`; `cpu.max`.
    CpuMax(CpuMax),
    /// `memory.limit_in_bytes`; `memory.max`.
    MemoryLimit(Limit<Bytes>),
    /// `memory.min`, v2.
    MemoryMin(Bytes),
    /// `memory.low`, v2.
    MemoryLow(Bytes),
    /// `pids.max`.
    PidsLimit(Limit<u64>),
    /// `hugetlb.<size>.limit_in_bytes`; `hugetlb.<size>.max`.
    HugetlbLimit {
        /// Page size.
        page_size: Bytes,
        /// How much.
        limit: Limit<Bytes>,
    },
}

impl Setting {
    /// The name of the property, for people.
    pub const fn property(&self) -> &'static str {
        match self {
            Self::CpuShares(_) => "cpu shares",
            Self::CpuMax(_) => "cpu quota",
            Self::MemoryLimit(_) => "memory limit",
            Self::MemoryMin(_) => "memory min",
            Self::MemoryLow(_) => "memory low",
            Self::PidsLimit(_) => "pids limit",
            Self::HugetlbLimit { .. } => "hugetlb limit",
        }
    }

    /// True for what a fresh cgroup has anyway.
    pub(crate) const fn is_unlimited(&self) -> bool {
        matches!(
            self,
            Self::CpuMax(CpuMax {
                quota_us: Limit::Unlimited,
                ..
            }) | Self::MemoryLimit(Limit::Unlimited)
                | Self::PidsLimit(Limit::Unlimited)
                | Self::HugetlbLimit {
                    limit: Limit::Unlimited,
                    ..
                }
                | Self::MemoryMin(Bytes(0))
                | Self::MemoryLow(Bytes(0))
        )
    }

    /// How writing this would change what was read. What could not be read is not written: the
    /// write would most likely fail, and whether it did anything could not be told.
    pub(crate) fn change_from(&self, observed: &Observed, page: Bytes) -> Change {
        let pages = |bytes: Bytes| bytes.round_down(page);
        let bound = |limit: Limit<Bytes>| match limit {
            Limit::At(bytes) => Limit::At(pages(bytes)),
            Limit::Unlimited => Limit::Unlimited,
        };
        match *self {
            Self::CpuShares(shares) => match observed.cpu {
                None => Change::None,
                Some(CpuShare::Shares(now)) => change(now, shares),
                Some(CpuShare::Weight(now)) => change(now, convert::shares_to_weight(shares)),
            },
            Self::CpuMax(max) => observed.cpu_max.map_or(Change::None, |now| {
                match (now.quota_us, max.quota_us) {
                    // Without a quota the period means nothing.
                    (Limit::Unlimited, Limit::Unlimited) => Change::None,
                    _ => change_cpu_max(now, max),
                }
            }),
            Self::MemoryLimit(limit) => known(observed.memory_limit.map(bound), bound(limit)),
            Self::MemoryMin(min) => known(observed.memory_min.map(pages), pages(min)),
            Self::MemoryLow(low) => known(observed.memory_low.map(pages), pages(low)),
            Self::PidsLimit(limit) => known(observed.pids_limit, limit),
            Self::HugetlbLimit { page_size, limit } => {
                let whole = |limit: Limit<Bytes>| match limit {
                    Limit::At(bytes) => Limit::At(bytes.round_down(page_size)),
                    Limit::Unlimited => Limit::Unlimited,
                };
                let now = observed.hugetlb.get(&page_size).copied();
                known(now.map(whole), whole(limit))
            }
        }
    }
}

fn known<T: Ord + Copy>(now: Option<T>, wanted: T) -> Change {
    now.map_or(Change::None, |now| change(now, wanted))
}

fn change<T: Ord + Copy>(now: T, wanted: T) -> Change {
    match wanted.cmp(&now) {
        core::cmp::Ordering::Less => Change::Lower,
        core::cmp::Ordering::Equal => Change::None,
        core::cmp::Ordering::Greater => Change::Raise,
    }
}

/// By the bandwidth that quota and period make together; v1 refuses a child's above its parent's.
fn change_cpu_max(now: CpuMax, wanted: CpuMax) -> Change {
    if now == wanted {
        return Change::None;
    }
    let (Limit::At(a), Limit::At(b)) = (now.quota_us, wanted.quota_us) else {
        return change(now.quota_us, wanted.quota_us);
    };
    let bandwidth_now = u128::from(a) * u128::from(wanted.period_us);
    let bandwidth = u128::from(b) * u128::from(now.period_us);
    if bandwidth < bandwidth_now {
        Change::Lower
    } else {
        Change::Raise
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.property())?;
        match self {
            Self::CpuShares(shares) => shares.fmt(f),
            Self::CpuMax(max) => write!(f, "{} of {} us", max.quota_us, max.period_us),
            Self::MemoryLimit(limit) => limit.fmt(f),
            Self::MemoryMin(bytes) | Self::MemoryLow(bytes) => bytes.fmt(f),
            Self::PidsLimit(limit) => limit.fmt(f),
            Self::HugetlbLimit { page_size, limit } => write!(f, "{page_size} {limit}"),
        }
    }
}

/// A cgroup's part of CPU time as its version states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub enum CpuShare {
    /// v1.
    Shares(CpuShares),
    /// v2.
    Weight(CpuWeight),
}

/// What a cgroup holds. `None` is "could not be read, or there is no such file", not zero.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase", default))]
pub struct Observed {
    /// podwarden made this cgroup, and may remove it.
    pub ours: bool,
    /// Shares or weight.
    pub cpu: Option<CpuShare>,
    /// Quota and period.
    pub cpu_max: Option<CpuMax>,
    /// The memory limit.
    pub memory_limit: Option<Limit<Bytes>>,
    /// `memory.min`.
    pub memory_min: Option<Bytes>,
    /// `memory.low`.
    pub memory_low: Option<Bytes>,
    /// `pids.max`.
    pub pids_limit: Option<Limit<u64>>,
    /// Page size to limit.
    pub hugetlb: BTreeMap<Bytes, Limit<Bytes>>,
    /// Memory in use, page cache included.
    pub memory_usage: Option<Bytes>,
    /// Usage minus inactive file.
    pub memory_working_set: Option<Bytes>,
}
