//! One agent for each cgroup root, and one more that waits to take over.
//!
//! | file | its lock is held by |
//! |---|---|
//! | `podwarden-<root>.lock` | the agent at work |
//! | `podwarden-<root>.next` | the agent that waits for the first lock |

use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{
    fs::{CWD, FlockOperation, Mode, OFlags, flock, fstat, openat, stat, unlink},
    io::{Errno, pread, pwrite, retry_on_intr},
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
    next: PathBuf,
    fd: OwnedFd,
}

/// The agent that held a root before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Predecessor {
    /// Its process id, in its own PID namespace.
    pub pid: Option<u32>,
    /// When it evicted no more, `CLOCK_MONOTONIC` nanoseconds; `None` where it was killed.
    pub ended_nanos: Option<u64>,
}

/// How far the agent is that has a root, or waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// No agent has the root or waits for it.
    Absent,
    /// One waits, is starting, or is about to end.
    Underway,
    /// One has the root, and all that it keeps in force is in force.
    Settled,
}

/// The second word of an agent that has settled.
const SETTLED: &str = "settled";

impl AgentLock {
    /// Locks a file named after `root` in `directory`, which must exist and be the same for every
    /// agent on the node. [`Error::Locked`] with the process that holds it.
    pub fn acquire(directory: &Path, root: &str) -> Result<Self> {
        let (path, next) = lock_files(directory, root)?;
        let fd = lock_file(&path, FlockOperation::NonBlockingLockExclusive, |_| {})?;
        Self::held(path, &next, fd)
    }

    /// As [`AgentLock::acquire`], and waits while another agent holds the root: behind the one that waits already,
    /// then as the only one, of which `ready` is told, with the agent that holds the root. Blocks its thread.
    pub fn wait(
        directory: &Path,
        root: &str,
        ready: impl FnOnce(Predecessor),
    ) -> Result<(Self, Option<Predecessor>)> {
        match Self::acquire(directory, root) {
            Err(Error::Locked { .. }) => {}
            free => return free.map(|lock| (lock, None)),
        }
        let (path, next) = lock_files(directory, root)?;
        let first = lock_file(&next, FlockOperation::LockExclusive, |_| {})?;
        write_note(&first, &next, Predecessor::of_this_process())?;
        // Opened before anyone is told: the agent at work may end, and remove its file, at any moment after.
        let held = open(&path).ok();
        ready(held.as_ref().map(note).unwrap_or_default());
        let mut before = None;
        let keep = |left| before = Some(left);
        let fd = lock_file(&path, FlockOperation::LockExclusive, keep)?;
        let before = before.or_else(|| held.map(note)).unwrap_or_default();
        // Removed while its lock is held, as the other file is.
        let _ = unlink(&*next);
        drop(first);
        Ok((Self::held(path, &next, fd)?, Some(before)))
    }

    fn held(path: Arc<Path>, next: &Path, fd: OwnedFd) -> Result<Self> {
        write_note(&fd, &path, Predecessor::of_this_process())?;
        let next = next.to_path_buf();
        Ok(Self { path, next, fd })
    }

    /// True while an agent waits for this root, with all done that it can do before.
    pub fn has_successor(&self) -> bool {
        is_locked(&self.next).unwrap_or(false)
    }

    /// Tells the agent that waits when this one evicted no more, `CLOCK_MONOTONIC` nanoseconds.
    pub fn note_end(&self, nanos: u64) {
        let note = Predecessor {
            ended_nanos: Some(nanos),
            ..Predecessor::of_this_process()
        };
        // The next agent then counts from the moment that it had the lock.
        let _ = write_note(&self.fd, &self.path, note);
    }

    /// Tells whether all that this agent keeps in force is in force; not so at first.
    pub fn note_settled(&self, settled: bool) {
        let this = Predecessor::of_this_process();
        // Without it others go on waiting.
        let _ = match settled {
            true => write_words(&self.fd, &self.path, &format!("{this} {SETTLED}")),
            false => write_note(&self.fd, &self.path, this),
        };
    }

    /// How far the agent of a root is.
    pub fn progress(directory: &Path, root: &str) -> Result<Progress> {
        let (path, next) = lock_files(directory, root)?;
        // The one that waits first: it keeps that lock until it has the other.
        let waits = is_locked(&next)?;
        Ok(match is_locked(&path)? {
            true if is_settled(&path) => Progress::Settled,
            false if !waits => Progress::Absent,
            true | false => Progress::Underway,
        })
    }

    /// For a process whose [`AgentLock::wait`] goes on in another thread, and which is about to end: removes the file
    /// that says that it waits.
    pub fn stop_waiting(directory: &Path, root: &str) {
        if let Ok((_, next)) = lock_files(directory, root)
            && open(&next).is_ok_and(|file| note(file) == Predecessor::of_this_process())
        {
            let _ = unlink(&*next);
        }
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

/// The process id, then the end.
impl fmt::Display for Predecessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(pid) = self.pid else { return Ok(()) };
        write!(f, "{pid}")?;
        self.ended_nanos
            .map_or(Ok(()), |ended| write!(f, " {ended}"))
    }
}

impl Predecessor {
    fn of_this_process() -> Self {
        Self {
            pid: u32::try_from(getpid().as_raw_nonzero().get()).ok(),
            ended_nanos: None,
        }
    }
}

/// Held by the process that restores the limits in the end: an agent, or the guard of one that
/// was killed. The kernel releases it when the process dies in any way; nothing is left in a file system.
#[derive(Debug)]
pub struct TreeLock(OwnedFd);

impl TreeLock {
    /// Locks the root of a tree in the memory controller's hierarchy; `None` while another process has it.
    /// [`Error::NotFound`] while there is no such cgroup.
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

fn lock_files(directory: &Path, root: &str) -> Result<(Arc<Path>, Arc<Path>)> {
    let name = name::root_as_file_name(&name::root(root)?);
    let file = |kind| directory.join(format!("podwarden-{name}.{kind}")).into();
    Ok((file("lock"), file("next")))
}

/// Locks the file at `path`, which is made where there is none; `left` is told what the process before noted, also
/// where it has removed the file.
fn lock_file(
    path: &Arc<Path>,
    operation: FlockOperation,
    mut left: impl FnMut(Predecessor),
) -> Result<OwnedFd> {
    let failed = |e| Error::os("lock", Arc::clone(path), e);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for _ in 0..TRIES {
        let fd = openat(CWD, &**path, flags, Mode::from_raw_mode(0o644)).map_err(failed)?;
        match retry_on_intr(|| flock(&fd, operation)) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let holder = note(fd).pid;
                return Err(Error::Locked {
                    path: Arc::clone(path),
                    holder,
                });
            }
            Err(error) => return Err(failed(error)),
        }
        let found = note(&fd);
        if found != Predecessor::default() {
            left(found);
        }
        if is_at(&fd, path) {
            return Ok(fd);
        }
    }
    Err(failed(Errno::AGAIN))
}

/// True while another process has the lock of the file at `path`.
fn is_locked(path: &Path) -> Result<bool> {
    let file = match open(path) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(false),
        Err(error) => return Err(Error::os("open", path, error)),
    };
    match retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockShared)) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(Error::os("lock", path, error)),
    }
}

fn open(path: &Path) -> rustix::io::Result<OwnedFd> {
    openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// True when the open file is the one that `path` names now, not one that was removed.
pub(crate) fn is_at(fd: impl AsFd, path: &Path) -> bool {
    match (fstat(fd), stat(path)) {
        (Ok(open), Ok(named)) => (open.st_dev, open.st_ino) == (named.st_dev, named.st_ino),
        _ => false,
    }
}

/// Writes what [`note`] reads.
fn write_note(fd: impl AsFd, path: &Path, note: Predecessor) -> Result<()> {
    write_words(fd, path, &note.to_string())
}

fn write_words(fd: impl AsFd, path: &Path, words: &str) -> Result<()> {
    let failed = |e| Error::os("write", path, e);
    rustix::fs::ftruncate(&fd, 0).map_err(failed)?;
    let written = pwrite(&fd, words.as_bytes(), 0);
    written.map(drop).map_err(failed)
}

fn words(fd: impl AsFd, buffer: &mut [u8; 64]) -> impl Iterator<Item = &[u8]> {
    let read = pread(fd, &mut buffer[..], 0).unwrap_or(0);
    buffer[..read].split(|byte| *byte == b' ')
}

fn note(fd: impl AsFd) -> Predecessor {
    let mut buffer = [0_u8; 64];
    let mut words = words(fd, &mut buffer).map(io::parse_u64);
    let mut word = || words.next().flatten();
    Predecessor {
        pid: word().and_then(|pid| u32::try_from(pid).ok()),
        ended_nanos: word(),
    }
}

fn is_settled(path: &Path) -> bool {
    open(path).is_ok_and(|file| {
        let mut buffer = [0_u8; 64];
        words(&file, &mut buffer).nth(1) == Some(SETTLED.as_bytes())
    })
}
