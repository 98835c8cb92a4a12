//! A cgroup by its path below every hierarchy's mount, and the kernel's own figures of it.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::mounts::Mounts;
use super::second_opinion;
use super::wait::eventually;

/// One name in every hierarchy.
#[derive(Debug, Clone)]
pub(crate) struct Cgroup {
    mounts: Mounts,
    path: String,
}

/// The kernel's figures, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    /// `memory.current` or `memory.usage_in_bytes`.
    pub(crate) usage: u64,
    /// `inactive_file` or `total_inactive_file`.
    pub(crate) inactive_file: u64,
    /// `anon` or `total_rss`.
    pub(crate) rss: u64,
    /// `shmem` or `total_shmem`.
    pub(crate) shared: u64,
}

impl Memory {
    /// Usage minus inactive page cache.
    pub(crate) fn working_set(&self) -> u64 {
        self.usage.saturating_sub(self.inactive_file)
    }
}

impl Cgroup {
    /// `path` below the mounts; nothing is created.
    pub(crate) fn new(mounts: &Mounts, path: &str) -> Self {
        Self {
            mounts: mounts.clone(),
            path: path.trim_matches('/').to_owned(),
        }
    }

    /// A cgroup below this one.
    pub(crate) fn child(&self, name: &str) -> Self {
        Self::new(&self.mounts, &format!("{}/{name}", self.path))
    }

    /// The path below the mounts.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Where the hierarchies are.
    pub(crate) fn mounts(&self) -> &Mounts {
        &self.mounts
    }

    /// Its directory in every hierarchy.
    pub(crate) fn dirs(&self) -> impl Iterator<Item = PathBuf> {
        self.mounts.all.iter().map(|mount| mount.join(&self.path))
    }

    /// Whether it is there in every hierarchy.
    pub(crate) fn exists(&self) -> bool {
        self.dirs().all(|dir| dir.is_dir())
    }

    /// Makes it in every hierarchy where it is not there yet. Its parent must be there.
    pub(crate) fn create(&self) -> Result<()> {
        for (mount, dir) in self.mounts.all.iter().zip(self.dirs()) {
            if self.mounts.v2() == Some(mount) && self.mounts.memory_on_v2() {
                enable_controllers(dir.parent().context("a mount is no cgroup")?)?;
            }
            match fs::create_dir(&dir) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    return Err(error).with_context(|| format!("create {}", dir.display()));
                }
                _ => {}
            }
            if self.mounts.is_v1_cpuset(mount) {
                inherit_cpuset(&dir)?;
            }
        }
        Ok(())
    }

    /// Makes it and what is missing above it, below `root`.
    pub(crate) fn create_below(&self, root: &Self) -> Result<()> {
        let rest = self
            .path
            .strip_prefix(&root.path)
            .context("not below the root")?;
        let mut at = root.clone();
        for name in rest.split('/').filter(|name| !name.is_empty()) {
            at = at.child(name);
            at.create()?;
        }
        Ok(())
    }

    /// Moves a process here in every hierarchy.
    pub(crate) fn attach(&self, pid: u32) -> Result<()> {
        self.dirs()
            .try_for_each(|dir| second_opinion::attach(&dir, pid))
    }

    /// CPU time so far, nanoseconds.
    pub(crate) fn cpu_ns(&self) -> Result<u64> {
        if let Some(mount) = self.mounts.cpuacct() {
            return number(&mount.join(&self.path).join("cpuacct.usage"));
        }
        let v2 = self.mounts.v2().context("neither cpuacct nor v2")?;
        Ok(1000 * field(&v2.join(&self.path).join("cpu.stat"), "usage_usec")?)
    }

    /// The file with its memory usage.
    pub(crate) fn memory_usage_file(&self) -> PathBuf {
        let dir = self.mounts.memory().join(&self.path);
        dir.join(if self.mounts.memory_on_v2() {
            "memory.current"
        } else {
            "memory.usage_in_bytes"
        })
    }

    /// The file with its hard memory limit.
    pub(crate) fn memory_limit_file(&self) -> PathBuf {
        let dir = self.mounts.memory().join(&self.path);
        dir.join(if self.mounts.memory_on_v2() {
            "memory.max"
        } else {
            "memory.limit_in_bytes"
        })
    }

    /// Memory now.
    pub(crate) fn memory(&self) -> Result<Memory> {
        let stat = self.mounts.memory().join(&self.path).join("memory.stat");
        let (inactive_file, rss, shared) = if self.mounts.memory_on_v2() {
            ("inactive_file", "anon", "shmem")
        } else {
            ("total_inactive_file", "total_rss", "total_shmem")
        };
        Ok(Memory {
            usage: number(&self.memory_usage_file())?,
            inactive_file: field(&stat, inactive_file)?,
            rss: field(&stat, rss)?,
            shared: field(&stat, shared)?,
        })
    }

    /// Processes of it and of all below it that the kernel's OOM killer has killed.
    pub(crate) fn oom_kills(&self) -> Result<u64> {
        let dir = self.mounts.memory().join(&self.path);
        if self.mounts.memory_on_v2() {
            return field(&dir.join("memory.events"), "oom_kill");
        }
        // v1 counts for the cgroup of the process alone.
        let mut kills = field(&dir.join("memory.oom_control"), "oom_kill")?;
        for child in self.children() {
            kills += match child.oom_kills() {
                // It goes away meanwhile.
                Err(_) if !child.exists() => 0,
                kills => kills?,
            };
        }
        Ok(kills)
    }

    /// Its settings as text, for comparing before and after: limits, shares and members.
    pub(crate) fn settings(&self) -> Vec<(PathBuf, String)> {
        const FILES: [&str; 8] = [
            "memory.max",
            "memory.high",
            "memory.limit_in_bytes",
            "cpu.shares",
            "cpu.weight",
            "cpu.max",
            "pids.max",
            "freezer.state",
        ];
        let mut found = Vec::new();
        for dir in self.dirs() {
            for file in FILES {
                if let Ok(text) = fs::read_to_string(dir.join(file)) {
                    found.push((dir.join(file), text));
                }
            }
        }
        found
    }

    /// Every file of it and of all below it that holds a setting, with its value.
    pub(crate) fn every_setting(&self, found: &mut BTreeMap<PathBuf, String>) -> Result<()> {
        for dir in self.dirs() {
            let entries = fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))?;
            for entry in entries.flatten() {
                let name = entry.file_name();
                let writable = entry.metadata()?.permissions().mode() & 0o200 != 0;
                if entry.file_type()?.is_file()
                    && writable
                    && !is_counter(&name.to_string_lossy())
                    // Some can only be written, or are refused to a cgroup that is not the topmost one.
                    && let Ok(value) = fs::read_to_string(entry.path())
                {
                    found.insert(entry.path(), value);
                }
            }
        }
        self.children()
            .iter()
            .try_for_each(|child| child.every_setting(found))
    }

    /// The processes in it, not those below; the union over the hierarchies.
    pub(crate) fn procs(&self) -> Vec<u32> {
        let mut pids: Vec<u32> = self
            .dirs()
            .filter_map(|dir| fs::read_to_string(dir.join("cgroup.procs")).ok())
            .flat_map(|text| {
                // One that is reaped meanwhile has 0 there (`cgroup_procs_show`, kernel/cgroup/cgroup.c): to kill(2) that
                // is the caller's process group.
                let pids = text.lines().filter_map(|line| line.parse().ok());
                pids.filter(|pid| *pid != 0).collect::<Vec<_>>()
            })
            .collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// The processes in it and below, each with its cgroup.
    pub(crate) fn all_procs(&self) -> Vec<(Self, u32)> {
        let own = self.procs().into_iter().map(|pid| (self.clone(), pid));
        let below = self.children();
        let below = below.iter().flat_map(Self::all_procs);
        own.chain(below).collect()
    }

    /// The cgroups right below, in any hierarchy.
    pub(crate) fn children(&self) -> Vec<Self> {
        let mut names: Vec<String> = self
            .dirs()
            .filter_map(|dir| fs::read_dir(dir).ok())
            .flatten()
            .filter_map(|entry| {
                let entry = entry.ok()?;
                entry
                    .file_type()
                    .ok()?
                    .is_dir()
                    .then(|| entry.file_name().into_string().ok())?
            })
            .collect();
        names.sort_unstable();
        names.dedup();
        names.iter().map(|name| self.child(name)).collect()
    }

    /// Whether it is frozen by itself (v1).
    pub(crate) fn is_frozen(&self) -> bool {
        self.dirs().any(|dir| {
            fs::read_to_string(dir.join("freezer.self_freezing"))
                .is_ok_and(|text| text.trim() == "1")
        })
    }

    /// Limits the number of processes in it and below.
    pub(crate) fn limit_pids(&self, limit: i64) -> Result<()> {
        self.dirs()
            .filter(|dir| dir.join("pids.max").exists())
            .try_for_each(|dir| second_opinion::limit_pids(&dir, limit))
    }

    /// Removes it, which must be empty, from every hierarchy; one that is gone is fine.
    pub(crate) fn remove(&self) -> Result<()> {
        for dir in self.dirs() {
            match fs::remove_dir(&dir) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("remove {}", dir.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Its id in the freezer's hierarchy (v1).
    pub(crate) fn freezer_id(&self) -> Result<u64> {
        let mut dirs = self.dirs();
        let dir = dirs.find(|dir| dir.join("freezer.state").exists());
        Ok(fs::metadata(dir.context("no freezer")?)?.ino())
    }

    /// Freezes it by itself (v1).
    pub(crate) fn freeze(&self) -> Result<()> {
        self.dirs()
            .map(|dir| dir.join("freezer.state"))
            .filter(|state| state.exists())
            .try_for_each(|state| write(&state, "FROZEN"))
    }

    /// Undoes a freeze, v1 and v2; a frozen process does not die.
    pub(crate) fn thaw(&self) {
        for dir in self.dirs() {
            for (file, value) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
                if dir.join(file).exists() {
                    // Gone meanwhile is as good.
                    let _ = fs::write(dir.join(file), value);
                }
            }
        }
    }
}

/// True for what can be written and is no setting: members, and figures that a write resets.
fn is_counter(file: &str) -> bool {
    const FIGURES: [&str; 10] = [
        "procs",
        "threads",
        "tasks",
        ".pressure",
        "usage",
        "usage_in_bytes",
        "peak",
        "failcnt",
        "stat",
        "force_empty",
    ];
    FIGURES.iter().any(|end| file.ends_with(end))
}

/// For so long a process that has ended may be in the way of a cgroup's controllers.
const ENDED: Duration = Duration::from_secs(5);

/// Lets the children of `dir` have every controller that `dir` has; none where it has processes of its own,
/// which v2 does not let compete with children for anything, but in the root.
fn enable_controllers(dir: &Path) -> Result<()> {
    let is_root = !dir.join("cgroup.type").exists();
    let processes = fs::read_to_string(dir.join("cgroup.procs"));
    if !is_root && processes.is_ok_and(|processes| !processes.trim().is_empty()) {
        return Ok(());
    }
    let path = dir.join("cgroup.controllers");
    let list = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let words: Vec<_> = list.split_whitespace().map(|c| format!("+{c}")).collect();
    // In one line: some would be taken alone where a process is, and shut the others out. One that has ended
    // is not listed any more, and is in the way for a moment longer.
    eventually(ENDED, || {
        write(&dir.join("cgroup.subtree_control"), &words.join(" "))
    })
}

/// A v1 cpuset takes no task before it has CPUs and memory nodes; those of its parent.
fn inherit_cpuset(dir: &Path) -> Result<()> {
    let parent = dir.parent().context("a mount is no cgroup")?;
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let own = fs::read_to_string(dir.join(file)).context("read a cpuset")?;
        if own.trim().is_empty() {
            let value = fs::read_to_string(parent.join(file)).context("read a cpuset")?;
            write(&dir.join(file), value.trim())?;
        }
    }
    Ok(())
}

fn write(path: &Path, value: &str) -> Result<()> {
    fs::write(path, value).with_context(|| format!("write {value} to {}", path.display()))
}

fn number(path: &Path) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    text.trim()
        .parse()
        .with_context(|| format!("{} holds {text:?}", path.display()))
}

fn field(path: &Path, name: &str) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    for line in text.lines() {
        if let Some((key, value)) = line.split_once(' ')
            && key == name
        {
            return value
                .parse()
                .with_context(|| format!("{name} in {}", path.display()));
        }
    }
    bail!("{} has no {name}", path.display())
}
