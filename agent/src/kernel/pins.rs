//! Maps that outlive the agent: where they are pinned, and whether this agent can continue with them.
//!
//! `/sys/fs/bpf/podwarden/<cgroup root>/<layout>/<map>`. Only the agent that
//! holds the root's lock looks there, and only its programs count. The kernel closes the files of a dead process in
//! the reverse order of their opening (`task_work_run` in kernel/task_work.c): it detaches the programs before it
//! frees the lock, which the agent opened first. The programs and their links are not pinned: they end with the
//! agent, and nothing accounts what pods use while no agent runs. bpffs is memory of the kernel, so the maps do not
//! outlive a boot, within which the kernel uses no cgroup id twice.
//!
//! May touch: files below `podwarden` in the BPF file system, and there only maps of the names in
//! [`NAMES`]. The agent leaves anything else alone and does without pins.

use std::{
    fs::{self, DirBuilder},
    io,
    os::{
        fd::{AsFd as _, AsRawFd as _},
        unix::fs::{DirBuilderExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
};

use aya::maps::{MapData, MapError, MapInfo};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use podwarden_abi::PINNED_LAYOUT;
use podwarden_cgroup::root_as_file_name;

use crate::base::error::chain;

/// Where the BPF file system is mounted on every node that has one.
pub const BPF_FS: &str = "/sys/fs/bpf";

/// What is pinned, by its file's name.
pub const NAMES: [&str; 5] = ["accounts", "shared", "tracked", "ended", "retired"];

/// Whose maps.
#[derive(Debug, Clone)]
pub struct Place {
    /// The BPF file system.
    pub bpf_fs: PathBuf,
    /// The agent's cgroup root.
    pub cgroup_root: String,
    /// The hierarchy whose ids the maps hold; ids of two hierarchies may be the same.
    pub hierarchy: u32,
}

/// Why the accounts end with the agent.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// There is no file system that could keep them.
    #[error("{} is no BPF file system: mount -t bpf bpf {}", path.display(), path.display())]
    NotBpfFs {
        /// Where one was looked for.
        path: PathBuf,
    },
    /// A file operation failed.
    #[error("{operation} {}", path.display())]
    File {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Another user could change the maps.
    #[error("{} belongs to user {uid} with mode {mode:o}, not to the agent alone: remove it", path.display())]
    Foreign {
        path: PathBuf,
        /// Whose it is.
        uid: u32,
        /// Its permissions.
        mode: u32,
    },
    /// Something that the agent did not put there.
    #[error("{} is not a map ({found}) and is left alone: remove it", path.display())]
    NotAMap { path: PathBuf, found: String },
    /// An agent cannot continue with these.
    #[error("the maps below {} are of another kind ({why})", path.display())]
    Unlike {
        path: PathBuf,
        /// The first difference.
        why: String,
    },
    /// The kernel refused to pin, or to open what is pinned.
    #[error("pinning maps below {}", path.display())]
    Kernel {
        path: PathBuf,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// The kernel's numbers of a map. An agent continues with a map only where all of them are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// `enum bpf_map_type`.
    pub kind: u32,
    /// Bytes of a key.
    pub key: u32,
    /// Bytes of a value, on one CPU.
    pub value: u32,
    /// Entries at most.
    pub entries: u32,
    /// `BPF_F_*` of its creation.
    pub flags: u32,
}

impl Shape {
    fn of(info: &MapInfo) -> Result<Self, MapError> {
        Ok(Self {
            kind: info.map_type()? as u32,
            key: info.key_size(),
            value: info.value_size(),
            entries: info.max_entries(),
            flags: info.map_flags(),
        })
    }
}

/// A directory in which maps are pinned, or can be.
#[derive(Debug)]
pub struct Pins {
    dir: PathBuf,
}

impl Pins {
    /// Makes the directory and looks at what is in it. Unlinks the maps, with a warning, where some are missing or
    /// have another shape than `wanted`. After an error nothing is changed that was there.
    pub fn prepare(place: &Place, wanted: &[(&'static str, Shape)]) -> Result<Self, PinError> {
        if !is_bpf_fs(&place.bpf_fs) {
            return Err(PinError::NotBpfFs {
                path: place.bpf_fs.clone(),
            });
        }
        let of_root = of_root(&place.bpf_fs, &place.cgroup_root);
        let dir = of_root.join(layout(place.hierarchy));
        for part in [of_root.parent(), Some(&*of_root), Some(&*dir)] {
            part.map_or(Ok(()), own_directory)?;
        }
        let pins = Self { dir };
        if let Some(why) = pins.differs(wanted)? {
            tracing::warn!(
                path = %pins.dir.display(),
                "accounts begin anew: the maps that an agent before this one left are of another kind ({why})"
            );
            for name in NAMES {
                unlink(&pins.path(name))?;
            }
        }
        remove_other_layouts(&of_root, &pins.dir);
        Ok(pins)
    }

    /// What another agent works with, where this one can continue with it. Changes nothing. [`PinError::Unlike`] where
    /// some are missing or have another shape than `wanted`.
    pub fn existing(place: &Place, wanted: &[(&'static str, Shape)]) -> Result<Self, PinError> {
        let dir = of_root(&place.bpf_fs, &place.cgroup_root).join(layout(place.hierarchy));
        let pins = Self { dir };
        let unlike = |why| PinError::Unlike {
            path: pins.dir.clone(),
            why,
        };
        for (name, _) in wanted {
            if pins.open(name)?.is_none() {
                return Err(unlike(format!("{name} is missing")));
            }
        }
        match pins.differs(wanted)? {
            None => Ok(pins),
            Some(why) => Err(unlike(why)),
        }
    }

    /// Where a map is pinned.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The map that is pinned as `name`, if there is one.
    pub fn open(&self, name: &str) -> Result<Option<MapData>, PinError> {
        open_map(&self.path(name))
    }

    /// An error about the directory.
    pub fn refused(&self, source: impl std::error::Error + Send + Sync + 'static) -> PinError {
        PinError::Kernel {
            path: self.dir.clone(),
            source: Box::new(source),
        }
    }

    /// How the pinned maps differ from `wanted`; `None` where they do not, and where nothing is pinned.
    fn differs(&self, wanted: &[(&'static str, Shape)]) -> Result<Option<String>, PinError> {
        let mut found = Vec::with_capacity(wanted.len());
        for (name, _) in wanted {
            let shape = match self.open(name)? {
                Some(map) => {
                    let info = map.info().and_then(|info| Shape::of(&info));
                    Some(info.map_err(|e| self.refused(e))?)
                }
                None => None,
            };
            found.push(shape);
        }
        Ok(difference(wanted, &found))
    }
}

/// How maps of the shapes `found` differ from `wanted`; no map at all is no difference.
fn difference(wanted: &[(&'static str, Shape)], found: &[Option<Shape>]) -> Option<String> {
    if found.iter().all(Option::is_none) {
        return None;
    }
    wanted
        .iter()
        .zip(found)
        .find_map(|((name, wanted), found)| match found {
            None => Some(format!("{name} is missing")),
            Some(found) if found == wanted => None,
            Some(found) => Some(format!("{name} is {found:?}, this agent's {wanted:?}")),
        })
}

/// Whether a BPF file system is mounted at `path`.
pub fn is_bpf_fs(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC)
}

/// Where the maps of the agents of a cgroup root are, in directories of their layouts.
pub fn of_root(bpf_fs: &Path, cgroup_root: &str) -> PathBuf {
    bpf_fs.join("podwarden").join(escaped(cgroup_root))
}

/// A root's name as one file name, which none is empty. The kernel keeps names with dots to itself
/// (`bpf_lookup` in kernel/bpf/inode.c), so they are escaped as well.
fn escaped(root: &str) -> String {
    let relative = root_as_file_name(root).replace('.', "%2E");
    format!("%2F{relative}")
}

fn layout(hierarchy: u32) -> String {
    format!("v{PINNED_LAYOUT}-hierarchy{hierarchy}")
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PinError {
    let path = path.to_owned();
    move |source| PinError::File {
        operation,
        path,
        source,
    }
}

/// Makes a directory, or checks that no other user can change what is in it.
fn own_directory(path: &Path) -> Result<(), PinError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            return Err(failed("making the directory", path)(e));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(path).map_err(failed("looking at", path))?;
    let (uid, mode) = (found.uid(), found.mode() & 0o7777);
    if !found.is_dir() || uid != nix::unistd::geteuid().as_raw() || mode & 0o022 != 0 {
        return Err(PinError::Foreign {
            path: path.to_owned(),
            uid,
            mode,
        });
    }
    Ok(())
}

/// The map pinned at `path`; `None` where nothing is.
fn open_map(path: &Path) -> Result<Option<MapData>, PinError> {
    let not_a_map = |found: String| PinError::NotAMap {
        path: path.to_owned(),
        found,
    };
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed("looking at", path)(e)),
        Ok(found) if !found.is_file() => return Err(not_a_map("no file".to_owned())),
        Ok(_) => {}
    }
    let map = MapData::from_pin(path).map_err(|e| not_a_map(chain(&e)))?;
    // A pinned program opens the same way and has another link.
    let link = format!("/proc/self/fd/{}", map.fd().as_fd().as_raw_fd());
    let found = fs::read_link(link).map_err(failed("looking at", path))?;
    if found != Path::new("anon_inode:bpf-map") {
        return Err(not_a_map(found.display().to_string()));
    }
    Ok(Some(map))
}

/// Unlinks the map at `path`, if there is one.
fn unlink(path: &Path) -> Result<(), PinError> {
    if open_map(path)?.is_none() {
        return Ok(());
    }
    fs::remove_file(path).map_err(failed("unlinking", path))
}

/// The directories that agents of a cgroup root have pinned maps in.
pub fn left(bpf_fs: &Path, cgroup_root: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(of_root(bpf_fs, cgroup_root));
    let mut found: Vec<_> = (entries.into_iter().flatten().flatten())
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

/// Unlinks the maps in one of them, and removes it. An error where something is in it that no agent put there.
pub fn remove(dir: &Path) -> Result<(), PinError> {
    NAMES.iter().try_for_each(|name| unlink(&dir.join(name)))?;
    fs::remove_dir(dir).map_err(failed("removing", dir))
}

/// Removes the directories above them where nothing is left in those.
pub fn remove_empty(bpf_fs: &Path, cgroup_root: &str) {
    let of_root = of_root(bpf_fs, cgroup_root);
    for dir in of_root.ancestors().take(2) {
        // Another root's maps keep it.
        let _ = fs::remove_dir(dir);
    }
}

/// Removes maps of other layouts: no agent can continue with their accounts.
fn remove_other_layouts(of_root: &Path, ours: &Path) {
    let entries = fs::read_dir(of_root).into_iter().flatten().flatten();
    for path in entries
        .map(|entry| entry.path())
        .filter(|path| path != ours)
    {
        match remove(&path) {
            Ok(()) => tracing::warn!(
                path = %path.display(),
                "accounts begin anew: an agent of another version left these, which are removed"
            ),
            Err(error) => tracing::warn!(
                error = chain(&error),
                "not this agent's, and left alone: what is below the pins of its cgroup root"
            ),
        }
    }
}

#[cfg(test)]
mod tests;
