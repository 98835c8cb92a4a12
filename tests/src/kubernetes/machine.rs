//! What a kubelet, a runtime or a network plugin would change of the machine outside of the enclosure.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::harness::Cgroup;

/// Directories that these programs make theirs in.
const PLACES: [&str; 8] = [
    "/etc",
    "/etc/cni",
    "/opt",
    "/run",
    "/sys/class/net",
    "/usr/libexec",
    "/var/lib",
    "/var/log",
];
/// Settings that a kubelet or a network plugin writes.
const SETTINGS: [&str; 7] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv4/ip_forward",
];

/// How the machine is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Machine {
    entries: BTreeMap<&'static str, BTreeSet<String>>,
    settings: BTreeMap<&'static str, String>,
}

impl Machine {
    pub(super) fn now() -> Result<Self> {
        let setting = |name| {
            let path = Path::new("/proc/sys").join(name);
            let value = fs::read_to_string(&path);
            Ok((
                name,
                value.with_context(|| format!("read {}", path.display()))?,
            ))
        };
        Ok(Self {
            entries: PLACES.map(|place| (place, names(place))).into(),
            settings: SETTINGS.into_iter().map(setting).collect::<Result<_>>()?,
        })
    }
}

/// Fails where something is left of an enclosure in `dir` whose root was `root`.
pub(super) fn ensure_gone(dir: &Path, root: &Cgroup) -> Result<()> {
    ensure!(!dir.exists(), "{} is left", dir.display());
    let elsewhere = Cgroup::new(&root.mounts().elsewhere()?, root.path());
    let left: Vec<_> = root
        .dirs()
        .chain(elsewhere.dirs())
        .filter(|dir| dir.exists())
        .collect();
    ensure!(left.is_empty(), "{left:?} are left");
    let mounts = fs::read_to_string("/proc/self/mounts").context("read the mounts")?;
    let dir = dir.display().to_string();
    let mut of_it = mounts.lines().filter(|line| line.contains(&dir));
    ensure!(
        of_it.next().is_none(),
        "something is left mounted: {mounts}"
    );
    Ok(())
}

fn names(place: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.collect()
}
