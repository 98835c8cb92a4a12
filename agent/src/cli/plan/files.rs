//! The file and the text of a setting in each cgroup version.

use podwarden_policy::{
    Bytes,
    container::ContainerValue,
    convert,
    reason::Reason,
    settings::{CpuShare, Property, Row, Setting, Value, table},
};
use serde::Serialize;

use crate::hierarchy::recorded::Version;

/// A file below a cgroup's directory, and its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct File {
    #[serde(rename = "file")]
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) reason: String,
}

/// The files that a setting is written to; none where the version has nothing like it.
pub(crate) fn files(setting: &Setting, reason: &Reason, version: Version) -> Vec<File> {
    let value = setting.value(version.into());
    let reason = match (setting, value) {
        (Setting::CpuShares(shares), Value::Share(CpuShare::Weight(weight))) => {
            format!("{reason}; weight 1 + ({shares} - 2) * 9999 / 262142 = {weight}")
        }
        _ => reason.to_string(),
    };
    held(setting.property(), value, &reason, version)
}

/// The files of a property that holds `value`.
pub(crate) fn held(property: Property, value: Value, reason: &str, version: Version) -> Vec<File> {
    rows(property.row(), property.page_size(), value, reason, version)
}

fn rows(row: &Row, size: Option<Bytes>, value: Value, reason: &str, version: Version) -> Vec<File> {
    row.texts(version.into(), size, value)
        .map(|(name, value)| File {
            reason: match &*name {
                "cpu.cfs_period_us" => "cpuCFSQuotaPeriod".to_owned(),
                _ => reason.to_owned(),
            },
            name,
            value,
        })
        .collect()
}

/// The files of a container, and `oom_score_adj`, which is one of its processes'. Runtimes take
/// shares to a weight by the logarithmic curve.
pub(crate) fn container_files(
    value: &ContainerValue,
    reason: &Reason,
    version: Version,
) -> Vec<File> {
    let (row, held) = match *value {
        ContainerValue::CpuShares(shares) if version == Version::V2 => {
            let weight = convert::shares_to_weight_log(shares);
            let curve = format!(
                "{reason}; weight 10^((l^2 + 125 l) / 612 - 7 / 34) with l = log2 {shares}, \
                 rounded up = {weight} (runc 1.3.2, crun 1.23 and later; before {linear}, by the kubelet's curve)",
                linear = convert::shares_to_weight(shares),
            );
            let weight = Value::Share(CpuShare::Weight(weight));
            return rows(&table::CPU_SHARES, None, weight, &curve, version);
        }
        ContainerValue::CpuShares(shares) => {
            (&table::CPU_SHARES, Value::Share(CpuShare::Shares(shares)))
        }
        ContainerValue::CpuMax(max) => (&table::CPU_QUOTA, Value::CpuMax(max)),
        ContainerValue::MemoryLimit(limit) => (&table::MEMORY_LIMIT, Value::Limit(limit)),
        ContainerValue::MemoryMin(amount) => (&table::MEMORY_MIN, Value::Bytes(amount)),
        ContainerValue::MemoryLow(amount) => (&table::MEMORY_LOW, Value::Bytes(amount)),
        ContainerValue::MemoryHigh(limit) => (&table::MEMORY_HIGH, Value::Limit(limit)),
        ContainerValue::SwapMax(amount) => (&table::SWAP_LIMIT, Value::Bytes(amount)),
        ContainerValue::OomScoreAdj(score) => {
            return vec![File {
                name: "oom_score_adj".to_owned(),
                value: score.to_string(),
                reason: reason.to_string(),
            }];
        }
    };
    rows(row, None, held, &reason.to_string(), version)
}

#[cfg(test)]
mod tests {
    use podwarden_policy::{
        CpuShares,
        limits::{CpuMax, Limit},
    };

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
    }
}
