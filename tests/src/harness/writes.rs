//! Which cgroup files are written, by inotify: a witness that depends on nothing that the agent says.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use super::cgroup::Cgroup;

/// Writes to the files of some cgroups. A write that repeats the one before it may count as the same:
/// the kernel merges equal notices that are not read yet.
#[derive(Debug)]
pub(crate) struct Writes {
    inotify: OwnedFd,
    /// Watch to directory.
    watched: BTreeMap<i32, PathBuf>,
    seen: BTreeSet<PathBuf>,
}

impl Writes {
    /// Watches nothing yet.
    pub(crate) fn new() -> Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        Ok(Self {
            inotify: inotify.context("inotify")?,
            watched: BTreeMap::new(),
            seen: BTreeSet::new(),
        })
    }

    /// Watches a cgroup in every hierarchy; one that is watched already stays so.
    pub(crate) fn watch(&mut self, cgroup: &Cgroup) -> Result<()> {
        for dir in cgroup.dirs() {
            let watch = inotify::add_watch(&self.inotify, &dir, WatchFlags::MODIFY)
                .with_context(|| format!("watch {}", dir.display()))?;
            self.watched.insert(watch, dir);
        }
        Ok(())
    }

    /// The files that were written since the last call.
    pub(crate) fn take(&mut self) -> Result<BTreeSet<PathBuf>> {
        self.drain()?;
        Ok(std::mem::take(&mut self.seen))
    }

    fn drain(&mut self) -> Result<()> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error).context("read notices of writes"),
            };
            ensure!(
                !event.events().contains(ReadFlags::QUEUE_OVERFLOW),
                "notices of writes were lost"
            );
            if event.events().contains(ReadFlags::IGNORED) {
                // The cgroup is gone.
                self.watched.remove(&event.wd());
                continue;
            }
            let dir = self.watched.get(&event.wd());
            let name = event.file_name().and_then(|name| name.to_str().ok());
            if let (Some(dir), Some(name)) = (dir, name)
                && is_setting(name)
            {
                self.seen.insert(setting(dir, name));
            }
        }
    }
}

/// The kernel itself notifies of changes to these.
fn is_setting(name: &str) -> bool {
    !name.starts_with("cgroup.") && !name.contains("events") && name != "tasks"
}

/// Quota and period of v1 are one setting.
fn setting(dir: &Path, name: &str) -> PathBuf {
    dir.join(match name {
        "cpu.cfs_period_us" => "cpu.cfs_quota_us",
        name => name,
    })
}
