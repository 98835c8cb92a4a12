//! Files that the agent keeps, and foreign values for them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::harness::{Cgroup, Node, Pod, PodSpec};

/// A foreign value for each file; a file exists on one version only, or is the same on both.
const FOREIGN: [(&str, &str); 9] = [
    ("cpu.shares", "777"),
    ("cpu.weight", "77"),
    ("cpu.cfs_quota_us", "77000"),
    ("cpu.max", "77000 100000"),
    ("memory.limit_in_bytes", "3221225472"),
    ("memory.max", "3221225472"),
    ("memory.min", "8388608"),
    ("memory.low", "8388608"),
    ("pids.max", "7777"),
];

/// A file of a cgroup, what the agent keeps in it, and what another writes.
#[derive(Debug, Clone)]
pub(in crate::cases) struct File {
    pub(in crate::cases) path: PathBuf,
    pub(super) kept: String,
    pub(super) foreign: &'static str,
}

impl File {
    pub(super) fn read(&self) -> Result<String> {
        read(&self.path)
    }

    pub(in crate::cases) fn is_kept(&self) -> Result<bool> {
        Ok(self.read()? == self.kept)
    }

    pub(in crate::cases) fn spoil(&self) -> Result<()> {
        fs::write(&self.path, self.foreign)
            .with_context(|| format!("write {} to {}", self.foreign, self.path.display()))
    }
}

pub(super) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

/// The files of a cgroup whose names pass, with what is in them now.
pub(super) fn files(cgroup: &Cgroup, pass: impl Fn(&str) -> bool) -> Result<Vec<File>> {
    let mut files = Vec::new();
    for dir in cgroup.dirs() {
        for (name, foreign) in FOREIGN {
            let path = dir.join(name);
            if pass(name) && path.exists() {
                let kept = read(&path)?;
                files.push(File {
                    path,
                    kept,
                    foreign,
                });
            }
        }
    }
    Ok(files)
}

pub(super) fn is_limit(name: &str) -> bool {
    matches!(name, "memory.limit_in_bytes" | "memory.max")
}

pub(super) fn is_reservation(name: &str) -> bool {
    matches!(name, "memory.min" | "memory.low")
}

pub(super) fn is_share(name: &str) -> bool {
    matches!(name, "cpu.shares" | "cpu.weight")
}

pub(super) fn mixed(count: usize) -> Vec<PodSpec> {
    let spec = |n: usize| match n % 3 {
        0 => PodSpec::guaranteed(&format!("g{n}"), "64Mi"),
        1 => PodSpec::burstable(&format!("b{n}"), "32Mi"),
        _ => PodSpec::best_effort(&format!("e{n}")),
    };
    (0..count).map(spec).collect()
}

/// Every file that the agent keeps, of every pod and tier.
pub(in crate::cases) fn kept_files(node: &Node, pods: &[Pod]) -> Result<Vec<File>> {
    let of_tier = |name: &str| is_limit(name) || is_share(name);
    let mut all = files(&node.kubepods(), of_tier)?;
    for tier in ["burstable", "besteffort"] {
        all.extend(files(&node.tier(tier)?, of_tier)?);
    }
    for pod in pods {
        all.extend(files(&pod.cgroup, |_| true)?);
    }
    Ok(all)
}
