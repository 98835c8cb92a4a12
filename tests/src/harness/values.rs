//! What a cgroup's files hold, read from the kernel and in one spelling for both versions; and what
//! they are to hold by the policy.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use podwarden_cgroup::Controller;
use podwarden_policy::{
    Bytes, QosClass, convert,
    desired::{self, Desired},
    limits::Limit,
    name::CgroupName,
    plan::{Controllers, Snapshot},
    settings::Setting,
};

use super::cgroup::Cgroup;
use super::mounts::Mounts;
use super::second_opinion;

/// File to value: numbers as they are, no limit as `max`, a CPU quota as `QUOTA PERIOD` under the name
/// of the quota's file.
pub(crate) type Values = BTreeMap<String, String>;

/// What slows a tier's tasks stands this far below its limit, on v2 (`convergence.memoryHigh`).
const HIGH_BELOW_LIMIT: Bytes = Bytes::mebi(16);

/// A v1 limit from here on is none: the kernel shows the largest number of pages that it can count.
pub(super) const UNLIMITED: u64 = 1 << 62;

/// The controllers whose files are compared.
const COMPARED: [Controller; 4] = [
    Controller::Cpu,
    Controller::Memory,
    Controller::Pids,
    Controller::HugeTlb,
];

/// What a fresh cgroup holds; the tails of the files' names. Hugetlb's limits are `max` too.
const FRESH: [(&str, &str); 10] = [
    ("cpu.shares", "1024"),
    ("cpu.weight", "100"),
    ("cpu.max", "max"),
    ("cpu.cfs_quota_us", "max"),
    ("memory.max", "max"),
    ("memory.high", "max"),
    ("memory.limit_in_bytes", "max"),
    ("memory.min", "0"),
    ("memory.low", "0"),
    ("pids.max", "max"),
];

/// The values that the kernel shows now.
pub(crate) fn read(cgroup: &Cgroup) -> Result<Values> {
    let mut values = Values::new();
    for controller in COMPARED {
        let Some(mount) = cgroup.mounts().of(controller) else {
            continue;
        };
        let dir = mount.join(cgroup.path());
        let fixed = FRESH.iter().map(|(file, _)| (*file).to_owned());
        let mut files: Vec<_> = fixed
            .filter(|file| file.split('.').next() == Some(controller.as_str()))
            .collect();
        if controller == Controller::HugeTlb {
            files.extend(hugetlb_files(&dir)?);
        }
        for file in files {
            if let Some(value) = value(&dir, &file)? {
                second_opinion::agrees(&dir, &file, &value)?;
                values.insert(file, value);
            }
        }
    }
    Ok(values)
}

/// Where a file of a cgroup is.
pub(crate) fn path(cgroup: &Cgroup, file: &str) -> Result<PathBuf> {
    let controller = file.split('.').next().and_then(Controller::from_name);
    let mount = controller.and_then(|controller| cgroup.mounts().of(controller));
    let mount = mount.with_context(|| format!("no hierarchy has {file}"))?;
    Ok(mount.join(cgroup.path()).join(file))
}

/// `None` where the version or the kernel has no such file.
fn value(dir: &Path, file: &str) -> Result<Option<String>> {
    let path = dir.join(file);
    if !path.exists() && dir.exists() {
        return Ok(None);
    }
    let read = |path: &Path| {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        Ok::<_, anyhow::Error>(text.trim().to_owned())
    };
    let text = read(&path)?;
    Ok(Some(match file {
        "cpu.max" if text.starts_with("max ") => "max".to_owned(),
        "cpu.cfs_quota_us" if text == "-1" => "max".to_owned(),
        "cpu.cfs_quota_us" => format!("{text} {}", read(&dir.join("cpu.cfs_period_us"))?),
        _ if text.parse::<u64>().is_ok_and(|n| n >= UNLIMITED) => "max".to_owned(),
        _ => text,
    }))
}

/// The limits' files, of every page size that this kernel has.
fn hugetlb_files(dir: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter(|name| is_hugetlb_limit(name)).collect())
}

/// Not the limits of reservations (`hugetlb.2MB.rsvd.max`).
fn is_hugetlb_limit(name: &str) -> bool {
    let tail = name
        .strip_prefix("hugetlb.")
        .and_then(|rest| rest.split_once('.'));
    matches!(tail, Some((_, "max" | "limit_in_bytes")))
}

/// Which controllers a pod's cgroup has here, found without the agent's code.
pub(crate) fn controllers(fresh: &Cgroup) -> Controllers {
    let mounts = fresh.mounts();
    let has = |controller| mounts.of(controller).is_some();
    let file = |controller, name| {
        let dir = mounts.of(controller).map(|m| m.join(fresh.path()));
        dir.is_some_and(|dir| dir.join(name).exists())
    };
    Controllers {
        cpu: has(Controller::Cpu),
        cpu_bandwidth: file(Controller::Cpu, "cpu.max")
            || file(Controller::Cpu, "cpu.cfs_quota_us"),
        memory: has(Controller::Memory),
        memory_protection: file(Controller::Memory, "memory.min"),
        pids: has(Controller::Pids),
        hugetlb: has(Controller::HugeTlb),
    }
}

/// What policy says that each cgroup of the tree is to hold, as the kernel shows it; nothing else is to
/// be there.
pub(crate) fn expected(snapshot: &Snapshot, mounts: &Mounts) -> BTreeMap<CgroupName, Values> {
    let tiers = [QosClass::Burstable, QosClass::BestEffort].map(|of| snapshot.kubepods.tier(of));
    let of = |cgroup: Desired| {
        let page = snapshot.page_size;
        let settings = cgroup.settings.iter().map(|(setting, _)| setting);
        let mut said: Values = settings
            .clone()
            .filter_map(|setting| file_value(setting, page, mounts))
            .collect();
        let mut limits = settings.filter_map(|setting| match setting {
            Setting::MemoryLimit(limit) => limit.bound(),
            _ => None,
        });
        if tiers.contains(&cgroup.name)
            && mounts.is_on_v2(Controller::Memory)
            && let Some(limit) = limits.next()
        {
            let high = limit.saturating_sub(HIGH_BELOW_LIMIT).round_down(page);
            said.insert("memory.high".to_owned(), high.0.to_string());
        }
        (cgroup.name, said)
    };
    desired::tree(snapshot).into_iter().map(of).collect()
}

/// The file of a setting and its value in the kernel's units.
fn file_value(setting: &Setting, page: Bytes, mounts: &Mounts) -> Option<(String, String)> {
    let pages = |bytes: Bytes| bytes.round_down(page).0.to_string();
    let bound = |limit: Limit<Bytes>| limit.bound().map_or_else(max, pages);
    let pick = |controller, v1: &str, v2: &str| {
        let on_v2 = mounts.is_on_v2(controller);
        (if on_v2 { v2 } else { v1 }).to_owned()
    };
    Some(match *setting {
        Setting::CpuShares(shares) if mounts.is_on_v2(Controller::Cpu) => (
            "cpu.weight".to_owned(),
            convert::shares_to_weight(shares).to_string(),
        ),
        Setting::CpuShares(shares) => ("cpu.shares".to_owned(), shares.to_string()),
        Setting::CpuMax(cpu) => (
            pick(Controller::Cpu, "cpu.cfs_quota_us", "cpu.max"),
            match cpu.quota_us {
                Limit::At(quota) => format!("{quota} {}", cpu.period_us),
                Limit::Unlimited => max(),
            },
        ),
        Setting::MemoryLimit(limit) => (
            pick(Controller::Memory, "memory.limit_in_bytes", "memory.max"),
            bound(limit),
        ),
        Setting::MemoryMin(bytes) => ("memory.min".to_owned(), pages(bytes)),
        Setting::MemoryLow(bytes) => ("memory.low".to_owned(), pages(bytes)),
        Setting::PidsLimit(limit) => (
            "pids.max".to_owned(),
            limit.bound().map_or_else(max, |tasks| tasks.to_string()),
        ),
        Setting::HugetlbLimit { page_size, limit } => {
            let tail = pick(Controller::HugeTlb, "limit_in_bytes", "max");
            let whole = |bytes: Bytes| bytes.round_down(page_size).0.to_string();
            (
                format!("hugetlb.{}.{tail}", size_name(page_size)),
                limit.bound().map_or_else(max, whole),
            )
        }
    })
}

fn max() -> String {
    "max".to_owned()
}

/// As `mem_fmt` of the kernel's `mm/hugetlb_cgroup.c` writes a page size.
fn size_name(size: Bytes) -> String {
    match size.0 {
        bytes if bytes >= Bytes::GI.0 => format!("{}GB", bytes / Bytes::GI.0),
        bytes if bytes >= Bytes::MI.0 => format!("{}MB", bytes / Bytes::MI.0),
        bytes => format!("{}KB", bytes / Bytes::KI.0),
    }
}

/// Process ids that this machine has, as the kubelet counts them.
pub(crate) fn machine_pids() -> Result<u64> {
    let read = |name: &str| -> Result<u64> {
        let path = Path::new("/proc/sys/kernel").join(name);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        text.trim().parse().context("a number of process ids")
    };
    Ok(read("pid_max")?.min(read("threads-max")?))
}

/// Huge pages of this machine: page size to what it has of it, both in bytes.
pub(crate) fn machine_hugepages() -> Result<BTreeMap<Bytes, Bytes>> {
    let root = Path::new("/sys/kernel/mm/hugepages");
    let mut found = BTreeMap::new();
    let Ok(entries) = fs::read_dir(root) else {
        return Ok(found);
    };
    for entry in entries {
        let dir = entry?.path();
        let name = dir.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let kib = name
            .strip_prefix("hugepages-")
            .and_then(|rest| rest.strip_suffix("kB"))
            .and_then(|kib| kib.parse::<u64>().ok())
            .with_context(|| format!("a page size in {}", dir.display()))?;
        let count = fs::read_to_string(dir.join("nr_hugepages"))?;
        let count: u64 = count.trim().parse().context("nr_hugepages")?;
        found.insert(Bytes(kib * 1024), Bytes(kib * 1024 * count));
    }
    Ok(found)
}

/// Compares what the kernel shows with what it is to show: what was said, and what a fresh cgroup has in
/// every other file. The first difference is the error.
pub(crate) fn compare(cgroup: &Cgroup, said: &Values) -> Result<()> {
    let (_, differences) = differences(cgroup, said)?;
    let first = differences.into_iter().next();
    first.map_or(Ok(()), |first| bail!(first))
}

/// The same: how many files were compared, and every difference.
pub(crate) fn differences(cgroup: &Cgroup, said: &Values) -> Result<(usize, Vec<String>)> {
    let shown = read(cgroup)?;
    let mut differences = Vec::new();
    for (file, wanted) in said {
        let found = shown.get(file);
        if found != Some(wanted) {
            differences.push(format!(
                "{} of {} holds {}, the plan says {wanted}",
                file,
                cgroup.path(),
                found.map_or("nothing that can be read", String::as_str)
            ));
        }
    }
    for (file, found) in shown.iter().filter(|(file, _)| !said.contains_key(*file)) {
        let fresh = FRESH.iter().find(|(name, _)| name == file);
        let fresh = fresh.map_or("max", |(_, value)| value);
        if found != fresh {
            differences.push(format!(
                "{file} of {} holds {found}, which is not to be written",
                cgroup.path()
            ));
        }
    }
    let unread = said.keys().filter(|file| !shown.contains_key(*file));
    Ok((shown.len() + unread.count(), differences))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_sizes_are_named_as_the_kernel_names_them() {
        for (size, name) in [
            (Bytes(64 << 10), "64KB"),
            (Bytes::mebi(2), "2MB"),
            (Bytes::mebi(512), "512MB"),
            (Bytes::gibi(1), "1GB"),
        ] {
            assert_eq!(size_name(size), name);
        }
    }

    #[test]
    fn reservations_are_no_limits() {
        for (name, limit) in [
            ("hugetlb.2MB.max", true),
            ("hugetlb.1GB.limit_in_bytes", true),
            ("hugetlb.2MB.rsvd.max", false),
            ("hugetlb.2MB.rsvd.limit_in_bytes", false),
            ("hugetlb.2MB.current", false),
            ("memory.max", false),
        ] {
            assert_eq!(is_hugetlb_limit(name), limit, "{name}");
        }
    }
}
