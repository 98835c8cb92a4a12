//! Watches a cgroup's files for writes.

use std::{
    ffi::CStr,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags},
    io::Errno,
};

use crate::{CgroupPath, Controller, Error, Result, Tree};

/// The controllers whose files hold settings.
const CONTROLLERS: [Controller; 4] = [
    Controller::Cpu,
    Controller::Memory,
    Controller::Pids,
    Controller::HugeTlb,
];

/// Most notices that one call of [`WriteWatch::read`] takes: a writer as fast as they are
/// read must not keep the reader for ever.
const AT_ONCE: usize = 4096;

/// What is watched; unique for as long as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId(i32);

/// What happened in a directory that is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// A file was written.
    Written,
    /// A directory was made.
    Made,
}

/// What a reading of notices left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Nothing.
    Drained,
    /// There is more: read again without waiting.
    More,
    /// The kernel dropped notices: look at everything. There may be more.
    Overflowed,
}

/// Sees writes to the files of many cgroups with one inotify(7) instance.
///
/// kernfs reports each write(2) to a cgroup's file as `IN_MODIFY`, also one of the value that is there,
/// and what the kernel itself announces (`cgroup.events`; `kernfs_notify`, `fs/kernfs/file.c`). That
/// a watched directory is removed is *not* reported (tried on 6.18, both versions), and the watch
/// stays: call [`WriteWatch::remove`] after the removal.
#[derive(Debug)]
pub struct WriteWatch(OwnedFd);

impl WriteWatch {
    /// Watches nothing yet. `EMFILE` at `/proc/sys/fs/inotify/max_user_instances`.
    pub fn new() -> Result<Self> {
        inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
            .map(Self)
            .map_err(|e| Error::os("watch", Path::new("/proc/sys/fs/inotify"), e))
    }

    /// Watches the files of a directory. Watching what is watched already gives the same id; a
    /// directory that was made anew gets another. `ENOSPC` at `/proc/sys/fs/inotify/max_user_watches`.
    pub fn directory(&self, path: &Path) -> Result<WatchId> {
        self.add(path, WatchFlags::MODIFY | WatchFlags::ONLYDIR)
    }

    /// Watches the files of a directory, and the directories that are made in it. The kernel reports a directory when
    /// mkdir(2) is done: all its files can be opened then (`vfs_mkdir`, `fs/namei.c`).
    pub fn directory_and_children(&self, path: &Path) -> Result<WatchId> {
        let flags = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::ONLYDIR;
        self.add(path, flags)
    }

    /// Watches one file and holds it open, so that the kernel's notices continue when no other process has
    /// it open.
    pub fn file(&self, path: &Path) -> Result<WatchId> {
        self.add(path, WatchFlags::MODIFY)
    }

    fn add(&self, path: &Path, flags: WatchFlags) -> Result<WatchId> {
        inotify::add_watch(&self.0, path, flags)
            .map(WatchId)
            .map_err(|e| Error::os("watch", path, e))
    }

    /// Ends a watch. Notices of it may still be read.
    pub fn remove(&self, id: WatchId) {
        // It may have gone by itself.
        let _ = inotify::remove_watch(&self.0, id.0);
    }

    /// Hands every notice of a written file to `each`: what is watched, and the file's name, which is empty where the
    /// file itself is watched. Does not wait; poll for readability.
    pub fn read(&self, mut each: impl FnMut(WatchId, &str)) -> Result<Reading> {
        self.read_all(|id, notice, name| {
            if notice == Notice::Written {
                each(id, name);
            }
        })
    }

    /// As [`WriteWatch::read`], with the directories that were made.
    pub fn read_all(&self, mut each: impl FnMut(WatchId, Notice, &str)) -> Result<Reading> {
        let mut buffer = [MaybeUninit::uninit(); 8192];
        let mut reader = inotify::Reader::new(&self.0, &mut buffer);
        let mut overflowed = false;
        for _ in 0..AT_ONCE {
            match reader.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => {
                    overflowed = true;
                }
                Ok(event) => {
                    let name = event.file_name().map_or(Ok(""), CStr::to_str);
                    if let Some(notice) = notice(event.events()) {
                        // No cgroup file has a name that is not text.
                        each(WatchId(event.wd()), notice, name.unwrap_or_default());
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if overflowed => return Ok(Reading::Overflowed),
                Err(Errno::AGAIN) => return Ok(Reading::Drained),
                Err(error) => {
                    return Err(Error::os("read", Path::new("the inotify instance"), error));
                }
            }
        }
        Ok(if overflowed {
            Reading::Overflowed
        } else {
            Reading::More
        })
    }
}

/// `None` for what is neither.
fn notice(flags: ReadFlags) -> Option<Notice> {
    if flags.contains(ReadFlags::MODIFY) {
        Some(Notice::Written)
    } else if flags.contains(ReadFlags::CREATE | ReadFlags::ISDIR) {
        Some(Notice::Made)
    } else {
        None
    }
}

impl AsFd for WriteWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for WriteWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Tree {
    /// The directories that hold a cgroup's settings, one for each hierarchy that has any; they need
    /// not exist.
    pub fn setting_directories(&self, cgroup: &CgroupPath) -> Result<Vec<PathBuf>> {
        let mut directories = Vec::with_capacity(CONTROLLERS.len());
        for controller in CONTROLLERS {
            match self.path(controller, cgroup) {
                Ok(path) if !directories.contains(&path) => directories.push(path),
                Ok(_) | Err(Error::NoController { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(directories)
    }
}
