//! One agent for each cgroup root.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{
    fs::{CWD, FlockOperation, Mode, OFlags, flock, fstat, openat, stat, unlink},
    io::{Errno, pread, retry_on_intr},
    process::getpid,
};

use crate::{CgroupPath, Controller, Error, Result, Tree, io, name};

/// Times that the file may vanish between opening and locking it, because its holder just left.
const TRIES: u32 = 100;

/// Holds a cgroup root for this process until dropped; the kernel releases it when the process
/// dies in any way.
#[derive(Debug)]
pub struct AgentLock {
    path: Arc<Path>,
    _fd: OwnedFd,
}

impl AgentLock {
    /// Locks a file named after `root` in `directory`, which must exist and be the same for every
    /// agent on the node.
    ///
    /// # Errors
    /// [`Error::Locked`] with the process that holds it; [`Error::InvalidName`]; what the kernel
    /// refuses.
    pub fn acquire(directory: &Path, root: &str) -> Result<Self> {
        let path: Arc<Path> = lock_file(directory, root)?.into();
        let failed = |e| Error::os("lock", Arc::clone(&path), e);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..TRIES {
            let fd = openat(CWD, &*path, flags, Mode::from_raw_mode(0o644)).map_err(failed)?;
            match retry_on_intr(|| flock(&fd, FlockOperation::NonBlockingLockExclusive)) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    let holder = holder(fd);
                    return Err(Error::Locked { path, holder });
                }
                Err(error) => return Err(failed(error)),
            }
            if is_at(&fd, &path) {
                rustix::fs::ftruncate(&fd, 0).map_err(failed)?;
                let pid = getpid().as_raw_nonzero().to_string();
                io::write_fd(&fd, pid.as_bytes()).map_err(failed)?;
                return Ok(Self { path, _fd: fd });
            }
        }
        Err(failed(Errno::AGAIN))
    }

    /// The lock file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for AgentLock {
    fn drop(&mut self) {
        // Removed while the lock is still held; a process that has it open finds out by `is_at`.
        let _ = unlink(&*self.path);
    }
}

/// Held by the process that restores the limits in the end: an agent, or the guard of one that
/// was killed. The kernel releases it when the process dies in any way; nothing is left in a file system.
#[derive(Debug)]
pub struct TreeLock(OwnedFd);

impl TreeLock {
    /// Locks the root of a tree in the memory controller's hierarchy; `None` while another process has it.
    ///
    /// # Errors
    /// [`Error::NotFound`] while there is no such cgroup; [`Error::NoController`]; what the kernel
    /// refuses.
    pub fn try_acquire(tree: &Tree) -> Result<Option<Self>> {
        let path = tree.path(Controller::Memory, &CgroupPath::ROOT)?;
        let directory = io::open_dir(&path)?;
        match retry_on_intr(|| flock(&directory, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => Ok(Some(Self(directory))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(Error::os("lock", path, error)),
        }
    }
}

impl AsFd for TreeLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn lock_file(directory: &Path, root: &str) -> Result<PathBuf> {
    let name = name::root_as_file_name(&name::root(root)?);
    Ok(directory.join(format!("podwarden-{name}.lock")))
}

/// True when the open file is the one that `path` names now, not one that was removed.
fn is_at(fd: impl AsFd, path: &Path) -> bool {
    match (fstat(fd), stat(path)) {
        (Ok(open), Ok(named)) => (open.st_dev, open.st_ino) == (named.st_dev, named.st_ino),
        _ => false,
    }
}

fn holder(fd: impl AsFd) -> Option<u32> {
    let mut buffer = [0_u8; 16];
    let n = pread(fd, &mut buffer, 0).ok()?;
    io::parse_u64(&buffer[..n]).and_then(|pid| u32::try_from(pid).ok())
}
