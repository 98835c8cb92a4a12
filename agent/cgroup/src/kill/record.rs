//! Which cgroups a kill has frozen at this moment, in a file that outlives the process (cgroup v1).
//!
//! The freezer does not say who froze a cgroup: a runtime's pause and the freeze of a kill look the same. So the
//! kill notes the cgroup's id before it freezes, and crosses it out after it has thawed. Ids are never
//! used twice while the machine runs (`kernfs_new_node`, `fs/kernfs/dir.c`), and the file belongs below `/run`,
//! which a reboot empties. A cgroup is thawed for a dead process only where its id is in the record.

use std::{
    os::{fd::OwnedFd, unix::fs::DirEntryExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::{
    fs::{CWD, Mode, OFlags, openat, unlink},
    io::{Errno, pread, pwrite, retry_on_intr},
};

use super::freezer;
use crate::{CgroupPath, Controller, Error, Result, Tree, io, lock, name};

/// Freezes at a time: two threads kill, and each freezes one cgroup.
const SLOTS: usize = 16;
const SLOT: usize = size_of::<u64>();

/// The record of this process's kills. Dropping it removes the file.
#[derive(Debug)]
pub struct FreezeRecord {
    file: OwnedFd,
    path: Arc<Path>,
    slots: [AtomicU64; SLOTS],
}

/// The record's file for a cgroup root.
pub fn freeze_record_file(directory: &Path, root: &str) -> Result<PathBuf> {
    let name = name::root_as_file_name(&name::root(root)?);
    Ok(directory.join(format!("podwarden-{name}.frozen")))
}

impl FreezeRecord {
    /// Makes an empty record in the place of an older one, which [`LeftFrozen`] has dealt with.
    pub fn create(path: &Path) -> Result<Self> {
        let failed = |operation| move |e| Error::os(operation, path, e);
        match unlink(path) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(failed("replace")(error)),
        }
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(CWD, path, flags, Mode::RUSR | Mode::WUSR).map_err(failed("create"))?;
        // Its whole length now, so that a note later needs no room in the file system.
        io::write_fd(&file, &[0; SLOTS * SLOT]).map_err(failed("write"))?;
        Ok(Self {
            file,
            path: path.into(),
            slots: [const { AtomicU64::new(0) }; SLOTS],
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file, which another agent may make anew from then on. What is noted afterwards is lost.
    pub fn remove(&self) {
        // One that was removed before may be another agent's by now. What stays behind has no cgroup in it.
        if lock::is_at(&self.file, &self.path) {
            let _ = unlink(&*self.path);
        }
    }

    /// Notes a cgroup until the answer is dropped; `None` when the record is full. Allocates nothing.
    pub(super) fn note(&self, id: u64) -> std::result::Result<Option<Noted<'_>>, Errno> {
        let free = |slot: &AtomicU64| {
            slot.compare_exchange(0, id, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        };
        let Some(index) = self.slots.iter().position(free) else {
            return Ok(None);
        };
        let noted = Noted {
            record: self,
            index,
        };
        self.write(index, id)?;
        Ok(Some(noted))
    }

    fn write(&self, index: usize, id: u64) -> std::result::Result<(), Errno> {
        let bytes = id.to_ne_bytes();
        match retry_on_intr(|| pwrite(&self.file, &bytes, (index * SLOT) as u64))? {
            SLOT => Ok(()),
            _ => Err(Errno::IO),
        }
    }
}

impl Drop for FreezeRecord {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A cgroup in the record; crossed out when dropped.
#[derive(Debug)]
pub(super) struct Noted<'a> {
    record: &'a FreezeRecord,
    index: usize,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        // A note that stays means a look at a cgroup that is not frozen.
        let _ = self.record.write(self.index, 0);
        self.record.slots[self.index].store(0, Ordering::Release);
    }
}

/// The record of another process, to be used once that has ended.
#[derive(Debug)]
pub struct LeftFrozen {
    file: OwnedFd,
    path: Arc<Path>,
}

impl LeftFrozen {
    /// Opens it; `None` where there is none.
    pub fn open(path: &Path) -> Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match openat(CWD, path, flags, Mode::empty()) {
            Ok(file) => Ok(Some(Self {
                file,
                path: path.into(),
            })),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(Error::os("open", path, error)),
        }
    }

    /// Thaws what that process had frozen and not thawed; the cgroups that it thawed. After an error the others are
    /// thawed, too.
    pub fn thaw(&self, tree: &Tree) -> Result<Vec<PathBuf>> {
        let mut thawed = Vec::new();
        let ids = self.ids()?;
        let top = match tree.path(Controller::Freezer, &CgroupPath::ROOT) {
            _ if ids.is_empty() => return Ok(thawed),
            Err(Error::NoController { .. }) => return Ok(thawed),
            top => top?,
        };
        let mut result = Ok(());
        find(
            &top,
            &ids,
            &mut |directory| match freezer::thaw(directory) {
                Ok(true) => thawed.push(directory.to_owned()),
                Ok(false) => {}
                Err(error) if error.is_gone() => {}
                Err(error) => result = Err(error),
            },
        );
        result.map(|()| thawed)
    }

    fn ids(&self) -> Result<Vec<u64>> {
        let mut bytes = [0; SLOTS * SLOT];
        let n = retry_on_intr(|| pread(&self.file, &mut bytes, 0))
            .map_err(|e| Error::os("read", Arc::clone(&self.path), e))?;
        let (slots, _) = bytes[..n].as_chunks::<SLOT>();
        let ids = slots.iter().map(|slot| u64::from_ne_bytes(*slot));
        Ok(ids.filter(|id| *id != 0).collect())
    }
}

/// Calls `visit` with every cgroup below `directory` that has one of these ids.
fn find(directory: &Path, ids: &[u64], visit: &mut dyn FnMut(&Path)) {
    // One that vanishes meanwhile holds nothing frozen.
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let path = entry.path();
            if ids.contains(&entry.ino()) {
                visit(&path);
            }
            find(&path, ids, visit);
        }
    }
}
