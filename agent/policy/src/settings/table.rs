//! The table: which file holds a setting, in which format, and what systemd calls it.
//!
//! Formats are those of the kernel's `Documentation/admin-guide/cgroup-v1` and
//! `Documentation/admin-guide/cgroup-v2.rst`.

use alloc::{format, string::String};

use super::{
    Controller, CpuShare,
    value::{Value, number, parse_limit, parse_u64},
};
use crate::{
    convert::SHARES_PER_CPU,
    limits::{CpuMax, Limit},
    units::{Bytes, CpuShares, CpuWeight},
};

/// The interface that a controller's hierarchy has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    /// `cpu.shares`, `memory.limit_in_bytes`.
    V1,
    /// `cpu.weight`, `memory.max`.
    V2,
}

/// How a file is read, written, rounded and compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Shares (v1) or weight (v2).
    Share,
    /// A quota file and a period file (v1), or one line with both (v2).
    Quota,
    /// Bytes or none, in whole pages.
    Limit,
    /// Bytes, in whole pages; `max` is all of the cgroup's memory.
    Protection,
    /// A number of tasks or none.
    Tasks,
    /// Bytes or none, in whole huge pages of the size in the file's name.
    HugePages,
}

/// One row: a setting in every place that has a name for it.
#[derive(Debug, PartialEq, Eq)]
pub struct Row {
    /// The name for people.
    pub name: &'static str,
    /// The controller whose hierarchy has the files.
    pub controller: Controller,
    /// The files on v1, the one that decides last; `<size>` stands for a huge page size.
    pub v1: &'static [&'static str],
    /// The files on v2.
    pub v2: &'static [&'static str],
    /// How the files are read and written.
    pub format: Format,
    /// The systemd property on v1 and on v2; `None` for what systemd does not manage.
    pub systemd: (Option<&'static str>, Option<&'static str>),
}

const SIZE: &str = "<size>";

/// CPU shares (v1) or weight (v2).
pub static CPU_SHARES: Row = Row::new("cpu shares", Controller::Cpu, Format::Share)
    .v1(&["cpu.shares"], Some("CPUShares"))
    .v2(&["cpu.weight"], Some("CPUWeight"));

/// CFS bandwidth.
pub static CPU_QUOTA: Row = Row::new("cpu quota", Controller::Cpu, Format::Quota)
    .v1(
        &["cpu.cfs_period_us", "cpu.cfs_quota_us"],
        Some("CPUQuotaPerSecUSec"),
    )
    .v2(&["cpu.max"], Some("CPUQuotaPerSecUSec"));

/// The hard memory limit.
pub static MEMORY_LIMIT: Row = Row::new("memory limit", Controller::Memory, Format::Limit)
    .v1(&["memory.limit_in_bytes"], Some("MemoryLimit"))
    .v2(&["memory.max"], Some("MemoryMax"));

/// Memory that the kernel never reclaims from the cgroup, as far as the cgroups above it are protected.
pub static MEMORY_MIN: Row = Row::new("memory min", Controller::Memory, Format::Protection)
    .v2(&["memory.min"], Some("MemoryMin"));

/// Memory that the kernel reclaims only when unprotected cgroups have none left.
pub static MEMORY_LOW: Row = Row::new("memory low", Controller::Memory, Format::Protection)
    .v2(&["memory.low"], Some("MemoryLow"));

/// The level above which the kernel delays the cgroup's tasks: the converger writes it to tiers, a
/// runtime to containers.
pub static MEMORY_HIGH: Row = Row::new("memory high", Controller::Memory, Format::Limit)
    .v2(&["memory.high"], Some("MemoryHigh"));

/// Swap of a container, which its runtime writes.
pub static SWAP_LIMIT: Row = Row::new("swap limit", Controller::Memory, Format::Limit)
    .v2(&["memory.swap.max"], Some("MemorySwapMax"));

/// Number of tasks.
pub static PIDS_LIMIT: Row = Row::new("pids limit", Controller::Pids, Format::Tasks)
    .v1(&["pids.max"], Some("TasksMax"))
    .v2(&["pids.max"], Some("TasksMax"));

/// Huge pages of one size in use.
pub static HUGETLB_LIMIT: Row = Row::new("hugetlb limit", Controller::HugeTlb, Format::HugePages)
    .v1(&["hugetlb.<size>.limit_in_bytes"], None)
    .v2(&["hugetlb.<size>.max"], None);

/// Huge pages of one size that are reserved, which the kernel counts from 5.7 on. They get the limit of
/// those in use, as the kubelet's library gives it (`hugetlb.go` of opencontainers/cgroups).
pub static HUGETLB_RESERVED: Row = Row::new(
    "hugetlb reservation limit",
    Controller::HugeTlb,
    Format::HugePages,
)
.v1(&["hugetlb.<size>.rsvd.limit_in_bytes"], None)
.v2(&["hugetlb.<size>.rsvd.max"], None);

/// Every row, in the order in which systemd is told.
pub static TABLE: [&Row; 10] = [
    &CPU_SHARES,
    &CPU_QUOTA,
    &MEMORY_MIN,
    &MEMORY_LOW,
    &MEMORY_HIGH,
    &MEMORY_LIMIT,
    &SWAP_LIMIT,
    &PIDS_LIMIT,
    &HUGETLB_LIMIT,
    &HUGETLB_RESERVED,
];

/// Files that change a setting without holding it.
const OVERRIDES: [&str; 3] = ["cpu.weight.nice", "cpu.idle", "memory.memsw.limit_in_bytes"];

/// True for a file that holds a setting of the table, or changes one.
pub fn is_setting(file: &str) -> bool {
    let holds = |row: &&Row| row.v1.contains(&file) || row.v2.contains(&file);
    file.starts_with("hugetlb.") || OVERRIDES.contains(&file) || TABLE.iter().any(holds)
}

impl Row {
    /// A row without files.
    const fn new(name: &'static str, controller: Controller, format: Format) -> Self {
        Self {
            name,
            controller,
            v1: &[],
            v2: &[],
            format,
            systemd: (None, None),
        }
    }

    /// With the files and the property on v1.
    const fn v1(self, v1: &'static [&'static str], property: Option<&'static str>) -> Self {
        let systemd = (property, self.systemd.1);
        Self {
            v1,
            systemd,
            ..self
        }
    }

    /// With those on v2.
    const fn v2(self, v2: &'static [&'static str], property: Option<&'static str>) -> Self {
        let systemd = (self.systemd.0, property);
        Self {
            v2,
            systemd,
            ..self
        }
    }

    /// The files on a version; none where the version has nothing like it.
    pub const fn files(&self, version: Version) -> &'static [&'static str] {
        match version {
            Version::V1 => self.v1,
            Version::V2 => self.v2,
        }
    }

    /// The systemd property on a version.
    pub const fn systemd(&self, version: Version) -> Option<&'static str> {
        match version {
            Version::V1 => self.systemd.0,
            Version::V2 => self.systemd.1,
        }
    }

    /// What `podwarden` writes to a cgroup for `value`, file by file, `size` being that of a huge page.
    pub fn texts(
        &self,
        version: Version,
        size: Option<Bytes>,
        value: Value,
    ) -> impl Iterator<Item = (String, String)> {
        let files = self.files(version).iter();
        let unlimited_quota = matches!(value, Value::CpuMax(max) if max.quota_us.bound().is_none());
        files
            .filter(move |file| !(unlimited_quota && file.ends_with("period_us")))
            .map(move |file| {
                let text = match value {
                    Value::CpuMax(max) if file.ends_with("period_us") => {
                        format!("{}", max.period_us)
                    }
                    Value::CpuMax(max) if version == Version::V1 => number(max.quota_us, version),
                    // v1 counts tasks as v2 does.
                    Value::Tasks(_) => value.text(Version::V2),
                    _ => value.text(version),
                };
                (named(file, size), text)
            })
    }

    /// Reads the texts of the files, in their order.
    pub fn parse(&self, version: Version, texts: &[&[u8]]) -> Option<Value> {
        let first = *texts.first()?;
        Some(match self.format {
            Format::Share => {
                let number = parse_u64(first)?;
                Value::Share(match version {
                    Version::V1 => CpuShare::Shares(CpuShares(number)),
                    Version::V2 => CpuShare::Weight(CpuWeight(number)),
                })
            }
            Format::Quota => {
                let (quota, period) = match version {
                    Version::V1 => (*texts.get(1)?, first),
                    Version::V2 => {
                        let line = first.trim_ascii();
                        let space = line.iter().position(|byte| *byte == b' ')?;
                        (&line[..space], &line[space..])
                    }
                };
                let period_us = parse_u64(period)?;
                Value::CpuMax(match quota.trim_ascii() {
                    b"max" | b"-1" => CpuMax::UNLIMITED,
                    quota => CpuMax {
                        quota_us: Limit::At(parse_u64(quota)?),
                        period_us,
                    },
                })
            }
            Format::Limit | Format::HugePages => Value::Limit(parse_limit(first)?),
            Format::Protection => Value::Bytes(match parse_limit(first)? {
                Limit::At(bytes) => bytes,
                Limit::Unlimited => Bytes(u64::MAX),
            }),
            Format::Tasks => Value::Tasks(match parse_limit(first)? {
                Limit::At(Bytes(tasks)) => Limit::At(tasks),
                Limit::Unlimited => Limit::Unlimited,
            }),
        })
    }

    /// What a fresh cgroup holds.
    pub const fn fresh(&self, version: Version) -> Value {
        match (self.format, version) {
            (Format::Share, Version::V1) => {
                Value::Share(CpuShare::Shares(CpuShares(SHARES_PER_CPU)))
            }
            // CGROUP_WEIGHT_DFL of the kernel's include/linux/cgroup.h.
            (Format::Share, Version::V2) => Value::Share(CpuShare::Weight(CpuWeight(100))),
            (Format::Quota, _) => Value::CpuMax(CpuMax::UNLIMITED),
            (Format::Limit | Format::HugePages, _) => Value::Limit(Limit::Unlimited),
            (Format::Protection, _) => Value::Bytes(Bytes::ZERO),
            (Format::Tasks, _) => Value::Tasks(Limit::Unlimited),
        }
    }
}

/// The name of a file, with the size of huge pages as the kernel names it (`mem_fmt`,
/// `mm/hugetlb_cgroup.c`).
pub fn named(file: &str, size: Option<Bytes>) -> String {
    let size = match size {
        None => return file.into(),
        Some(Bytes(n)) if n >= Bytes::GI.0 => format!("{}GB", n >> 30),
        Some(Bytes(n)) if n >= Bytes::MI.0 => format!("{}MB", n >> 20),
        Some(Bytes(n)) => format!("{}KB", n >> 10),
    };
    file.replace(SIZE, &size)
}

/// The size of huge pages in the name of a file whose pattern is `pattern`.
pub fn size_in(pattern: &str, file: &str) -> Option<Bytes> {
    let (before, after) = pattern.split_once(SIZE)?;
    let size = file.strip_prefix(before)?.strip_suffix(after)?;
    let units = [("GB", Bytes::GI), ("MB", Bytes::MI), ("KB", Bytes::KI)];
    units.into_iter().find_map(|(suffix, unit)| {
        let number = parse_u64(size.strip_suffix(suffix)?.as_bytes())?;
        number.checked_mul(unit.0).map(Bytes)
    })
}

/// The size of the huge pages whose directory in `/sys/kernel/mm/hugepages` has this name (`hstate`'s, `mm/hugetlb.c`).
pub fn size_of_pages(directory: &str) -> Option<Bytes> {
    let kib = directory.strip_prefix("hugepages-")?.strip_suffix("kB")?;
    kib.parse::<u64>().ok()?.checked_mul(Bytes::KI.0).map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_both_versions() {
        let at = |bytes| Some(Limit::At(Bytes(bytes)));
        let cases: [(&[u8], Option<Limit<Bytes>>); 7] = [
            (b"max\n", Some(Limit::Unlimited)),
            (b"9223372036854771712\n", Some(Limit::Unlimited)),
            (b"9223372036854710272\n", Some(Limit::Unlimited)),
            (b"1073741824\n", at(1 << 30)),
            (b"0\n", at(0)),
            (b"\n", None),
            (b"-1\n", None),
        ];
        for (text, want) in cases {
            assert_eq!(parse_limit(text), want, "{text:?}");
        }
    }

    #[test]
    fn cpu_max_lines() {
        let parse = |text: &str| CPU_QUOTA.parse(Version::V2, &[text.as_bytes()]);
        let quota = |quota_us, period_us| {
            Value::CpuMax(CpuMax {
                quota_us: Limit::At(quota_us),
                period_us,
            })
        };
        let none = Value::CpuMax(CpuMax::UNLIMITED);
        assert_eq!(parse("max 100000\n"), Some(none));
        assert_eq!(parse("50000 100000\n"), Some(quota(50_000, 100_000)));
        for bad in ["", "max", "50000", "x 100000", "50000 x", "-2 100000"] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
        for value in [none, quota(1000, 1_000_000)] {
            assert_eq!(parse(&value.text(Version::V2)), Some(value));
        }
    }

    #[test]
    fn page_sizes_are_named_as_the_kernel_names_them() {
        let pattern = HUGETLB_LIMIT.v2[0];
        let sizes = [
            (16 << 10, "16KB"),
            (64 << 10, "64KB"),
            (2 << 20, "2MB"),
            (512 << 20, "512MB"),
            (1 << 30, "1GB"),
            (16 << 30, "16GB"),
        ];
        for (bytes, name) in sizes {
            let file = format!("hugetlb.{name}.max");
            assert_eq!(named(pattern, Some(Bytes(bytes))), file);
            assert_eq!(size_in(pattern, &file), Some(Bytes(bytes)));
        }
        for other in ["", "2", "MB", "2MB.rsvd", "2mb"] {
            assert_eq!(size_in(pattern, &format!("hugetlb.{other}.max")), None);
        }
    }
}
