//! Values of a cgroup as properties of its unit (systemd.resource-control(5)), the same as
//! libcontainer sets for the kubelet (`systemd/v1.go`, `systemd/v2.go` and `systemd/common.go` of
//! opencontainers/cgroups), and those that systemd would otherwise write from its own memory.

use podwarden_policy::{
    Bytes,
    convert::{DEFAULT_PERIOD_US, shares_to_weight},
    limits::Limit,
    settings::Setting,
};

use super::slice::Slice;
use crate::{
    CgroupPath, Controller, CpuQuota, Result, Tree, io,
    limits::{MEMORY_UNLIMITED, whole_pages},
};

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
    let on_v2 = |controller| tree.hierarchies().is_on_v2(controller);
    let memory = |name, bytes: u64| {
        let known = on_v2(Controller::Memory);
        Properties::numbers(known.then_some((name, whole_pages(bytes))))
    };
    match *setting {
        Setting::CpuShares(shares) if on_v2(Controller::Cpu) => {
            Properties::numbers([("CPUWeight", shares_to_weight(shares).as_u64())])
        }
        Setting::CpuShares(shares) => Properties::numbers([("CPUShares", shares.as_u64())]),
        Setting::CpuMax(max) => Properties::numbers(quota_properties(CpuQuota::of(max), version)),
        Setting::MemoryLimit(limit) => {
            let name = memory_limit(on_v2(Controller::Memory));
            Properties::numbers([(name, bytes(limit))])
        }
        Setting::MemoryMin(Bytes(bytes)) => memory("MemoryMin", bytes),
        Setting::MemoryLow(Bytes(bytes)) => memory("MemoryLow", bytes),
        Setting::PidsLimit(limit) => {
            Properties::numbers([("TasksMax", least_one(limit.bound().unwrap_or(INFINITY)))])
        }
        Setting::HugetlbLimit { .. } => Properties::default(),
    }
}

/// Everything that systemd would write to the cgroup's files, as they are now. A file that is not
/// there or that has a value which no property has is left out.
pub(super) fn in_force(tree: &Tree, cgroup: &CgroupPath, version: u32) -> Result<Properties> {
    let mut numbers = Vec::new();
    let on_v2 = |controller| tree.hierarchies().is_on_v2(controller);
    let (share, cpu_file) = if on_v2(Controller::Cpu) {
        ("CPUWeight", "cpu.weight")
    } else {
        ("CPUShares", "cpu.shares")
    };
    // 0 is the weight of an idle cgroup.
    let weight = number(tree, Controller::Cpu, cgroup, cpu_file)?.filter(|weight| *weight > 0);
    numbers.extend(weight.map(|weight| (share, weight)));
    match tree.cpu_quota(cgroup) {
        Ok(quota) => numbers.extend(quota_properties(quota, version)),
        Err(error) if error.is_gone() || error.errno().is_none() => {}
        Err(error) => return Err(error),
    }
    let memory: &[_] = if on_v2(Controller::Memory) {
        &[
            ("MemoryMin", "memory.min"),
            ("MemoryLow", "memory.low"),
            ("MemoryHigh", "memory.high"),
            ("MemoryMax", "memory.max"),
            ("MemorySwapMax", "memory.swap.max"),
        ]
    } else {
        &[("MemoryLimit", "memory.limit_in_bytes")]
    };
    for (name, file) in memory {
        let value = number(tree, Controller::Memory, cgroup, file)?;
        numbers.extend(value.map(|value| match *name {
            "MemoryMax" | "MemoryHigh" => (*name, least_one(value)),
            "MemoryLimit" if value >= MEMORY_UNLIMITED => (*name, INFINITY),
            "MemoryLimit" => (*name, least_one(value)),
            _ => (*name, value),
        }));
    }
    let tasks = number(tree, Controller::Pids, cgroup, "pids.max")?;
    numbers.extend(tasks.map(|tasks| ("TasksMax", least_one(tasks))));
    Ok(Properties::numbers(numbers))
}

/// A number in a file, `max` being [`INFINITY`]; `None` when there is none.
fn number(
    tree: &Tree,
    controller: Controller,
    cgroup: &CgroupPath,
    file: &str,
) -> Result<Option<u64>> {
    let Ok(directory) = tree.path(controller, cgroup) else {
        return Ok(None);
    };
    match io::read_text(&directory.join(file)) {
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
        Ok(text) if text.trim_ascii() == "max" => Ok(Some(INFINITY)),
        Ok(text) => Ok(io::parse_u64(text.as_bytes())),
    }
}

const fn memory_limit(is_v2: bool) -> &'static str {
    if is_v2 { "MemoryMax" } else { "MemoryLimit" }
}

fn bytes(limit: Limit<Bytes>) -> u64 {
    let bytes = limit.bound().map(|bytes| whole_pages(bytes.as_u64()));
    least_one(bytes.unwrap_or(INFINITY))
}

/// systemd takes no limit of 0. One byte is none when the kernel has rounded it to pages; one task
/// in place of none is corrected in the file.
fn least_one(value: u64) -> u64 {
    value.max(1)
}

/// Quota and period. systemd 241 and older know no period.
fn quota_properties(
    quota: Option<CpuQuota>,
    version: u32,
) -> impl Iterator<Item = (&'static str, u64)> {
    let period = quota.map_or(DEFAULT_PERIOD_US, |quota| quota.period_us);
    let per_second = quota.map_or(INFINITY, per_second);
    (version >= VERSION_WITH_PERIOD)
        .then_some(("CPUQuotaPeriodUSec", period))
        .into_iter()
        .chain([("CPUQuotaPerSecUSec", per_second)])
}

/// Microseconds of CPU time per second, rounded up to what systemd keeps: no cgroup below gets less
/// than it may have (`addCpuQuota` of libcontainer `systemd/common.go`).
fn per_second(quota: CpuQuota) -> u64 {
    let exact =
        u128::from(quota.quota_us) * u128::from(SECOND_US) / u128::from(quota.period_us.max(1));
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
            let quota = CpuQuota {
                quota_us,
                period_us,
            };
            assert_eq!(per_second(quota), want, "{quota:?}");
        }
    }

    #[test]
    fn an_old_systemd_is_not_asked_for_a_period() {
        let quota = Some(CpuQuota {
            quota_us: 10_000,
            period_us: 20_000,
        });
        let properties = |version| quota_properties(quota, version).collect::<Vec<_>>();
        assert_eq!(properties(241), [("CPUQuotaPerSecUSec", 500_000)]);
        assert_eq!(
            properties(252),
            [
                ("CPUQuotaPeriodUSec", 20_000),
                ("CPUQuotaPerSecUSec", 500_000)
            ]
        );
        let none: Vec<_> = quota_properties(None, 252).collect();
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
