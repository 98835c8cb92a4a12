//! The table: which file holds a setting, in which format, and what systemd calls it.
//!
//! Formats are those of the kernel's `Documentation/admin-guide/cgroup-v1` and
//! `Documentation/admin-guide/cgroup-v2.rst`.

use alloc::{format, string::String};
use core::fmt;

use super::CpuShare;
use crate::{
    convert::{DEFAULT_PERIOD_US, SHARES_PER_CPU},
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

/// The controllers that podwarden uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Controller {
    /// CPU time: shares or weight, quota.
    Cpu,
    /// CPU accounting; v1 only, v2 accounts CPU without a controller.
    CpuAcct,
    /// CPUs and memory nodes.
    CpuSet,
    /// Memory.
    Memory,
    /// Number of tasks.
    Pids,
    /// Freezer; v1 only, v2 freezes without a controller.
    Freezer,
    /// Huge pages.
    HugeTlb,
}

impl Controller {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Cpu,
        Self::CpuAcct,
        Self::CpuSet,
        Self::Memory,
        Self::Pids,
        Self::Freezer,
        Self::HugeTlb,
    ];

    /// The kernel's name, in v1 mount options and in v2 `cgroup.controllers`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::CpuAcct => "cpuacct",
            Self::CpuSet => "cpuset",
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Freezer => "freezer",
            Self::HugeTlb => "hugetlb",
        }
    }

    /// The controller of that name; `None` for those that podwarden does not use.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|c| c.as_str() == name)
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
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

/// A memory limit from here on means none. v1 shows no limit as `LONG_MAX` rounded down to
/// whole pages (`PAGE_COUNTER_MAX`, `include/linux/page_counter.h`), which depends on the page
/// size; 4 EiB is far below that and far above any machine.
const UNLIMITED: u64 = 1 << 62;

/// CPU shares (v1) or weight (v2).
pub static CPU_SHARES: Row = Row {
    name: "cpu shares",
    controller: Controller::Cpu,
    v1: &["cpu.shares"],
    v2: &["cpu.weight"],
    format: Format::Share,
    systemd: (Some("CPUShares"), Some("CPUWeight")),
};

/// CFS bandwidth.
pub static CPU_QUOTA: Row = Row {
    name: "cpu quota",
    controller: Controller::Cpu,
    v1: &["cpu.cfs_period_us", "cpu.cfs_quota_us"],
    v2: &["cpu.max"],
    format: Format::Quota,
    systemd: (Some("CPUQuotaPerSecUSec"), Some("CPUQuotaPerSecUSec")),
};

/// The hard memory limit.
pub static MEMORY_LIMIT: Row = Row {
    name: "memory limit",
    controller: Controller::Memory,
    v1: &["memory.limit_in_bytes"],
    v2: &["memory.max"],
    format: Format::Limit,
    systemd: (Some("MemoryLimit"), Some("MemoryMax")),
};

/// Memory that the kernel never reclaims from the cgroup, as far as the cgroups above it are protected.
pub static MEMORY_MIN: Row = Row {
    name: "memory min",
    controller: Controller::Memory,
    v1: &[],
    v2: &["memory.min"],
    format: Format::Protection,
    systemd: (None, Some("MemoryMin")),
};

/// Memory that the kernel reclaims only when unprotected cgroups have none left.
pub static MEMORY_LOW: Row = Row {
    name: "memory low",
    controller: Controller::Memory,
    v1: &[],
    v2: &["memory.low"],
    format: Format::Protection,
    systemd: (None, Some("MemoryLow")),
};

/// The level above which the kernel delays the cgroup's tasks: the converger writes it to tiers, a
/// runtime to containers.
pub static MEMORY_HIGH: Row = Row {
    name: "memory high",
    controller: Controller::Memory,
    v1: &[],
    v2: &["memory.high"],
    format: Format::Limit,
    systemd: (None, Some("MemoryHigh")),
};

/// Swap of a container, which its runtime writes.
pub static SWAP_LIMIT: Row = Row {
    name: "swap limit",
    controller: Controller::Memory,
    v1: &[],
    v2: &["memory.swap.max"],
    format: Format::Limit,
    systemd: (None, Some("MemorySwapMax")),
};

/// Number of tasks.
pub static PIDS_LIMIT: Row = Row {
    name: "pids limit",
    controller: Controller::Pids,
    v1: &["pids.max"],
    v2: &["pids.max"],
    format: Format::Tasks,
    systemd: (Some("TasksMax"), Some("TasksMax")),
};

/// Huge pages of one size in use.
pub static HUGETLB_LIMIT: Row = Row {
    name: "hugetlb limit",
    controller: Controller::HugeTlb,
    v1: &["hugetlb.<size>.limit_in_bytes"],
    v2: &["hugetlb.<size>.max"],
    format: Format::HugePages,
    systemd: (None, None),
};

/// Huge pages of one size that are reserved, which the kernel counts from 5.7 on. They get the limit of
/// those in use, as the kubelet's library gives it (`hugetlb.go` of opencontainers/cgroups).
pub static HUGETLB_RESERVED: Row = Row {
    name: "hugetlb reservation limit",
    controller: Controller::HugeTlb,
    v1: &["hugetlb.<size>.rsvd.limit_in_bytes"],
    v2: &["hugetlb.<size>.rsvd.max"],
    format: Format::HugePages,
    systemd: (None, None),
};

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

fn number<T: fmt::Display + Copy>(limit: Limit<T>, version: Version) -> String {
    match (limit, version) {
        (Limit::At(_), _) | (_, Version::V2) => format!("{limit}"),
        (Limit::Unlimited, Version::V1) => "-1".into(),
    }
}

/// What a file holds, in the file's own unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share(CpuShare::Shares(shares)) => write!(f, "{shares} shares"),
            Self::Share(CpuShare::Weight(weight)) => write!(f, "weight {weight}"),
            Self::CpuMax(max) => write!(f, "{} of {} us", max.quota_us, max.period_us),
            Self::Limit(limit) => limit.fmt(f),
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::Tasks(limit) => limit.fmt(f),
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
