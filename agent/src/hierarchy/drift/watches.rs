//! Which cgroup a notice is about.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use podwarden_cgroup::{
    CgroupLayout, CgroupPath, Errno, Reading, Tree, WatchId, WriteWatch, is_setting,
};
use podwarden_policy::name::CgroupName;
use tokio::io::{Interest, unix::AsyncFd};

/// Why writes are not noticed at once.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// A limit of the kernel's.
    #[error(
        "foreign writes to some cgroups are found by the timer alone: the limit on inotify watches is \
         reached; raise {sysctl}"
    )]
    Limit { sysctl: &'static str },
    /// Anything else.
    #[error("foreign writes to some cgroups are found by the timer alone")]
    Watch(#[source] podwarden_cgroup::Error),
    /// The runtime refuses the file descriptor.
    #[error("foreign writes are found by the timer alone: notices cannot be waited for")]
    Wait(#[source] std::io::Error),
}

impl WatchError {
    fn of(error: podwarden_cgroup::Error) -> Self {
        match error.errno() {
            Some(Errno::NOSPC) => Self::Limit {
                sysctl: "fs.inotify.max_user_watches",
            },
            Some(Errno::MFILE) => Self::Limit {
                sysctl: "fs.inotify.max_user_instances",
            },
            _ => Self::Watch(error),
        }
    }
}

/// What a notice is about.
#[derive(Debug, Clone)]
pub(super) enum Subject {
    /// A cgroup's settings.
    Settings(Arc<CgroupName>),
    /// The processes of a container.
    Container(Arc<CgroupPath>),
}

/// One inotify instance for all cgroups.
#[derive(Debug)]
pub(super) struct Watches {
    notices: Option<AsyncFd<WriteWatch>>,
    subjects: HashMap<WatchId, Subject>,
    cgroups: BTreeMap<Arc<CgroupName>, BTreeSet<WatchId>>,
    containers: HashMap<Arc<CgroupPath>, BTreeSet<WatchId>>,
    /// The last reading left some behind.
    more: AtomicBool,
}

impl Watches {
    /// Needs a runtime.
    pub(super) fn new() -> Result<Self, WatchError> {
        let watch = WriteWatch::new().map_err(WatchError::of)?;
        // SAFETY: the watch owns its descriptor, which stays the same.
        let notices = unsafe { AsyncFd::register_with_interest(watch, Interest::READABLE) };
        let notices = notices.map_err(|error| WatchError::Wait(error.into()))?;
        Ok(Self {
            notices: Some(notices),
            ..Self::none()
        })
    }

    /// No watches at all.
    pub(super) fn none() -> Self {
        Self {
            notices: None,
            subjects: HashMap::new(),
            cgroups: BTreeMap::new(),
            containers: HashMap::new(),
            more: AtomicBool::new(false),
        }
    }

    /// How many cgroups are watched.
    pub(super) fn cgroups(&self) -> usize {
        self.cgroups.len()
    }

    /// Completes when there are notices.
    pub(super) async fn readable(&self) {
        let Some(notices) = &self.notices else {
            return std::future::pending().await;
        };
        if self.more.load(Ordering::Relaxed) {
            return;
        }
        match notices.readable().await {
            Ok(mut guard) => guard.clear_ready(),
            Err(error) => {
                tracing::debug!(%error, "notices cannot be waited for any more");
                std::future::pending::<()>().await;
            }
        }
    }

    /// Notices processes that enter a container, by who moves them there or, on v2, by the kernel's
    /// word that the container is not empty any more.
    pub(super) fn watch_container(
        &mut self,
        tree: &Tree,
        path: &CgroupPath,
    ) -> Result<(), WatchError> {
        self.unwatch_container(path);
        let Some(notices) = &self.notices else {
            return Ok(());
        };
        let watch = notices.get_ref();
        let directory = tree.identity_path(path).map_err(WatchError::of)?;
        let path = Arc::new(path.clone());
        let mut ids = BTreeSet::new();
        let mut result = Ok(());
        for id in [
            watch.directory(&directory),
            // v1 has none.
            watch.file(&directory.join("cgroup.events")),
        ] {
            match id {
                Ok(id) => {
                    let subject = Subject::Container(Arc::clone(&path));
                    self.subjects.insert(id, subject);
                    ids.insert(id);
                }
                Err(error) if error.is_gone() => {}
                Err(error) => result = Err(WatchError::of(error)),
            }
        }
        self.containers.insert(path, ids);
        result
    }

    /// A container is gone.
    pub(super) fn unwatch_container(&mut self, path: &CgroupPath) {
        for id in self.containers.remove(path).into_iter().flatten() {
            if let Some(notices) = &self.notices {
                notices.get_ref().remove(id);
            }
            self.subjects.remove(&id);
        }
    }

    /// Reads notices; true when the kernel dropped some.
    pub(super) fn read(&mut self, mut each: impl FnMut(&Subject)) -> bool {
        let Some(notices) = &self.notices else {
            return false;
        };
        let reading = notices.get_ref().read(|id, file| {
            // A notice of a watch that ended may still come.
            if let Some(subject) = self.subjects.get(&id).filter(|s| s.concerns(file)) {
                each(subject);
            }
        });
        match reading {
            Ok(reading) => {
                self.more
                    .store(reading != Reading::Drained, Ordering::Relaxed);
                reading == Reading::Overflowed
            }
            Err(error) => {
                tracing::warn!(%error, "notices of foreign writes could not be read");
                false
            }
        }
    }

    /// Watches these cgroups and no others. Returns those that were not watched before; one that was
    /// made anew is among them.
    pub(super) fn follow<'a>(
        &mut self,
        tree: &Tree,
        layout: &CgroupLayout,
        names: impl Iterator<Item = &'a CgroupName>,
    ) -> (Vec<Arc<CgroupName>>, Result<(), WatchError>) {
        let Some(notices) = &self.notices else {
            return (Vec::new(), Ok(()));
        };
        let watch = notices.get_ref();
        let mut new = Vec::new();
        let mut result = Ok(());
        let mut before = std::mem::take(&mut self.cgroups);
        for name in names {
            let (name, old) = before
                .remove_entry(name)
                .unwrap_or_else(|| (Arc::new(name.clone()), BTreeSet::new()));
            let ids = match watch_directories(watch, tree, &layout.path(&name)) {
                Ok(ids) => ids,
                Err(error) if error.is_gone() => BTreeSet::new(),
                Err(error) => {
                    result = result.and(Err(WatchError::of(error)));
                    old.clone()
                }
            };
            for gone in old.difference(&ids) {
                watch.remove(*gone);
                self.subjects.remove(gone);
            }
            if ids.difference(&old).next().is_some() {
                new.push(Arc::clone(&name));
            }
            for id in &ids {
                let subject = Subject::Settings(Arc::clone(&name));
                self.subjects.insert(*id, subject);
            }
            if !ids.is_empty() {
                self.cgroups.insert(name, ids);
            }
        }
        for id in before.into_values().flatten() {
            watch.remove(id);
            self.subjects.remove(&id);
        }
        (new, result)
    }
}

impl Subject {
    fn concerns(&self, file: &str) -> bool {
        match self {
            Self::Settings(_) => is_setting(file),
            // cgroup.events itself is watched, which names no file.
            Self::Container(_) => matches!(file, "cgroup.procs" | ""),
        }
    }
}

/// The watches of one cgroup; those that exist already as well.
fn watch_directories(
    watch: &WriteWatch,
    tree: &Tree,
    path: &CgroupPath,
) -> Result<BTreeSet<WatchId>, podwarden_cgroup::Error> {
    tree.setting_directories(path)?
        .iter()
        .map(|directory| watch.directory(directory))
        .collect()
}
