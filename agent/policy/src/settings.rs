//! Settings of a cgroup: what podwarden writes, and what it reads back.
//!
//! Everything that depends on the kind of a setting is in [`table`]; here is what a plan says
//! ([`Setting`]) and what a cgroup holds ([`Observed`]).

mod controller;
pub mod table;
pub mod value;

use alloc::collections::BTreeMap;
use core::fmt;

use derive_more::Display;
use serde::{Deserialize, Serialize};

pub(crate) use self::value::Change;
pub use self::{
    controller::Controller,
    table::{Row, Version},
    value::Value,
};
use crate::{
    convert,
    limits::{CpuMax, Limit},
    snapshot::Controllers,
    units::{Bytes, CpuShares, CpuWeight},
};

/// A value to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "property",
    content = "value",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum Setting {
    /// As [`table::CPU_SHARES`]; a weight by [`convert::shares_to_weight`].
    CpuShares(CpuShares),
    /// As [`table::CPU_QUOTA`].
    CpuMax(CpuMax),
    /// As [`table::MEMORY_LIMIT`].
    MemoryLimit(Limit<Bytes>),
    /// As [`table::MEMORY_MIN`].
    MemoryMin(Bytes),
    /// As [`table::MEMORY_LOW`].
    MemoryLow(Bytes),
    /// As [`table::PIDS_LIMIT`].
    PidsLimit(Limit<u64>),
    /// As [`table::HUGETLB_LIMIT`].
    HugetlbLimit {
        /// Page size.
        page_size: Bytes,
        /// How much.
        limit: Limit<Bytes>,
    },
}

/// A value that a cgroup holds, without the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Property {
    /// Shares or weight.
    CpuShares,
    /// Quota and period.
    CpuMax,
    /// The hard memory limit.
    MemoryLimit,
    /// Memory that is never reclaimed.
    MemoryMin,
    /// Memory that is reclaimed last.
    MemoryLow,
    /// Number of tasks.
    PidsLimit,
    /// Huge pages of this size.
    HugetlbLimit(Bytes),
}

impl Property {
    /// Those of every cgroup.
    pub const COMMON: [Self; 6] = [
        Self::CpuShares,
        Self::CpuMax,
        Self::MemoryLimit,
        Self::MemoryMin,
        Self::MemoryLow,
        Self::PidsLimit,
    ];

    /// Its row of the table.
    pub const fn row(self) -> &'static Row {
        match self {
            Self::CpuShares => &table::CPU_SHARES,
            Self::CpuMax => &table::CPU_QUOTA,
            Self::MemoryLimit => &table::MEMORY_LIMIT,
            Self::MemoryMin => &table::MEMORY_MIN,
            Self::MemoryLow => &table::MEMORY_LOW,
            Self::PidsLimit => &table::PIDS_LIMIT,
            Self::HugetlbLimit(_) => &table::HUGETLB_LIMIT,
        }
    }

    /// The size of the huge pages that it is about.
    pub const fn page_size(self) -> Option<Bytes> {
        match self {
            Self::HugetlbLimit(size) => Some(size),
            _ => None,
        }
    }
}

impl Setting {
    /// What it sets.
    pub const fn property(&self) -> Property {
        match self {
            Self::CpuShares(_) => Property::CpuShares,
            Self::CpuMax(_) => Property::CpuMax,
            Self::MemoryLimit(_) => Property::MemoryLimit,
            Self::MemoryMin(_) => Property::MemoryMin,
            Self::MemoryLow(_) => Property::MemoryLow,
            Self::PidsLimit(_) => Property::PidsLimit,
            Self::HugetlbLimit { page_size, .. } => Property::HugetlbLimit(*page_size),
        }
    }

    /// The name of the property, for people.
    pub const fn name(&self) -> &'static str {
        self.property().row().name
    }

    /// True where the controllers of the tree have its files.
    pub(crate) const fn is_enabled(&self, controllers: &Controllers) -> bool {
        match self {
            Self::CpuShares(_) => controllers.cpu,
            Self::CpuMax(_) => controllers.cpu && controllers.cpu_bandwidth,
            Self::MemoryLimit(_) => controllers.memory,
            Self::MemoryMin(_) | Self::MemoryLow(_) => {
                controllers.memory && controllers.memory_protection
            }
            Self::PidsLimit(_) => controllers.pids,
            Self::HugetlbLimit { .. } => controllers.hugetlb,
        }
    }

    /// What its files hold on a version.
    pub fn value(&self, version: Version) -> Value {
        match *self {
            Self::CpuShares(shares) => Value::Share(match version {
                Version::V1 => CpuShare::Shares(shares),
                Version::V2 => CpuShare::Weight(convert::shares_to_weight(shares)),
            }),
            Self::CpuMax(max) => Value::CpuMax(max),
            Self::MemoryLimit(limit) | Self::HugetlbLimit { limit, .. } => Value::Limit(limit),
            Self::MemoryMin(bytes) | Self::MemoryLow(bytes) => Value::Bytes(bytes),
            Self::PidsLimit(limit) => Value::Tasks(limit),
        }
    }

    /// True for what a pod's reclaimed resources decide.
    pub(crate) const fn is_reclaimed(&self) -> bool {
        matches!(
            self,
            Self::CpuShares(_) | Self::CpuMax(_) | Self::MemoryLimit(_)
        )
    }

    /// True for what a fresh cgroup has anyway. Shares are written in any case.
    pub(crate) fn is_unlimited(&self) -> bool {
        let row = self.property().row();
        let fresh = row.fresh(Version::V1);
        row.format != table::Format::Share && self.value(Version::V1).rounded(Bytes(1)) == fresh
    }

    /// How writing this would change what was read. What could not be read is not written: the
    /// write would most likely fail, and whether it did anything could not be told.
    pub(crate) fn change_from(&self, observed: &Observed, page: Bytes) -> Change {
        let property = self.property();
        let page = property.page_size().unwrap_or(page);
        let wanted = self.value(observed.version()).rounded(page);
        let now = observed.get(property);
        now.map_or(Change::None, |now| now.rounded(page).change_to(wanted))
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.name())?;
        match self {
            Self::CpuShares(shares) => shares.fmt(f),
            Self::HugetlbLimit { page_size, limit } => write!(f, "{page_size} {limit}"),
            _ => self.value(Version::V1).fmt(f),
        }
    }
}

/// A cgroup's part of CPU time as its version states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CpuShare {
    /// v1.
    #[display("{_0} shares")]
    Shares(CpuShares),
    /// v2.
    #[display("weight {_0}")]
    Weight(CpuWeight),
}

/// What a cgroup holds. `None` is "could not be read, or there is no such file", not zero.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Observed {
    /// podwarden made this cgroup, and may remove it.
    pub ours: bool,
    /// Shares or weight.
    pub cpu: Option<CpuShare>,
    /// Quota and period.
    pub cpu_max: Option<CpuMax>,
    /// The memory limit.
    pub memory_limit: Option<Limit<Bytes>>,
    /// As [`table::MEMORY_MIN`].
    pub memory_min: Option<Bytes>,
    /// As [`table::MEMORY_LOW`].
    pub memory_low: Option<Bytes>,
    /// The number of tasks.
    pub pids_limit: Option<Limit<u64>>,
    /// Page size to limit.
    pub hugetlb: BTreeMap<Bytes, Limit<Bytes>>,
    /// Memory in use, page cache included.
    pub memory_usage: Option<Bytes>,
    /// Usage minus inactive file.
    pub memory_working_set: Option<Bytes>,
}

impl CpuShare {
    /// The number in the file.
    pub const fn number(self) -> u64 {
        match self {
            Self::Shares(CpuShares(number)) | Self::Weight(CpuWeight(number)) => number,
        }
    }
}

impl Observed {
    /// A cgroup as the kernel makes it; `page_sizes` are those of the node's huge pages.
    pub fn fresh(version: Version, page_sizes: impl IntoIterator<Item = Bytes>) -> Self {
        let mut fresh = Self::default();
        let huge = page_sizes.into_iter().map(Property::HugetlbLimit);
        for property in Property::COMMON.into_iter().chain(huge) {
            fresh.set(property, property.row().fresh(version));
        }
        fresh
    }

    /// What a property holds; `None` where it could not be read.
    pub fn get(&self, property: Property) -> Option<Value> {
        match property {
            Property::CpuShares => self.cpu.map(Value::Share),
            Property::CpuMax => self.cpu_max.map(Value::CpuMax),
            Property::MemoryLimit => self.memory_limit.map(Value::Limit),
            Property::MemoryMin => self.memory_min.map(Value::Bytes),
            Property::MemoryLow => self.memory_low.map(Value::Bytes),
            Property::PidsLimit => self.pids_limit.map(Value::Tasks),
            Property::HugetlbLimit(size) => self.hugetlb.get(&size).copied().map(Value::Limit),
        }
    }

    /// Notes what a property holds; a value of another format changes nothing.
    pub fn set(&mut self, property: Property, value: Value) {
        match (property, value) {
            (Property::CpuShares, Value::Share(share)) => self.cpu = Some(share),
            (Property::CpuMax, Value::CpuMax(max)) => self.cpu_max = Some(max),
            (Property::MemoryLimit, Value::Limit(limit)) => self.memory_limit = Some(limit),
            (Property::MemoryMin, Value::Bytes(bytes)) => self.memory_min = Some(bytes),
            (Property::MemoryLow, Value::Bytes(bytes)) => self.memory_low = Some(bytes),
            (Property::PidsLimit, Value::Tasks(limit)) => self.pids_limit = Some(limit),
            (Property::HugetlbLimit(size), Value::Limit(limit)) => {
                self.hugetlb.insert(size, limit);
            }
            _ => {}
        }
    }

    /// Every property that could be read, with what it holds.
    pub fn values(&self) -> impl Iterator<Item = (Property, Value)> {
        let huge = self.hugetlb.keys().copied().map(Property::HugetlbLimit);
        let all = Property::COMMON.into_iter().chain(huge);
        all.filter_map(|property| Some((property, self.get(property)?)))
    }

    /// Puts a setting in force as the kernel would.
    pub fn apply(&mut self, setting: &Setting, page: Bytes) {
        let property = setting.property();
        let page = property.page_size().unwrap_or(page);
        self.set(property, setting.value(self.version()).rounded(page));
    }

    /// The version of the hierarchy with the CPU controller, as far as it can be seen.
    pub fn version(&self) -> Version {
        match self.cpu {
            Some(CpuShare::Weight(_)) => Version::V2,
            _ => Version::V1,
        }
    }
}
