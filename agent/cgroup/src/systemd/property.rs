//! Values of a cgroup as properties of its unit (systemd.resource-control(5)), the same as
//! libcontainer sets for the kubelet (`systemd/v1.go`, `systemd/v2.go` and `systemd/common.go` of
//! opencontainers/cgroups), and those that systemd would otherwise write from its own memory.

use podwarden_policy::{
    Bytes,
    limits::{CpuMax, Limit},
    settings::{
        self, Row, Setting,
        table::{self, TABLE},
    },
};

use crate::slice::Slice;
use crate::{CgroupPath, Result, Tree};

/// No limit.
const INFINITY: u64 = u64::MAX;
/// The first version that knows `CPUQuotaPeriodUSec`.
const VERSION_WITH_PERIOD: u32 = 242;
/// systemd keeps a quota as whole percents of a CPU: microseconds of CPU time per second of time.
const PERCENT_US: u64 = 10_000;
const SECOND_US: u64 = 1_000_000;

/// The value of a property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// `t`.
    Number(u64),
    /// `b`.
    Flag(bool),
    /// `s`.
    Text(String),
    /// `as`.
    List(Vec<String>),
}

/// Properties by name, each once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Properties(Vec<(&'static str, Value)>);

impl Properties {
    fn numbers(numbers: impl IntoIterator<Item = (&'static str, u64)>) -> Self {
        let numbers = numbers.into_iter();
        Self(numbers.map(|(n, v)| (n, Value::Number(v))).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.iter()
            .find(|(n, _)| *n == name)
            .map(|(_, value)| value)
    }

    /// True when all of `others` are among these.
    pub(super) fn has_all(&self, others: &Self) -> bool {
        others
            .iter()
            .all(|(name, value)| self.get(name) == Some(value))
    }

    /// Those that are not among `others`, or have another value there.
    pub(super) fn without(&self, others: &Self) -> Self {
        let news = self.0.iter();
        let news = news.filter(|(name, value)| others.get(name) != Some(value));
        Self(news.cloned().collect())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.0.iter().map(|(name, value)| (*name, value))
    }

    /// These, and `others` in place of those of the same name.
    #[must_use]
    pub(super) fn chain(mut self, others: &Self) -> Self {
        self.0
            .retain(|(name, _)| others.iter().all(|(other, _)| other != *name));
        self.0.extend(others.0.iter().cloned());
        self
    }
}

/// The description of a slice that podwarden makes, by which a later agent knows it.
pub(super) fn description(unit: &str) -> String {
    format!("podwarden slice {unit}")
}

/// What a slice is made with. Accounting brings the controllers; without default dependencies it
/// is not stopped when the machine shuts down before what runs in it is.
pub(super) fn of_new_slice(slice: &Slice) -> Properties {
    let mut properties = vec![
        ("Description", Value::Text(description(&slice.unit))),
        ("DefaultDependencies", Value::Flag(false)),
    ];
    if let Some(parent) = &slice.parent {
        properties.push(("Wants", Value::List(vec![parent.clone()])));
    }
    let accounting = [
        "CPUAccounting",
        "IOAccounting",
        "MemoryAccounting",
        "TasksAccounting",
    ];
    properties.extend(accounting.map(|name| (name, Value::Flag(true))));
    Properties(properties)
}

/// One value to set; empty for what systemd does not manage.
pub(super) fn of_setting(setting: &Setting, tree: &Tree, version: u32) -> Properties {
    let row = setting.property().row();
    let value = setting.value(tree.version_of(row.controller));
    Properties::numbers(of_row(row, value, tree, version))
}

/// Everything that systemd would write to the cgroup's files, as they are now. A file that is not
/// there or that has a value which no property has is left out.
pub(super) fn in_force(tree: &Tree, cgroup: &CgroupPath, version: u32) -> Result<Properties> {
    let mut numbers = Vec::new();
    for row in TABLE {
        match tree.value(cgroup, row) {
            Ok(value) => numbers.extend(of_row(row, value, tree, version)),
            Err(error) if error.is_gone() || error.errno().is_none() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Properties::numbers(numbers))
}

/// The properties of a value; none where systemd has none for it.
fn of_row(
    row: &Row,
    value: settings::Value,
    tree: &Tree,
    version: u32,
) -> Vec<(&'static str, u64)> {
    let Some(name) = row.systemd(tree.version_of(row.controller)) else {
        return Vec::new();
    };
    let number = match value.rounded(Bytes(rustix::param::page_size() as u64)) {
        settings::Value::CpuMax(max) => return quota_properties(name, max, version).collect(),
        // 0 is the weight of an idle cgroup.
        settings::Value::Share(share) if share.number() == 0 => return Vec::new(),
        settings::Value::Share(share) => share.number(),
        settings::Value::Bytes(Bytes(bytes)) => bytes,
        settings::Value::Limit(limit) => {
            let bytes = limit.bound().map_or(INFINITY, Bytes::as_u64);
            // No swap is a value of its own.
            if *row == table::SWAP_LIMIT {
                bytes
            } else {
                least_one(bytes)
            }
        }
        settings::Value::Tasks(tasks) => least_one(tasks.bound().unwrap_or(INFINITY)),
    };
    vec![(name, number)]
}

/// systemd takes no limit of 0. One byte is none when the kernel has rounded it to pages; one task
/// in place of none is corrected in the file.
fn least_one(value: u64) -> u64 {
    value.max(1)
}

/// Quota and period. systemd 241 and older know no period.
fn quota_properties(
    name: &'static str,
    max: CpuMax,
    version: u32,
) -> impl Iterator<Item = (&'static str, u64)> {
    (version >= VERSION_WITH_PERIOD)
        .then_some(("CPUQuotaPeriodUSec", max.period_us))
        .into_iter()
        .chain([(name, per_second(max))])
}

/// Microseconds of CPU time per second, rounded up to what systemd keeps: no cgroup below gets less
/// than it may have (`addCpuQuota` of libcontainer `systemd/common.go`).
fn per_second(max: CpuMax) -> u64 {
    let Limit::At(quota_us) = max.quota_us else {
        return INFINITY;
    };
    let exact = u128::from(quota_us) * u128::from(SECOND_US) / u128::from(max.period_us.max(1));
    u64::try_from(exact)
        .ok()
        .and_then(|exact| exact.checked_next_multiple_of(PERCENT_US))
        .unwrap_or(INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_rounded_up_to_whole_percents() {
        for (quota_us, period_us, want) in [
            (50_000, 100_000, 500_000),
            (200_000, 100_000, 2_000_000),
            (33_300, 100_000, 340_000),
            (1_000, 100_000, 10_000),
            (1_001, 100_000, 20_000),
            (10_000, 30_000, 340_000),
            (1_000, 1_000_000, 10_000),
            (u64::MAX, 1_000, INFINITY),
            (1_000, 0, 1_000_000_000),
        ] {
            let quota = CpuMax {
                quota_us: Limit::At(quota_us),
                period_us,
            };
            assert_eq!(per_second(quota), want, "{quota:?}");
        }
    }

    #[test]
    fn an_old_systemd_is_not_asked_for_a_period() {
        let quota = CpuMax {
            quota_us: Limit::At(10_000),
            period_us: 20_000,
        };
        let of = |max, version| quota_properties("CPUQuotaPerSecUSec", max, version);
        let properties = |version| of(quota, version).collect::<Vec<_>>();
        assert_eq!(properties(241), [("CPUQuotaPerSecUSec", 500_000)]);
        assert_eq!(
            properties(252),
            [
                ("CPUQuotaPeriodUSec", 20_000),
                ("CPUQuotaPerSecUSec", 500_000)
            ]
        );
        let none: Vec<_> = of(CpuMax::UNLIMITED, 252).collect();
        assert_eq!(
            none,
            [
                ("CPUQuotaPeriodUSec", 100_000),
                ("CPUQuotaPerSecUSec", INFINITY)
            ]
        );
    }

    #[test]
    fn later_properties_replace_earlier_ones() {
        let first = Properties::numbers([("CPUWeight", 1), ("TasksMax", 2)]);
        let both = first.chain(&Properties::numbers([("CPUWeight", 3)]));
        assert_eq!(
            both,
            Properties::numbers([("TasksMax", 2), ("CPUWeight", 3)])
        );
    }
}
