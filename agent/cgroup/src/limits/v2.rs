//! Names and formats of cgroup v2 (`Documentation/admin-guide/cgroup-v2.rst` of the kernel).

use podwarden_policy::{
    CpuShares,
    convert::{DEFAULT_PERIOD_US, shares_to_weight},
};

use super::CpuQuota;
use crate::io::parse_u64;

pub(super) const CPU_WEIGHT: &str = "cpu.weight";
pub(super) const CPU_MAX: &str = "cpu.max";
pub(super) const MEMORY_LIMIT: &str = "memory.max";
pub(super) const MEMORY_HIGH: &str = "memory.high";
pub(super) const MEMORY_RECLAIM: &str = "memory.reclaim";
pub(super) const MEMORY_MIN: &str = "memory.min";
pub(super) const MEMORY_LOW: &str = "memory.low";
/// After `hugetlb.<size>` and, for reservations, `.rsvd`.
pub(super) const HUGETLB_LIMIT: &str = ".max";
/// The same in both versions.
pub(super) const PIDS_MAX: &str = "pids.max";

/// No limit.
pub(super) const MAX: &str = "max";

/// The weight that the kubelet writes to its own cgroups for these shares.
pub(super) fn weight(shares: u64) -> u64 {
    shares_to_weight(CpuShares(shares)).as_u64()
}

/// The line for `cpu.max`.
pub(super) fn cpu_max(quota: Option<CpuQuota>) -> String {
    match quota {
        Some(CpuQuota {
            quota_us,
            period_us,
        }) => format!("{quota_us} {period_us}"),
        None => format!("{MAX} {DEFAULT_PERIOD_US}"),
    }
}

/// Reads `cpu.max`: `Some(None)` is no quota, `None` is not such a line.
pub(super) fn parse_cpu_max(text: &str) -> Option<Option<CpuQuota>> {
    let (quota, period) = text.trim_ascii().split_once(' ')?;
    let period_us = parse_u64(period.as_bytes())?;
    if quota == MAX {
        return Some(None);
    }
    let quota_us = parse_u64(quota.as_bytes())?;
    Some(Some(CpuQuota {
        quota_us,
        period_us,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_max_lines() {
        let quota = |quota_us, period_us| {
            Some(CpuQuota {
                quota_us,
                period_us,
            })
        };
        assert_eq!(parse_cpu_max("max 100000\n"), Some(None));
        assert_eq!(
            parse_cpu_max("50000 100000\n"),
            Some(quota(50_000, 100_000))
        );
        for bad in ["", "max", "50000", "x 100000", "50000 x", "-1 100000"] {
            assert_eq!(parse_cpu_max(bad), None, "{bad:?}");
        }
        for value in [None, quota(1000, 1_000_000)] {
            assert_eq!(parse_cpu_max(&cpu_max(value)), Some(value));
        }
    }
}
