//! Removing cgroups, bottom-up.

use std::{
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::{fs::rmdir, io::Errno};

use super::{Created, Tree, list::sub_directories};
use crate::{CgroupPath, Error, Result};

/// How long a cgroup may stay busy. A killed process leaves its cgroup only after its memory is
/// freed, about 100 ms per GiB.
const BUSY_LIMIT: Duration = Duration::from_secs(5);
/// The same for a cgroup that was seen without processes: the last one may still be on its way out.
/// Short, because the pass over the whole tree waits as well.
const EMPTY_LIMIT: Duration = Duration::from_millis(50);
/// First and longest pause between two tries.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

impl Tree {
    /// Removes a cgroup and all below it from every hierarchy, children first; what does not exist
    /// counts as removed. While processes are still in it, it is tried again for at most 5 s. `EBUSY` when processes
    /// stay in it; [`Error::InvalidName`] for the root itself. Every hierarchy is tried; the first error is returned.
    pub fn remove(&self, cgroup: &CgroupPath) -> Result<()> {
        if cgroup.is_root() {
            return Err(Error::InvalidName {
                name: cgroup.to_string(),
                reason: "the root is not removed",
            });
        }
        let deadline = Instant::now() + BUSY_LIMIT;
        let mut outcome = Ok(());
        for hierarchy in &self.used {
            let path = self.below(&hierarchy.mount, cgroup)?;
            outcome = outcome.and(retry_busy(deadline, || remove_below(&path)));
        }
        outcome
    }

    /// Removes all cgroups below one, whichever program made them, from every hierarchy, deepest first; not the cgroup
    /// itself. What is busy is tried again for at most 50 ms. `EBUSY` when there are processes in one of them, or something is
    /// mounted on it. Every child is tried; the first error is returned.
    pub fn remove_children(&self, cgroup: &CgroupPath) -> Result<()> {
        let deadline = Instant::now() + EMPTY_LIMIT;
        let mut outcome = Ok(());
        for hierarchy in &self.used {
            let path = self.below(&hierarchy.mount, cgroup)?;
            for (name, _) in sub_directories(&path)? {
                let child = path.join(name);
                outcome = outcome.and(retry_busy(deadline, || remove_below(&child)));
            }
        }
        outcome
    }

    /// Removes directories that [`Tree::create`] made, the last one first, and nothing below them
    /// that others made. What is busy is tried again for at most 50 ms. `EBUSY` when there are processes or cgroups in
    /// one of them, or something is mounted on it; all others are removed.
    pub fn remove_created(&self, created: &Created) -> Result<()> {
        let deadline = Instant::now() + EMPTY_LIMIT;
        let mut outcome = Ok(());
        for directory in created.directories.iter().rev() {
            outcome = outcome.and(retry_busy(deadline, || remove_one(directory)));
        }
        outcome
    }
}

fn remove_below(path: &Path) -> Result<()> {
    for (name, _) in sub_directories(path)? {
        remove_below(&path.join(name))?;
    }
    remove_one(path)
}

fn remove_one(path: &Path) -> Result<()> {
    match rmdir(path) {
        Ok(()) | Err(Errno::NOENT | Errno::NODEV) => Ok(()),
        Err(e) => Err(Error::os("remove", path, e)),
    }
}

fn retry_busy(deadline: Instant, mut attempt: impl FnMut() -> Result<()>) -> Result<()> {
    let (mut pause, longest) = PAUSE;
    loop {
        match attempt() {
            Err(error) if error.errno() == Some(Errno::BUSY) && Instant::now() < deadline => {
                sleep(pause);
                pause = (pause * 2).min(longest);
            }
            outcome => return outcome,
        }
    }
}
