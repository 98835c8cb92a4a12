//! CPU figures from one scale to another. Every formula has its one home here.
//!
//! There are two curves from shares to weight, and one tree carries both: the kubelet writes its
//! own cgroups (kubepods, tiers, pods) by the linear one, runc from 1.3.2 and crun from 1.23 write
//! containers by the logarithmic one.

use crate::units::{CpuShares, CpuWeight, MilliCpu};

/// Shares of one CPU (`SharesPerCPU` of kubelet `pkg/kubelet/cm/helpers_linux.go`).
pub const SHARES_PER_CPU: u64 = 1024;
/// The CFS period that the kubelet sets unless configured otherwise, microseconds.
pub const DEFAULT_PERIOD_US: u64 = 100_000;
/// The least CFS quota, microseconds; the kernel refuses less than 1 ms
/// (`min_cfs_quota_period` of `kernel/sched/core.c`).
pub const MIN_QUOTA_US: u64 = 1000;

const MILLI_PER_CPU: u64 = 1000;
const SHARES_SPAN: u64 = CpuShares::MAX.0 - CpuShares::MIN.0;
const WEIGHT_SPAN: u64 = CpuWeight::MAX.0 - CpuWeight::MIN.0;

/// A share of CPU for a request, clamped to what the kernel keeps
/// (`MilliCPUToShares` of kubelet `pkg/kubelet/cm/helpers_linux.go`).
pub fn milli_to_shares(cpu: MilliCpu) -> CpuShares {
    let shares = u128::from(cpu.0) * u128::from(SHARES_PER_CPU) / u128::from(MILLI_PER_CPU);
    let shares = u64::try_from(shares).unwrap_or(u64::MAX);
    CpuShares(shares).clamp(CpuShares::MIN, CpuShares::MAX)
}

/// The request that gives these shares, rounded up
/// (`sharesToMilliCPU` of kubelet `pkg/kubelet/kuberuntime/helpers_linux.go`).
pub fn shares_to_milli(shares: CpuShares) -> MilliCpu {
    let milli = (u128::from(shares.0) * u128::from(MILLI_PER_CPU)).div_ceil(SHARES_PER_CPU.into());
    MilliCpu(u64::try_from(milli).unwrap_or(u64::MAX))
}

/// The CFS quota of a limit for a period, both in microseconds; `None` for a limit of zero, which
/// is none (`MilliCPUToQuota` of kubelet `pkg/kubelet/cm/helpers_linux.go`).
pub fn milli_to_quota(cpu: MilliCpu, period_us: u64) -> Option<u64> {
    if cpu.is_zero() {
        return None;
    }
    let quota = u128::from(cpu.0) * u128::from(period_us) / u128::from(MILLI_PER_CPU);
    Some(u64::try_from(quota).unwrap_or(u64::MAX).max(MIN_QUOTA_US))
}

/// The limit that a CFS quota stands for; zero when there is no quota or no period
/// (`quotaToMilliCPU` of kubelet `pkg/kubelet/kuberuntime/helpers_linux.go`).
pub fn quota_to_milli(quota_us: Option<u64>, period_us: u64) -> MilliCpu {
    let milli = u128::from(quota_us.unwrap_or(0)) * u128::from(MILLI_PER_CPU);
    let milli = milli.checked_div(period_us.into()).unwrap_or(0);
    MilliCpu(u64::try_from(milli).unwrap_or(u64::MAX))
}

/// The linear curve, of the kubelet's own cgroups: `1 + (shares - 2) * 9999 / 262142`
/// (`cpuSharesToCPUWeight` of kubelet `pkg/kubelet/cm/cgroup_v2_manager_linux.go`).
pub fn shares_to_weight(shares: CpuShares) -> CpuWeight {
    let shares = shares.clamp(CpuShares::MIN, CpuShares::MAX);
    CpuWeight(CpuWeight::MIN.0 + (shares.0 - CpuShares::MIN.0) * WEIGHT_SPAN / SHARES_SPAN)
}

/// The linear curve backwards: `2 + (weight - 1) * 262142 / 9999`
/// (`cpuWeightToCPUShares` of kubelet `pkg/kubelet/cm/cgroup_v2_manager_linux.go`).
pub fn weight_to_shares(weight: CpuWeight) -> CpuShares {
    let weight = weight.clamp(CpuWeight::MIN, CpuWeight::MAX);
    CpuShares(CpuShares::MIN.0 + (weight.0 - CpuWeight::MIN.0) * SHARES_SPAN / WEIGHT_SPAN)
}

/// What a cgroup of the kubelet's own reads back as on cgroup v2, where the weight keeps less than
/// the shares (`CPUSharesEqualAfterV2RoundTrip` of kubelet `pkg/kubelet/cm/helpers_linux.go`).
pub fn shares_after_v2(shares: CpuShares) -> CpuShares {
    weight_to_shares(shares_to_weight(shares))
}

/// The logarithmic curve, of containers: with `l = log2(shares)`,
/// `ceil(10^((l^2 + 125 l) / 612 - 7 / 34))`, which takes 2 to 1, 1024 to 100 and 262144 to 10000
/// (`ConvertCPUSharesToCgroupV2Value` of opencontainers/cgroups `utils.go`).
///
/// Computed with 56 binary digits behind the point; equal to the double-precision result for every
/// share in the kernel's range.
pub fn shares_to_weight_log(shares: CpuShares) -> CpuWeight {
    let shares = shares.clamp(CpuShares::MIN, CpuShares::MAX);
    let l = fixed::log2(shares.0);
    // (l^2 + 125 l - 126) / 612, the constant brought under the common denominator.
    let exponent = (fixed::mul(l, l) + 125 * l - 126 * fixed::ONE) / 612;
    let power = fixed::exp2(fixed::mul(exponent, fixed::LOG2_10));
    // Powers of two meet whole weights at both ends and at the default, where the last digits of
    // the approximation must not lift the result to the next weight.
    let weight = (power.saturating_sub(fixed::TOLERANCE)).div_ceil(fixed::ONE);
    CpuWeight(u64::try_from(weight).unwrap_or(u64::MAX)).clamp(CpuWeight::MIN, CpuWeight::MAX)
}

/// Fixed-point numbers with 56 binary digits behind the point.
mod fixed {
    /// 1.0.
    pub(super) const ONE: u128 = 1 << DIGITS;
    /// log2(10), rounded down.
    pub(super) const LOG2_10: u128 = 0x0352_69e1_2f34_6e2b;
    /// Far above the error of [`exp2`] (below 2^-35 for results up to 10000), far below the
    /// distance of any other result from a whole number.
    pub(super) const TOLERANCE: u128 = 1 << (DIGITS - 30);

    const DIGITS: u32 = 56;

    pub(super) const fn mul(a: u128, b: u128) -> u128 {
        (a * b) >> DIGITS
    }

    /// log2 of an integer below 2^56, digit by digit: squaring the mantissa doubles the logarithm.
    pub(super) fn log2(n: u64) -> u128 {
        let Some(whole) = n.checked_ilog2() else {
            return 0;
        };
        let mut mantissa = (u128::from(n) << DIGITS) >> whole;
        let mut result = u128::from(whole) << DIGITS;
        for digit in (0..DIGITS).rev() {
            mantissa = mul(mantissa, mantissa);
            if mantissa >= 2 * ONE {
                mantissa >>= 1;
                result |= 1 << digit;
            }
        }
        result
    }

    /// `ROOTS[i]` is `2^(2^-(i+1))`.
    const ROOTS: [u128; DIGITS as usize] = {
        let mut roots = [0; DIGITS as usize];
        let mut root = 2 * ONE;
        let mut i = 0;
        while i < roots.len() {
            root = (root << DIGITS).isqrt();
            roots[i] = root;
            i += 1;
        }
        roots
    };

    /// 2 to the power of `x`, for `x` below 64.
    pub(super) fn exp2(x: u128) -> u128 {
        let mut result = ONE;
        for (i, root) in (1..=DIGITS).zip(ROOTS) {
            if x & (1 << (DIGITS - i)) != 0 {
                result = mul(result, root);
            }
        }
        result << (x >> DIGITS)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    #[test]
    fn log_curve_equals_doubles_everywhere() {
        for shares in CpuShares::MIN.0..=CpuShares::MAX.0 {
            let l = (shares as f64).log2();
            let exponent = (l * l + 125.0 * l) / 612.0 - 7.0 / 34.0;
            let expected = match shares {
                2 => 1,
                262_144 => 10_000,
                _ => 10f64.powf(exponent).ceil() as u64,
            };
            assert_eq!(
                shares_to_weight_log(CpuShares(shares)),
                CpuWeight(expected),
                "shares {shares}"
            );
        }
    }

    #[test]
    fn extremes_do_not_overflow() {
        assert_eq!(milli_to_shares(MilliCpu(u64::MAX)), CpuShares::MAX);
        assert_eq!(
            shares_to_milli(CpuShares(u64::MAX)).0,
            u64::MAX / 1024 * 1000 + 1000
        );
        assert_eq!(milli_to_quota(MilliCpu(u64::MAX), u64::MAX), Some(u64::MAX));
        assert_eq!(quota_to_milli(Some(1), 0), MilliCpu::ZERO);
        assert_eq!(shares_to_weight(CpuShares(0)), CpuWeight::MIN);
        assert_eq!(weight_to_shares(CpuWeight(0)), CpuShares::MIN);
        assert_eq!(shares_to_weight_log(CpuShares(u64::MAX)), CpuWeight::MAX);
    }
}
