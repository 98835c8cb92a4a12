//! What a setting is called in each cgroup version, and what is written to the file.

use podwarden_policy::{
    Bytes,
    container::ContainerValue,
    convert,
    limits::{CpuMax, Limit},
    reason::Reason,
    settings::Setting,
};

use crate::hierarchy::recorded::Version;

/// A file below a cgroup's directory, and its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) reason: String,
}

/// The files that a setting is written to; none where the version has nothing like it.
pub(crate) fn files(setting: &Setting, reason: &Reason, version: Version) -> Vec<File> {
    let v2 = version == Version::V2;
    let one = |v1_name: &str, v2_name: &str, value: String| {
        let name = if v2 { v2_name } else { v1_name };
        vec![file(name, value, reason.to_string())]
    };
    match *setting {
        Setting::CpuShares(shares) if v2 => {
            let weight = convert::shares_to_weight(shares);
            let curve = format!("{reason}; weight 1 + ({shares} - 2) * 9999 / 262142 = {weight}");
            vec![file("cpu.weight", weight.to_string(), curve)]
        }
        Setting::CpuShares(shares) => one("cpu.shares", "", shares.to_string()),
        Setting::CpuMax(max) => cpu_max(max, reason, v2),
        Setting::MemoryLimit(limit) => one("memory.limit_in_bytes", "memory.max", bytes(limit, v2)),
        Setting::MemoryMin(Bytes(amount)) if v2 => one("", "memory.min", amount.to_string()),
        Setting::MemoryLow(Bytes(amount)) if v2 => one("", "memory.low", amount.to_string()),
        Setting::MemoryMin(_) | Setting::MemoryLow(_) => Vec::new(),
        // The same in both versions.
        Setting::PidsLimit(limit) => one("pids.max", "pids.max", limit.to_string()),
        Setting::HugetlbLimit { page_size, limit } => {
            let size = page_size_name(page_size);
            one(
                &format!("hugetlb.{size}.limit_in_bytes"),
                &format!("hugetlb.{size}.max"),
                bytes(limit, v2),
            )
        }
    }
}

/// The files of a container, and `oom_score_adj`, which is one of its processes'. Runtimes take
/// shares to a weight by the logarithmic curve.
pub(crate) fn container_files(
    value: &ContainerValue,
    reason: &Reason,
    version: Version,
) -> Vec<File> {
    let v2 = version == Version::V2;
    let one = |name: &str, value: String| vec![file(name, value, reason.to_string())];
    match *value {
        ContainerValue::CpuShares(shares) if v2 => {
            let weight = convert::shares_to_weight_log(shares);
            let curve = format!(
                "{reason}; weight 10^((l^2 + 125 l) / 612 - 7 / 34) with l = log2 {shares}, \
                 rounded up = {weight} (runc 1.3.2, crun 1.23 and later)"
            );
            vec![file("cpu.weight", weight.to_string(), curve)]
        }
        ContainerValue::CpuShares(shares) => one("cpu.shares", shares.to_string()),
        ContainerValue::CpuMax(max) => cpu_max(max, reason, v2),
        ContainerValue::MemoryLimit(limit) => files(&Setting::MemoryLimit(limit), reason, version),
        ContainerValue::MemoryMin(amount) => files(&Setting::MemoryMin(amount), reason, version),
        ContainerValue::MemoryLow(amount) => files(&Setting::MemoryLow(amount), reason, version),
        ContainerValue::MemoryHigh(limit) if v2 => one("memory.high", bytes(limit, v2)),
        ContainerValue::SwapMax(Bytes(amount)) if v2 => one("memory.swap.max", amount.to_string()),
        ContainerValue::MemoryHigh(_) | ContainerValue::SwapMax(_) => Vec::new(),
        ContainerValue::OomScoreAdj(score) => one("oom_score_adj", score.to_string()),
    }
}

fn file(name: &str, value: String, reason: String) -> File {
    File {
        name: name.to_owned(),
        value,
        reason,
    }
}

fn cpu_max(max: CpuMax, reason: &Reason, v2: bool) -> Vec<File> {
    let CpuMax {
        quota_us,
        period_us,
    } = max;
    if v2 {
        let value = format!("{quota_us} {period_us}");
        return vec![file("cpu.max", value, reason.to_string())];
    }
    match quota_us {
        Limit::Unlimited => vec![file(
            "cpu.cfs_quota_us",
            "-1".to_owned(),
            reason.to_string(),
        )],
        Limit::At(quota) => vec![
            file(
                "cpu.cfs_period_us",
                period_us.to_string(),
                "cpuCFSQuotaPeriod".to_owned(),
            ),
            file("cpu.cfs_quota_us", quota.to_string(), reason.to_string()),
        ],
    }
}

fn bytes(limit: Limit<Bytes>, v2: bool) -> String {
    match limit {
        Limit::At(Bytes(amount)) => amount.to_string(),
        Limit::Unlimited if v2 => "max".to_owned(),
        Limit::Unlimited => "-1".to_owned(),
    }
}

/// `mem_fmt` of the kernel's `mm/hugetlb_cgroup.c`.
fn page_size_name(size: Bytes) -> String {
    match size {
        Bytes(n) if n >= Bytes::GI.0 => format!("{}GB", n >> 30),
        Bytes(n) if n >= Bytes::MI.0 => format!("{}MB", n >> 20),
        Bytes(n) => format!("{}KB", n >> 10),
    }
}

#[cfg(test)]
mod tests {
    use podwarden_policy::CpuShares;

    use super::*;

    #[test]
    fn names_and_values_of_both_versions() {
        let quota = |quota_us| {
            Setting::CpuMax(CpuMax {
                quota_us,
                period_us: 100_000,
            })
        };
        let huge = Setting::HugetlbLimit {
            page_size: Bytes::mebi(2),
            limit: Limit::Unlimited,
        };
        let cases: &[(Setting, &str, &str)] = &[
            (
                Setting::CpuShares(CpuShares(1024)),
                "cpu.shares=1024",
                "cpu.weight=39",
            ),
            (
                quota(Limit::At(5000)),
                "cpu.cfs_period_us=100000 cpu.cfs_quota_us=5000",
                "cpu.max=5000 100000",
            ),
            (
                quota(Limit::Unlimited),
                "cpu.cfs_quota_us=-1",
                "cpu.max=max 100000",
            ),
            (
                Setting::MemoryLimit(Limit::At(Bytes(7))),
                "memory.limit_in_bytes=7",
                "memory.max=7",
            ),
            (
                Setting::MemoryLimit(Limit::Unlimited),
                "memory.limit_in_bytes=-1",
                "memory.max=max",
            ),
            (Setting::MemoryMin(Bytes(1)), "", "memory.min=1"),
            (Setting::MemoryLow(Bytes(1)), "", "memory.low=1"),
            (
                Setting::PidsLimit(Limit::Unlimited),
                "pids.max=max",
                "pids.max=max",
            ),
            (huge, "hugetlb.2MB.limit_in_bytes=-1", "hugetlb.2MB.max=max"),
        ];
        let text = |setting, version| {
            let files = files(setting, &Reason::NoLimit, version);
            let files: Vec<_> = files
                .iter()
                .map(|f| format!("{}={}", f.name, f.value))
                .collect();
            files.join(" ")
        };
        for (setting, v1, v2) in cases {
            assert_eq!(text(setting, Version::V1), *v1, "{setting}");
            assert_eq!(text(setting, Version::V2), *v2, "{setting}");
        }
        assert_eq!(page_size_name(Bytes::gibi(1)), "1GB");
        assert_eq!(page_size_name(Bytes(64 << 10)), "64KB");
    }
}
