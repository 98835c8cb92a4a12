//! Walking the identity hierarchy, or all of them.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::DirEntryExt,
    path::{Path, PathBuf},
};

use rustix::io::Errno;

use super::{Tree, directory_id};
use crate::{CgroupPath, Error, Result};

/// One cgroup of a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name below the root.
    pub path: CgroupPath,
    /// Its id in the identity hierarchy.
    pub id: u64,
    /// 0 for the cgroup the walk began at, 1 for its children, and so on.
    pub depth: usize,
}

impl Tree {
    /// A cgroup and all below it in the identity hierarchy: parents before children, siblings by
    /// name. What vanishes during the walk is left out, as is a cgroup whose name is not UTF-8.
    pub fn list(&self, cgroup: &CgroupPath) -> Result<Vec<Entry>> {
        walk(cgroup, self.identity_path(cgroup)?)
    }

    /// The names of a cgroup and of all below it in any hierarchy that is used, parents before children: who
    /// is killed while it makes or removes a cgroup leaves it in some of them. What does not exist has no name.
    pub fn names_anywhere(&self, cgroup: &CgroupPath) -> Result<BTreeSet<CgroupPath>> {
        let mut found = BTreeSet::new();
        for hierarchy in &self.used {
            match walk(cgroup, self.below(&hierarchy.mount, cgroup)?) {
                Ok(entries) => found.extend(entries.into_iter().map(|entry| entry.path)),
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}

/// The cgroup whose directory is `path`, and all below it, in the order of [`Tree::list`].
fn walk(cgroup: &CgroupPath, path: PathBuf) -> Result<Vec<Entry>> {
    let start = Entry {
        path: cgroup.clone(),
        id: directory_id(&path)?,
        depth: 0,
    };
    let mut found = Vec::new();
    let mut pending = vec![(start, path)];
    while let Some((entry, path)) = pending.pop() {
        // Reversed, because the last one pushed is visited next.
        pending.extend(children(&entry, &path)?.into_iter().rev());
        found.push(entry);
    }
    Ok(found)
}

fn children(parent: &Entry, path: &Path) -> Result<Vec<(Entry, PathBuf)>> {
    let mut children: Vec<_> = sub_directories(path)?
        .into_iter()
        .map(|(name, id)| {
            let entry = Entry {
                path: parent.path.child(&name),
                id,
                depth: parent.depth + 1,
            };
            (entry, path.join(name))
        })
        .collect();
    children.sort_by(|(a, _), (b, _)| a.path.cmp(&b.path));
    Ok(children)
}

/// Name and inode of every directory in `path`; nothing when `path` is gone.
pub(crate) fn sub_directories(path: &Path) -> Result<Vec<(String, u64)>> {
    let failed = |e: std::io::Error| {
        let errno = Errno::from_io_error(&e).unwrap_or(Errno::IO);
        Error::os("list", path, errno)
    };
    let entries = match fs::read_dir(path).map_err(failed) {
        Ok(entries) => entries,
        Err(error) if error.is_gone() => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = match entry.map_err(failed) {
            Ok(entry) => entry,
            Err(error) if error.is_gone() => break,
            Err(error) => return Err(error),
        };
        // The type is in the directory entry: no further system call.
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            let id = entry.ino();
            found.extend(entry.file_name().into_string().ok().map(|name| (name, id)));
        }
    }
    Ok(found)
}
