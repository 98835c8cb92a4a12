//! Making a cgroup in every hierarchy.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, XattrFlags, getxattr, mkdir, removexattr, setxattr},
    io::Errno,
};

use super::{Hierarchy, Tree};
use crate::{CgroupPath, Controller, Error, Result, io};

/// What v2 cgroups need for podwarden to read and to limit them.
const REQUIRED: [Controller; 3] = [Controller::Cpu, Controller::Memory, Controller::Pids];
/// What the kubelet wants of a cgroup besides (`getSupportedUnifiedControllers` of kubelet
/// `pkg/kubelet/cm/cgroup_v2_manager_linux.go`).
const OPTIONAL: [Controller; 2] = [Controller::CpuSet, Controller::HugeTlb];

/// On each directory that [`Tree::create`] makes; see xattr(7).
const MARK: &str = "trusted.podwarden";
/// What the mark holds.
const SET: &[u8] = b"1";
/// On its parent until that is marked, with its name: an agent that is killed in between has made it all the same.
const MAKING: &str = "trusted.podwarden.making";
/// The longest name of a directory, bytes (`NAME_MAX` of `include/uapi/linux/limits.h`).
const NAME_MAX: usize = 255;

/// The directories that one [`Tree::create`] made, parents first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use = "only these directories may be removed later"]
pub struct Created {
    /// Absolute paths, of every hierarchy.
    pub directories: Vec<PathBuf>,
}

impl Created {
    /// True when everything was there before.
    pub fn is_empty(&self) -> bool {
        self.directories.is_empty()
    }

    /// Adds what a later call made.
    pub fn extend(&mut self, later: Self) {
        self.directories.extend(later.directories);
    }
}

impl Tree {
    /// Makes a cgroup and what is missing above it, in every hierarchy that is used; what exists
    /// stays as it is. The answer names the directories that this call made; after an error they are removed again.
    ///
    /// On v2 controllers are enabled in `cgroup.subtree_control` of every cgroup on the way; that
    /// stays enabled when the cgroup is removed, because others may rely on it by then.
    /// [`Error::InternalProcesses`] when one of them holds processes.
    /// On a v1 cpuset hierarchy empty `cpuset.cpus` and `cpuset.mems` take the parent's value:
    /// tasks may not enter a cgroup that has none (cpuset(7)).
    pub fn create(&self, cgroup: &CgroupPath) -> Result<Created> {
        let mut created = Created::default();
        for hierarchy in &self.used {
            let made = self.create_in(hierarchy, cgroup, &mut created);
            if let Err(error) = made {
                if let Err(left) = self.remove_created(&created) {
                    tracing::warn!(error = %left, "a cgroup made just before a failure stays behind");
                }
                return Err(error);
            }
        }
        Ok(created)
    }

    /// The directories of a cgroup that another podwarden has made with [`Tree::create`]; for the empty
    /// name those of the tree's root and above it. They may be removed like those that it names.
    pub fn made_before(&self, cgroup: &CgroupPath) -> Result<Created> {
        let mut found = Created::default();
        for hierarchy in &self.used {
            let target = self.below(&hierarchy.mount, cgroup)?;
            let above = target.ancestors().skip(1).take_while(|directory| {
                cgroup.is_root() && directory.starts_with(&hierarchy.mount)
            });
            let mut chain: Vec<_> = above.collect();
            chain.reverse();
            chain.push(&target);
            for directory in chain {
                if *directory != *hierarchy.mount && is_ours(directory)? {
                    found.directories.push(directory.to_owned());
                }
            }
        }
        Ok(found)
    }

    fn create_in(
        &self,
        hierarchy: &Hierarchy,
        cgroup: &CgroupPath,
        created: &mut Created,
    ) -> Result<()> {
        let target = self.below(&hierarchy.mount, cgroup)?;
        let mut parent = hierarchy.mount.clone();
        let relative = target.strip_prefix(&parent).unwrap_or(Path::new(""));
        for component in relative.components() {
            let directory = parent.join(component);
            if hierarchy.is_v2 {
                self.enable_controllers(&parent)?;
            }
            if make_marked(&parent, &directory)? {
                created.directories.push(directory.clone());
            }
            if hierarchy.has_cpuset && !hierarchy.is_v2 {
                inherit_cpuset(&parent, &directory)?;
            }
            parent = directory;
        }
        Ok(())
    }

    /// Hands the controllers that podwarden uses from `parent` to its children.
    fn enable_controllers(&self, parent: &Path) -> Result<()> {
        let on_v2 = |c: &Controller| self.hierarchies.is_on_v2(*c);
        if !REQUIRED.iter().chain(&OPTIONAL).any(on_v2) {
            // A v2 mount without controllers beside v1: it only gives ids.
            return Ok(());
        }
        let available = io::read_text(&parent.join("cgroup.controllers"))?;
        let control = parent.join("cgroup.subtree_control");
        let enabled = io::read_text(&control)?;
        let missing = |c: &Controller| {
            let listed = |list: &str| list.split_ascii_whitespace().any(|n| n == c.as_str());
            listed(&available) && !listed(&enabled)
        };
        // In one line, which the kernel takes whole or not at all: cpu and pids alone would be taken
        // in a cgroup with processes too and make it the root of a threaded subtree, which memory
        // cannot enter (`cgroup_vet_subtree_control_enable`, `kernel/cgroup/cgroup.c`).
        let required: Vec<_> = REQUIRED.into_iter().filter(missing).collect();
        enable(&control, &required)?;
        // One at a time, so that one that is refused does not cost the others.
        for controller in OPTIONAL.into_iter().filter(missing) {
            if let Err(error) = enable(&control, &[controller]) {
                tracing::debug!(%controller, %error, "an optional controller stays disabled");
            }
        }
        Ok(())
    }
}

fn enable(control: &Path, controllers: &[Controller]) -> Result<()> {
    if controllers.is_empty() {
        return Ok(());
    }
    let words: Vec<_> = controllers.iter().map(|c| format!("+{c}")).collect();
    let line = words.join(" ");
    let file = io::open_write(control)?;
    io::write_fd(&file, line.as_bytes()).map_err(|source| match source {
        Errno::BUSY => Error::InternalProcesses {
            operation: "enable controllers in",
            path: control.into(),
            source,
        },
        source => Error::os("enable controllers in", control, source),
    })
}

/// Makes a directory and marks it; true when it was not there before. The parent has its name until it is marked.
fn make_marked(parent: &Path, directory: &Path) -> Result<bool> {
    if directory.is_dir() {
        return Ok(false);
    }
    // Before its name makes room: what an agent made and was killed over.
    if let Ok(Some(name)) = get(parent, MAKING) {
        let unmarked = parent.join(OsStr::from_bytes(&name));
        if unmarked.is_dir() {
            set(&unmarked, MARK, SET);
        }
    }
    let name = directory.file_name().unwrap_or_default().as_encoded_bytes();
    set(parent, MAKING, name);
    let made = make_directory(directory);
    if let Ok(true) = made {
        set(directory, MARK, SET);
    }
    // Refused where it was refused above.
    let _ = removexattr(parent, MAKING);
    made
}

/// True when the directory was not there before.
fn make_directory(path: &Path) -> Result<bool> {
    match mkdir(path, Mode::from_raw_mode(0o755)) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) if path.is_dir() => Ok(false),
        Err(Errno::EXIST) => Err(Error::InvalidName {
            name: path.display().to_string(),
            reason: "it is a file of its parent cgroup",
        }),
        Err(e) => Err(Error::os("create", path, e)),
    }
}

/// Remembers who made it past the agent's end: an extended attribute that only a privileged process
/// can set, in the kernel's memory for as long as the cgroup is there.
fn set(directory: &Path, attribute: &str, value: &[u8]) {
    if let Err(error) = setxattr(directory, attribute, value, XattrFlags::empty()) {
        tracing::debug!(
            %error,
            attribute,
            directory = %directory.display(),
            "not marked as ours: an agent that is killed leaves it behind"
        );
    }
}

/// True for what an agent has made, also where it was killed before it could mark it.
fn is_ours(directory: &Path) -> Result<bool> {
    if get(directory, MARK)?.is_some_and(|mark| mark == SET) {
        return Ok(true);
    }
    let (Some(parent), Some(name)) = (directory.parent(), directory.file_name()) else {
        return Ok(false);
    };
    let making = get(parent, MAKING)?;
    Ok(making.is_some_and(|making| making == name.as_encoded_bytes()) && directory.is_dir())
}

/// An attribute's value; `None` where there is none.
fn get(directory: &Path, attribute: &str) -> Result<Option<Vec<u8>>> {
    let mut value = vec![0; NAME_MAX];
    match getxattr(directory, attribute, &mut value) {
        Ok(length) => {
            value.truncate(length);
            Ok(Some(value))
        }
        // Not there, or longer than what we would have written.
        Err(Errno::NODATA | Errno::RANGE | Errno::OPNOTSUPP | Errno::NOENT) => Ok(None),
        Err(e) => Err(Error::os("read the maker of", directory, e)),
    }
}

fn inherit_cpuset(parent: &Path, child: &Path) -> Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let own = child.join(file);
        if io::read_text(&own)?.trim_ascii().is_empty() {
            io::write_text(&own, io::read_text(&parent.join(file))?.trim_ascii())?;
        }
    }
    Ok(())
}
