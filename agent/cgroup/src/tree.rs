//! One name for a cgroup in every hierarchy that podwarden uses.

mod create;
mod list;
mod remove;

use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::{CgroupPath, Controller, Error, Hierarchies, Result, io, name, slice};

pub use create::Created;
pub use list::Entry;
pub(crate) use list::sub_directories;

/// The hierarchy whose ids name the cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Identity {
    /// The v2 hierarchy, with or without controllers.
    V2,
    /// The memory controller's v1 hierarchy.
    V1Memory,
}

/// One mounted hierarchy.
#[derive(Debug, Clone)]
struct Hierarchy {
    mount: PathBuf,
    is_v2: bool,
    has_cpuset: bool,
}

/// The cgroups below one root. A cgroup is named by its [`CgroupPath`].
#[derive(Debug, Clone)]
pub struct Tree {
    hierarchies: Hierarchies,
    root: String,
    used: Vec<Hierarchy>,
    identity: Identity,
}

impl Tree {
    /// A tree below `root`, which is relative to every mount point; slashes around it are ignored.
    /// The root need not exist yet; [`Error::InvalidName`] for one that leaves the mount point.
    ///
    /// Ids are those of v2 wherever it is mounted, unless a kubepods cgroup is already there in the
    /// memory controller's v1 hierarchy only: then its tasks are not in v2 cgroups.
    /// [`Error::NoController`] when there is neither a v2 mount nor a memory controller.
    pub fn new(hierarchies: Hierarchies, root: &str) -> Result<Self> {
        let root = name::root(root)?;
        let identity = choose_identity(&hierarchies, &root)?;
        let used = used_hierarchies(&hierarchies, identity);
        Ok(Self {
            hierarchies,
            root,
            used,
            identity,
        })
    }

    /// The hierarchies it works on.
    pub fn hierarchies(&self) -> &Hierarchies {
        &self.hierarchies
    }

    /// The root, relative to the mount points, without slashes around it.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// The hierarchy of [`Tree::id`] and [`Tree::list`].
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The directory of a cgroup in the hierarchy of `controller`.
    pub fn path(&self, controller: Controller, cgroup: &CgroupPath) -> Result<PathBuf> {
        let mount = self.hierarchies.mount_of(controller)?;
        self.below(mount, cgroup)
    }

    /// The directory of a cgroup in the hierarchy that gives its id.
    pub fn identity_path(&self, cgroup: &CgroupPath) -> Result<PathBuf> {
        match self.identity {
            Identity::V2 => self.v2_path(cgroup),
            Identity::V1Memory => self.path(Controller::Memory, cgroup),
        }
    }

    /// The directory of a cgroup in the v2 hierarchy. [`Error::Unsupported`] where that is not mounted.
    pub fn v2_path(&self, cgroup: &CgroupPath) -> Result<PathBuf> {
        let mount = self
            .hierarchies
            .v2_mount
            .as_ref()
            .ok_or(Error::Unsupported {
                what: "cgroup v2",
                reason: "it is not mounted",
            })?;
        self.below(mount, cgroup)
    }

    /// The kernel's id of a cgroup in the identity hierarchy.
    pub fn id(&self, cgroup: &CgroupPath) -> Result<u64> {
        directory_id(&self.identity_path(cgroup)?)
    }

    /// The kernel's id of a cgroup in the memory controller's hierarchy; on v2 the same as
    /// [`Tree::id`].
    pub fn memory_id(&self, cgroup: &CgroupPath) -> Result<u64> {
        directory_id(&self.path(Controller::Memory, cgroup)?)
    }

    /// The processes directly in a cgroup of the identity hierarchy, not in those below it. A
    /// process outside our pid namespace is listed as 0.
    pub fn procs(&self, cgroup: &CgroupPath) -> Result<Vec<u32>> {
        let path = self.identity_path(cgroup)?.join(PROCS);
        let text = io::read_text(&path)?;
        text.lines()
            .filter(|line| !line.is_empty())
            .map(|line| line.parse().ok())
            .collect::<Option<_>>()
            .ok_or_else(|| Error::malformed(path, "process ids"))
    }

    /// True while there is a process in a cgroup or in one below it, in any hierarchy: it cannot be
    /// removed then. False for one that does not exist.
    pub fn is_in_use(&self, cgroup: &CgroupPath) -> Result<bool> {
        for hierarchy in &self.used {
            if holds_processes(&self.below(&hierarchy.mount, cgroup)?)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// True when some hierarchy has this cgroup, be it only in part of them.
    pub fn is_anywhere(&self, cgroup: &CgroupPath) -> bool {
        self.used.iter().any(|hierarchy| {
            self.below(&hierarchy.mount, cgroup)
                .is_ok_and(|path| path.is_dir())
        })
    }

    /// The path of a cgroup below every mount point, the root included.
    pub(crate) fn full(&self, cgroup: &CgroupPath) -> String {
        match (self.root.as_str(), cgroup.as_str()) {
            ("", path) | (path, "") => path.to_owned(),
            (root, cgroup) => format!("{root}/{cgroup}"),
        }
    }

    /// The directories of such a path, in every hierarchy that is used.
    pub(crate) fn directories(&self, full: &str) -> impl Iterator<Item = PathBuf> {
        self.used.iter().map(move |h| h.mount.join(full))
    }

    /// The path below its mount point of a cgroup's directory; `None` when it is in no hierarchy
    /// that is used.
    pub(crate) fn beneath_mount<'a>(&self, directory: &'a Path) -> Option<&'a Path> {
        self.used
            .iter()
            .filter_map(|h| directory.strip_prefix(&h.mount).ok())
            // One mount may be below another, as v2 is on hybrid machines: the longest prefix counts.
            .min_by_key(|path| path.components().count())
    }

    fn below(&self, mount: &Path, cgroup: &CgroupPath) -> Result<PathBuf> {
        cgroup.check()?;
        // Joining an empty path would add a slash at the end.
        let mut path = mount.to_owned();
        for part in [self.root.as_str(), cgroup.as_str()] {
            if !part.is_empty() {
                path.push(part);
            }
        }
        Ok(path)
    }
}

/// The file that lists a cgroup's processes, in both versions.
pub(crate) const PROCS: &str = "cgroup.procs";

pub(crate) fn directory_id(path: &Path) -> Result<u64> {
    rustix::fs::stat(path)
        .map(|stat| stat.st_ino)
        .map_err(|e| Error::os("look up", path, e))
}

/// True when there are processes directly in a cgroup's directory; false when it is gone.
fn lists_processes(directory: &Path) -> Result<bool> {
    match io::read_text(&directory.join(PROCS)) {
        Err(error) if error.is_gone() => Ok(false),
        processes => Ok(!processes?.is_empty()),
    }
}

/// The same, or in one below it.
fn holds_processes(directory: &Path) -> Result<bool> {
    match lists_processes(directory) {
        Ok(true) => return Ok(true),
        // Part of a threaded subtree: the first cgroup of it lists its processes.
        Err(error) if error.errno() != Some(Errno::OPNOTSUPP) => return Err(error),
        _ => {}
    }
    for (name, _) in sub_directories(directory)? {
        if holds_processes(&directory.join(name))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// True when a cgroup's directory has processes in it or cgroups below it; false when it is gone.
pub(crate) fn holds_anything(directory: &Path) -> Result<bool> {
    Ok(lists_processes(directory)? || !sub_directories(directory)?.is_empty())
}

fn choose_identity(hierarchies: &Hierarchies, root: &str) -> Result<Identity> {
    let Some(v2) = &hierarchies.v2_mount else {
        hierarchies.mount_of(Controller::Memory)?;
        return Ok(Identity::V1Memory);
    };
    let Some(memory) = hierarchies.controllers.get(&Controller::Memory) else {
        return Ok(Identity::V2);
    };
    // The names that a kubelet or podwarden gives to the cgroup of all pods.
    let all_pods = ["kubepods".to_owned(), slice::child_of(root, "kubepods")];
    let only_in_v1 = all_pods
        .iter()
        .any(|name| memory.join(root).join(name).is_dir() && !v2.join(root).join(name).is_dir());
    Ok(if only_in_v1 {
        Identity::V1Memory
    } else {
        Identity::V2
    })
}

/// Every hierarchy once, the one that gives the ids first: a cgroup has its identity before it has
/// limits, and a process is where a kill looks for it before it is anywhere else.
fn used_hierarchies(hierarchies: &Hierarchies, identity: Identity) -> Vec<Hierarchy> {
    let mut used: Vec<Hierarchy> = Vec::new();
    let v2 = hierarchies.v2_mount.iter().map(|mount| Hierarchy {
        mount: mount.clone(),
        is_v2: true,
        has_cpuset: false,
    });
    used.extend(v2);
    for (controller, mount) in &hierarchies.controllers {
        let has_cpuset = *controller == Controller::CpuSet;
        match used.iter_mut().find(|h| h.mount == *mount) {
            Some(known) => known.has_cpuset |= has_cpuset,
            None => used.push(Hierarchy {
                mount: mount.clone(),
                is_v2: false,
                has_cpuset,
            }),
        }
    }
    let memory = hierarchies.controllers.get(&Controller::Memory);
    used.sort_by_key(|hierarchy| match identity {
        Identity::V2 => !hierarchy.is_v2,
        Identity::V1Memory => Some(&hierarchy.mount) != memory,
    });
    used
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::Version;

    #[test]
    fn the_hierarchy_that_gives_the_ids_comes_first() {
        let text = "1 0 0:1 / /c/unified rw - cgroup2 cgroup2 rw\n\
                    2 0 0:2 / /c/cpu rw - cgroup cgroup rw,cpu\n\
                    3 0 0:3 / /c/memory rw - cgroup cgroup rw,memory\n";
        let hierarchies = Hierarchies::parse(text).unwrap();
        let order = |identity| -> Vec<_> {
            let used = used_hierarchies(&hierarchies, identity);
            used.into_iter().map(|h| h.mount).collect()
        };
        let paths = |names: [&str; 3]| names.map(|n| Path::new("/c").join(n)).to_vec();
        assert_eq!(order(Identity::V2), paths(["unified", "cpu", "memory"]));
        assert_eq!(
            order(Identity::V1Memory),
            paths(["memory", "unified", "cpu"])
        );
    }

    /// Rows of `TestGetCgroupProcs`, kubelet `pkg/kubelet/cm/helpers_linux_test.go`.
    #[test]
    fn process_ids() {
        let dir = tempfile::tempdir().unwrap();
        let mount = dir.path().to_owned();
        let hierarchies = Hierarchies {
            version: Version::V2,
            v2_mount: Some(mount.clone()),
            controllers: [].into(),
        };
        let tree = Tree::new(hierarchies, "").unwrap();
        // The kubelet takes a missing file for no processes; here the caller decides.
        assert!(tree.procs(&CgroupPath::ROOT).unwrap_err().is_gone());
        let rows: [(&str, &[u32]); 4] = [
            ("1\n22\n333\n4444\n", &[1, 22, 333, 4444]),
            ("42", &[42]),
            ("", &[]),
            ("1\n\n2\n\n", &[1, 2]),
        ];
        let file = mount.join(PROCS);
        for (text, pids) in rows {
            fs::write(&file, text).unwrap();
            assert_eq!(tree.procs(&CgroupPath::ROOT).unwrap(), pids, "{text:?}");
        }
        for text in ["1\nx\n", "-1\n", "1 2\n"] {
            fs::write(&file, text).unwrap();
            let error = tree.procs(&CgroupPath::ROOT).unwrap_err();
            assert!(matches!(error, Error::Malformed { .. }), "{text:?}");
        }
    }
}
