//! Waiting for directories to appear.

use std::{
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::Arc,
};

use rustix::{
    fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags},
    io::Errno,
};

use crate::{Error, Result};

/// Sees directories that are made in one directory: how podwarden learns that a kubelet made
/// kubepods. Look for what is wanted *after* making the watch, or its creation may be missed.
#[derive(Debug)]
pub struct DirectoryWatch {
    fd: OwnedFd,
    path: Arc<Path>,
}

impl DirectoryWatch {
    /// Watches `path`. `EMFILE` or `ENOSPC` at the limits of inotify(7).
    pub fn new(path: &Path) -> Result<Self> {
        let failed = |e| Error::os("watch", path, e);
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(failed)?;
        let flags = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        inotify::add_watch(&fd, path, flags).map_err(failed)?;
        Ok(Self {
            fd,
            path: path.into(),
        })
    }

    /// The names of the directories made since the last call; does not wait. Poll the file
    /// descriptor for readability to wait. `EOVERFLOW` when the kernel dropped notices: look for yourself then.
    pub fn created(&mut self) -> Result<Vec<String>> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.fd, &mut buffer);
        let mut names = Vec::new();
        let failed = |e| Error::os("watch", Arc::clone(&self.path), e);
        loop {
            match reader.next() {
                Ok(event) if event.events().contains(ReadFlags::IGNORED) => {
                    return Err(failed(Errno::NODEV));
                }
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => {
                    return Err(failed(Errno::OVERFLOW));
                }
                Ok(event) if event.events().contains(ReadFlags::ISDIR) => {
                    let name = event.file_name().and_then(|name| name.to_str().ok());
                    names.extend(name.map(str::to_owned));
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(names),
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

impl AsFd for DirectoryWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
