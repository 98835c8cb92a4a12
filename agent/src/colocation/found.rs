//! Quotas and bursts as they were found, see [`crate::base::found`], and how they are put back.

use std::path::{Path, PathBuf};

use podwarden_cgroup::{CgroupPath, Error, QuotaWriter, Tree, root_as_file_name};
use podwarden_policy::{
    colocation::burst::{self, Bandwidth, Cgroup, Write},
    limits::{CpuMax, Limit},
};
use serde::{Deserialize, Serialize};

use crate::base::{error::chain, found};

/// Quota and burst of one cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Found {
    /// The cgroup's id, see [`Tree::id`].
    pub(super) id: u64,
    /// Quota and period.
    pub(super) max: CpuMax,
    /// The burst, microseconds; `None` before Linux 5.14.
    pub(super) burst_us: Option<u64>,
}

impl found::Found for Found {
    fn id(&self) -> u64 {
        self.id
    }
}

/// The file with quotas and bursts.
pub(super) type Originals = found::Originals<Found>;

/// The name of the file for a cgroup root.
pub fn file(directory: &Path, root: &str) -> PathBuf {
    let name = root_as_file_name(root);
    directory.join(format!("podwarden-{name}.cpu.json"))
}

/// The name of the file with the besteffort tier's quota for a cgroup root.
pub fn hold_file(directory: &Path, root: &str) -> PathBuf {
    let name = root_as_file_name(root);
    directory.join(format!("podwarden-{name}.cpu-tier.json"))
}

impl Found {
    /// What a cgroup holds now.
    pub(super) fn read(tree: &Tree, path: &CgroupPath) -> Result<Self, Error> {
        Ok(Self {
            id: tree.id(path)?,
            max: tree.cpu_max(path)?,
            burst_us: tree.cpu_burst(path).ok(),
        })
    }

    /// As the policy counts it.
    pub(super) fn bandwidth(&self) -> Bandwidth {
        Bandwidth {
            quota_us: match self.max.quota_us {
                Limit::At(quota) => Some(quota),
                Limit::Unlimited => None,
            },
            burst_us: self.burst_us.unwrap_or(0),
        }
    }
}

/// Carries out writes of a pod and its containers. Ends with the first write that the kernel refuses.
pub(super) fn carry_out(
    tree: &Tree,
    writes: &[Write],
    pod: (&CgroupPath, &Found),
    containers: &[(&CgroupPath, &Found)],
) -> Result<(), Error> {
    let of = |cgroup: Cgroup| match cgroup {
        Cgroup::Pod => pod,
        Cgroup::Container(index) => containers[index],
    };
    for write in writes {
        match *write {
            Write::Quota(cgroup, quota_us) => {
                let (path, found) = of(cgroup);
                let period_us = found.max.period_us;
                let max = quota_us.map_or(CpuMax::UNLIMITED, |quota_us| CpuMax {
                    quota_us: Limit::At(quota_us),
                    period_us,
                });
                tree.set_cpu_max(path, max)?;
            }
            Write::Burst(cgroup, burst_us) => {
                let (path, found) = of(cgroup);
                // Without the file there is no burst, neither now nor then.
                if found.burst_us.is_some() {
                    tree.set_cpu_burst(path, burst_us)?;
                }
            }
        }
    }
    Ok(())
}

/// The cgroups whose quota or burst an agent has left otherwise than it found it.
pub fn left(file: PathBuf) -> Vec<CgroupPath> {
    Originals::open(file).all().map(|(path, _)| path).collect()
}

/// Puts everything back that an agent has left in the file, and removes the file once all of that is done.
/// True when there was something.
pub fn restore(tree: &Tree, file: PathBuf) -> bool {
    let originals = Originals::open(file);
    let all: Vec<(CgroupPath, Found)> = originals
        .all()
        .map(|(path, found)| (path, *found))
        .collect();
    let is_pod = |path: &CgroupPath| !all.iter().any(|(other, _)| is_below(path, other));
    let mut whole = true;
    for (path, found) in all.iter().filter(|(path, _)| is_pod(path)) {
        let containers: Vec<_> = all
            .iter()
            .filter(|(other, _)| is_below(other, path))
            .collect();
        if let Err(error) = restore_pod(tree, (path, found), &containers)
            && !error.is_gone()
        {
            tracing::warn!(error = chain(&error), cgroup = %path, "its quota is not what was found");
            whole = false;
        }
    }
    if whole {
        originals.close();
    }
    !all.is_empty()
}

fn is_below(path: &CgroupPath, other: &CgroupPath) -> bool {
    let rest = path.as_str().strip_prefix(other.as_str());
    rest.is_some_and(|rest| rest.starts_with('/'))
}

fn restore_pod(
    tree: &Tree,
    pod: (&CgroupPath, &Found),
    containers: &[&(CgroupPath, Found)],
) -> Result<(), Error> {
    // Gone, or another cgroup of its name: not ours.
    let now = |path: &CgroupPath, found: &Found| {
        let now = Found::read(tree, path).ok()?;
        (now.id == found.id).then_some((now.bandwidth(), found.bandwidth()))
    };
    let Some(pod_change) = now(pod.0, pod.1) else {
        return Ok(());
    };
    let (there, changes): (Vec<_>, Vec<_>) = containers
        .iter()
        .filter_map(|(path, found)| Some(((path, found), now(path, found)?)))
        .unzip();
    let writes = burst::writes(pod_change, &changes);
    carry_out(tree, &writes, pod, &there)?;
    // The period of a cgroup without a quota is no part of its bandwidth.
    let unlimited = |(_, found): &(&CgroupPath, &Found)| found.max.quota_us == Limit::Unlimited;
    for (path, found) in [pod].into_iter().chain(there).filter(unlimited) {
        QuotaWriter::open(tree, path)?.set(found.max)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_below_its_pod_and_not_below_another_of_a_longer_name() {
        let path = |text: &str| CgroupPath::from(text);
        assert!(is_below(&path("kubepods/poda/c"), &path("kubepods/poda")));
        assert!(!is_below(&path("kubepods/podab"), &path("kubepods/poda")));
        assert!(!is_below(&path("kubepods/poda"), &path("kubepods/poda")));
    }
}
