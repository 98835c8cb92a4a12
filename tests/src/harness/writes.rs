//! Which cgroup files are written, by inotify: a witness that depends on nothing that the agent says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};

use super::cgroup::Cgroup;

/// Writes to the files of some cgroups. A write that repeats the one before it may count as the same:
/// the kernel merges equal notices that are not read yet.
#[derive(Debug)]
pub(crate) struct Writes {
    inotify: Inotify,
    /// Watch to directory.
    watched: BTreeMap<WatchDescriptor, PathBuf>,
    seen: BTreeSet<PathBuf>,
}

impl Writes {
    /// Watches nothing yet.
    pub(crate) fn new() -> Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK);
        Ok(Self {
            inotify: inotify.context("inotify")?,
            watched: BTreeMap::new(),
            seen: BTreeSet::new(),
        })
    }

    /// Watches a cgroup in every hierarchy; one that is watched already stays so.
    pub(crate) fn watch(&mut self, cgroup: &Cgroup) -> Result<()> {
        for dir in cgroup.dirs() {
            let watch = self
                .inotify
                .add_watch(&dir, AddWatchFlags::IN_MODIFY)
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
        loop {
            let events = match self.inotify.read_events() {
                Ok(events) => events,
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => return Ok(()),
                Err(error) => return Err(error).context("read notices of writes"),
            };
            for event in events {
                self.take_in(&event)?;
            }
        }
    }

    fn take_in(&mut self, event: &InotifyEvent) -> Result<()> {
        ensure!(
            !event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW),
            "notices of writes were lost"
        );
        if event.mask.contains(AddWatchFlags::IN_IGNORED) {
            // The cgroup is gone.
            self.watched.remove(&event.wd);
            return Ok(());
        }
        let dir = self.watched.get(&event.wd);
        let name = event.name.as_deref().and_then(|name| name.to_str());
        if let (Some(dir), Some(name)) = (dir, name)
            && is_setting(name)
        {
            self.seen.insert(setting(dir, name));
        }
        Ok(())
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
