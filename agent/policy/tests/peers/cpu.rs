//! kubelet `pkg/kubelet/cm/helpers_linux_test.go` and `cgroup_manager_linux_test.go`;
//! opencontainers/cgroups `utils_test.go`.

use podwarden_policy::{
    CpuShares, CpuWeight, MilliCpu,
    convert::{
        milli_to_quota, milli_to_shares, quota_to_milli, shares_after_v2, shares_to_milli,
        shares_to_weight, shares_to_weight_log, weight_to_shares,
    },
};

#[test]
fn milli_cpu_to_shares() {
    let rows = [
        (0, 2),
        (3, 3),
        (500, 512),
        (256_000, 262_144),
        (1_000_000, 262_144),
    ];
    for (milli, shares) in rows {
        assert_eq!(
            milli_to_shares(MilliCpu(milli)),
            CpuShares(shares),
            "{milli}"
        );
    }
}

#[test]
fn shares_to_milli_cpu() {
    // The kubelet's row of -1, which gives 0, cannot be written down here.
    for (shares, milli) in [(0, 0), (3, 3), (512, 500)] {
        assert_eq!(
            shares_to_milli(CpuShares(shares)),
            MilliCpu(milli),
            "{shares}"
        );
    }
}

#[test]
fn milli_cpu_round_trip() {
    for milli in [100, 1000, 4000] {
        let there = milli_to_shares(MilliCpu(milli));
        assert_eq!(shares_to_milli(there), MilliCpu(milli));
    }
}

#[test]
fn milli_cpu_to_quota() {
    for (milli, quota) in [(0, None), (10, Some(1000)), (500, Some(50_000))] {
        assert_eq!(milli_to_quota(MilliCpu(milli), 100_000), quota, "{milli}");
    }
    // The floor of 1 ms, also for a short period.
    assert_eq!(milli_to_quota(MilliCpu(1), 100_000), Some(1000));
    assert_eq!(milli_to_quota(MilliCpu(200), 5000), Some(1000));
}

#[test]
fn quota_to_milli_cpu() {
    // `None` is the kubelet's quota of -1.
    let rows = [
        (None, 0),
        (Some(5000), 50),
        (Some(100_000), 1000),
        (Some(1), 0),
    ];
    for (quota, milli) in rows {
        assert_eq!(quota_to_milli(quota, 100_000), MilliCpu(milli), "{quota:?}");
    }
}

#[test]
fn linear_weight() {
    for (shares, weight) in [(2, 1), (28, 1), (245, 10), (1_000_000_000, 10_000)] {
        assert_eq!(
            shares_to_weight(CpuShares(shares)),
            CpuWeight(weight),
            "{shares}"
        );
    }
    for (weight, shares) in [(1, 2), (4, 80), (10_000, 262_144)] {
        assert_eq!(
            weight_to_shares(CpuWeight(weight)),
            CpuShares(shares),
            "{weight}"
        );
    }
}

#[test]
fn shares_read_back_from_a_weight() {
    let rows = [
        (50, 28, true),
        (50, 27, false),
        (100, 80, true),
        (100, 102, false),
    ];
    for (milli, read_back, equal) in rows {
        let after = shares_after_v2(milli_to_shares(MilliCpu(milli)));
        assert_eq!(after == CpuShares(read_back), equal, "{milli} {read_back}");
    }
}

#[test]
fn logarithmic_weight() {
    // A share of 0, "unset", gives 0, no weight, in runc; here it is below the range and clamped.
    let rows = [
        (0, 1),
        (2, 1),
        (3, 2),
        (102, 17),
        (256, 35),
        (1024, 100),
        (4096, 303),
        (262_143, 10_000),
        (262_144, 10_000),
        (262_145, 10_000),
    ];
    for (shares, weight) in rows {
        assert_eq!(
            shares_to_weight_log(CpuShares(shares)),
            CpuWeight(weight),
            "{shares}"
        );
    }
}
