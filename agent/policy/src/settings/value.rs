//! What a file holds: parsed, printed, rounded and compared.

use alloc::{format, string::String};
use core::fmt;

use derive_more::Display;

use super::{CpuShare, Version};
use crate::{
    convert::DEFAULT_PERIOD_US,
    limits::{CpuMax, Limit},
    units::Bytes,
};

/// A memory limit from here on means none. v1 shows no limit as `LONG_MAX` rounded down to
/// whole pages (`PAGE_COUNTER_MAX`, `include/linux/page_counter.h`), which depends on the page
/// size; 4 EiB is far below that and far above any machine.
const UNLIMITED: u64 = 1 << 62;

/// A decimal number, spaces around it not counting.
pub fn parse_u64(bytes: &[u8]) -> Option<u64> {
    let digits = bytes.trim_ascii();
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |value, byte| {
        let digit = byte.checked_sub(b'0').filter(|d| *d <= 9)?;
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// A limit of either version.
pub fn parse_limit(text: &[u8]) -> Option<Limit<Bytes>> {
    if text.trim_ascii() == b"max" {
        return Some(Limit::Unlimited);
    }
    let bytes = parse_u64(text)?;
    Some(if bytes < UNLIMITED {
        Limit::At(Bytes(bytes))
    } else {
        Limit::Unlimited
    })
}

pub(super) fn number<T: fmt::Display + Copy>(limit: Limit<T>, version: Version) -> String {
    match (limit, version) {
        (Limit::At(_), _) | (_, Version::V2) => format!("{limit}"),
        (Limit::Unlimited, Version::V1) => "-1".into(),
    }
}

/// What a file holds, in the file's own unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
pub enum Value {
    /// Shares (v1) or weight (v2).
    Share(CpuShare),
    /// Quota and period.
    CpuMax(CpuMax),
    /// Memory limits, and those of huge pages.
    Limit(Limit<Bytes>),
    /// Protected memory.
    Bytes(Bytes),
    /// Number of tasks.
    Tasks(Limit<u64>),
}

impl Value {
    /// The line of a file that holds all of it.
    pub fn text(&self, version: Version) -> String {
        match *self {
            Self::Share(share) => format!("{}", share.number()),
            Self::CpuMax(CpuMax {
                quota_us,
                period_us,
            }) => format!("{} {period_us}", number(quota_us, version)),
            Self::Limit(limit) => match limit {
                Limit::At(Bytes(bytes)) => format!("{bytes}"),
                Limit::Unlimited => number(limit, version),
            },
            Self::Bytes(Bytes(bytes)) => format!("{bytes}"),
            Self::Tasks(limit) => number(limit, version),
        }
    }

    /// What the kernel makes of it: whole pages (`page_counter_memparse`, `mm/page_counter.c`), and no
    /// period without a quota.
    #[must_use]
    pub fn rounded(self, page: Bytes) -> Self {
        match self {
            Self::CpuMax(max) if max.quota_us.bound().is_none() => Self::CpuMax(CpuMax::UNLIMITED),
            Self::Limit(Limit::At(bytes)) => Self::Limit(Limit::At(bytes.round_down(page))),
            Self::Bytes(bytes) => Self::Bytes(bytes.round_down(page)),
            other => other,
        }
    }

    /// How writing `wanted` changes it; both are rounded. Values of two formats do not compare.
    pub(crate) fn change_to(self, wanted: Self) -> Change {
        match (self, wanted) {
            (Self::Share(CpuShare::Shares(now)), Self::Share(CpuShare::Shares(wanted))) => {
                change(now, wanted)
            }
            (Self::Share(CpuShare::Weight(now)), Self::Share(CpuShare::Weight(wanted))) => {
                change(now, wanted)
            }
            (Self::CpuMax(now), Self::CpuMax(wanted)) => change_cpu_max(now, wanted),
            (Self::Limit(now), Self::Limit(wanted)) => change(now, wanted),
            (Self::Bytes(now), Self::Bytes(wanted)) => change(now, wanted),
            (Self::Tasks(now), Self::Tasks(wanted)) => change(now, wanted),
            _ => Change::None,
        }
    }
}

/// How a write changes a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    Raise,
    Lower,
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

impl CpuMax {
    /// What a fresh cgroup has.
    pub const UNLIMITED: Self = Self {
        quota_us: Limit::Unlimited,
        period_us: DEFAULT_PERIOD_US,
    };
}
