//! Last-level cache and memory bandwidth by class, through the kernel's `resctrl`
//! (`Documentation/filesystems/resctrl.rst`).
//!
//! ```text
//!  reconciler ── pods ──> thread ── schemata, tasks ──> /sys/fs/resctrl/podwarden-ROOT-{lsr,ls,be}
//! ```
//!
//! A task inherits its group from its parent, so that a pod's first processes decide; each round finds what a runtime
//! has added. Groups go with the agent: after a kill a process of its own removes them, or the next agent does.
//!
//! No machine with this hardware was at hand: the tests run on files that answer as the kernel documents it.

mod files;
mod groups;
mod thread;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use podwarden_cgroup::{CgroupPath, Tree};
use podwarden_policy::colocation::resctrl::Vendor;

use self::files::{Mount, mounted};
pub use self::groups::{Group, ResctrlError};
use crate::{
    base::worker::Worker,
    config::ResctrlConfig,
    hierarchy::converge::guard::{Guard, Place},
};

/// Where it is mounted.
pub const DIRECTORY: &str = "/sys/fs/resctrl";

/// A pod with its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its cgroup below the tree's root.
    pub path: CgroupPath,
    /// A container that comes is a reason to look again.
    pub containers: usize,
    /// Where its tasks are to be.
    pub group: Group,
}

/// The reconciler's end of the thread.
#[derive(Debug)]
pub struct Resctrl {
    /// `None` once it has ended: the groups are gone then.
    worker: Option<Worker<Vec<Member>>>,
    guard: Option<Guard>,
}

impl Resctrl {
    /// Makes the groups and starts the thread, with no pod. No group is left after an error.
    pub fn start(
        tree: Tree,
        config: ResctrlConfig,
        cgroup_root: &str,
    ) -> Result<Self, ResctrlError> {
        let dir = Path::new(DIRECTORY);
        if !mounted(dir) {
            return Err(ResctrlError::Absent(dir.display().to_string()));
        }
        let files = Box::new(Mount(dir.to_owned()));
        let groups = groups::Groups::new(files, config, vendor(), cgroup_root);
        let guard = guard(cgroup_root, dir);
        groups.settle().inspect_err(|_| groups.remove())?;
        let thread = thread::Thread::new(tree, groups);
        let worker = Worker::start("resctrl", move |waiting| thread.run(waiting));
        Ok(Self {
            worker: Some(worker.map_err(ResctrlError::Thread)?),
            guard,
        })
    }

    /// The pods from now on.
    pub fn aim(&self, members: Vec<Member>) {
        if let Some(worker) = &self.worker {
            worker.tell(members);
        }
    }
}

/// Ends the thread; the groups are gone by then.
impl Drop for Resctrl {
    fn drop(&mut self) {
        self.worker = None;
        if let Some(guard) = self.guard.take() {
            guard.dismiss();
        }
    }
}

/// The groups that an agent of this cgroup root has left.
pub fn left(dir: &Path, cgroup_root: &str) -> Vec<PathBuf> {
    let groups = Group::ALL.map(|group| dir.join(group.directory(cgroup_root)));
    groups.into_iter().filter(|group| group.exists()).collect()
}

/// Removes the groups that an agent of this cgroup root has left; returns those that stay.
pub fn remove_left(dir: &Path, cgroup_root: &str) -> Vec<String> {
    groups::remove(&Mount(dir.to_owned()), cgroup_root)
}

/// Removes the groups after a kill of the agent: a process of its own.
fn guard(cgroup_root: &str, dir: &Path) -> Option<Guard> {
    let place = Place {
        cgroup_root: cgroup_root.to_owned(),
        found: None,
        frozen: None,
        quotas: None,
        resctrl: Some(dir.to_owned()),
        systemd: false,
    };
    let guard = Guard::start(&place).and_then(|guard| {
        guard.leave().map_err(std::io::Error::other)?;
        Ok(guard)
    });
    guard
        .inspect_err(|error| {
            tracing::warn!(%error, "after a kill only the next agent removes resctrl groups");
        })
        .ok()
}

/// By the first processor: memory bandwidth of others than AMD's is in percent.
fn vendor() -> Vendor {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("vendor_id"));
    match line.is_some_and(|line| line.ends_with("AuthenticAMD")) {
        true => Vendor::Amd,
        false => Vendor::Intel,
    }
}
