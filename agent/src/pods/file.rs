//! A directory of manifests, as the kubelet's `staticPodPath`: read whole on every change.

use std::{
    collections::BTreeSet,
    fs::{File, Metadata},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use super::{
    Manifests, Problem,
    manifests::{MOST, Reading},
};
use crate::base::directory::{Changes, DirectoryWatch};

/// Writers rarely touch one file only: wait this long for the rest. A file that is put there whole does not
/// wait unless the last reading was no longer ago: its pods may need room at once.
const SETTLE: Duration = Duration::from_millis(20);

/// Between two looks for a directory that is gone.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Why the directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    #[error("listing pod manifests in {}", dir.display())]
    List {
        dir: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("watching pod manifests in {}", dir.display())]
    Watch {
        dir: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is gone; the pods read from it stay as they were until it is back", dir.display())]
    Gone { dir: PathBuf },
}

/// A directory of v1 Pod manifests: `*.yaml`, `*.yml` and `*.json`. Names that begin with a dot and
/// all other names (editors' copies among them) are ignored, and so are subdirectories.
#[derive(Debug, Clone)]
pub struct ManifestDir(PathBuf);

impl ManifestDir {
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self(dir.into())
    }

    /// Reads everything. A manifest that cannot be used is an entry of `errors`; while its file is
    /// there, the pods that `previous` has from it stay: a manifest saved half-way, or with a typing
    /// error, must not end its pod.
    pub fn read(&self, previous: &Manifests) -> Result<Manifests, DirError> {
        let mut reading = Reading::default();
        for file in self.files()? {
            let before = reading.errors();
            match read_file(&file) {
                Ok(text) => reading.add(&file, &text),
                // Removed since it was listed; a link that leads nowhere is still there itself.
                Err(_) if std::fs::symlink_metadata(&file).is_err() => {}
                Err(problem) => reading.error(&file, None, problem),
            }
            if reading.errors() > before {
                reading.keep(&file, previous);
            }
        }
        Ok(reading.done())
    }

    /// The manifests in the order of their names.
    fn files(&self) -> Result<BTreeSet<PathBuf>, DirError> {
        let list = || -> io::Result<_> {
            let mut files = BTreeSet::new();
            for entry in std::fs::read_dir(&self.0)? {
                let path = entry?.path();
                // Follows links: a mounted ConfigMap is made of them. A dangling one is reported
                // when it is read.
                if is_manifest(&path) && !path.is_dir() {
                    files.insert(path);
                }
            }
            Ok(files)
        };
        list().map_err(|source| DirError::List {
            dir: self.0.clone(),
            source,
        })
    }

    /// Starts to watch, then reads, so that no change in between is missed.
    pub fn watch(self) -> Result<(Watcher, watch::Receiver<Arc<Manifests>>), DirError> {
        let inotify = DirectoryWatch::new(&self.0).map_err(|source| DirError::Watch {
            dir: self.0.clone(),
            source,
        })?;
        let first = self.read(&Manifests::default())?;
        let (sender, receiver) = watch::channel(Arc::new(first));
        let watcher = Watcher {
            dir: self,
            inotify,
            sender,
        };
        Ok((watcher, receiver))
    }
}

fn is_manifest(path: &Path) -> bool {
    let hidden = path
        .file_name()
        .is_none_or(|n| n.as_encoded_bytes().starts_with(b"."));
    let extension = path.extension().and_then(|e| e.to_str());
    !hidden && matches!(extension, Some("yaml" | "yml" | "json"))
}

fn read_file(path: &Path) -> Result<String, Problem> {
    let read = || -> io::Result<String> {
        // To open a device may do something, and to open a FIFO may wait: neither is opened.
        regular(&std::fs::metadata(path)?)?;
        let mut open = File::options();
        // It may have been replaced by one meanwhile.
        let file = open.read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        regular(&file.metadata()?)?;
        let mut text = String::new();
        file.take(MOST + 1).read_to_string(&mut text)?;
        Ok(text)
    };
    let text = read().map_err(|e| Problem::Read(e.to_string()))?;
    if text.len() as u64 > MOST {
        return Err(Problem::TooLarge { limit: MOST });
    }
    Ok(text)
}

fn regular(found: &Metadata) -> io::Result<()> {
    match found.is_file() {
        true => Ok(()),
        false => Err(io::Error::other(
            "it is a FIFO, a device or a socket; manifests are regular files",
        )),
    }
}

/// Keeps the receivers of [`ManifestDir::watch`] up to date while it runs.
#[derive(Debug)]
pub struct Watcher {
    dir: ManifestDir,
    inotify: DirectoryWatch,
    sender: watch::Sender<Arc<Manifests>>,
}

impl Watcher {
    /// Waits until the directory can be watched again, then reads it.
    pub(super) async fn again(&mut self) {
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            if self.sender.is_closed() {
                return;
            }
            if let Ok(inotify) = DirectoryWatch::new(&self.dir.0) {
                self.inotify = inotify;
                if self.read().await.is_ok() {
                    return;
                }
            }
        }
    }

    /// Runs until the receivers are gone. Only a set that differs wakes them; after an error the last set stays.
    pub(super) async fn follow(&mut self) -> Result<(), DirError> {
        let mut read: Option<Instant> = None;
        loop {
            let changes = tokio::select! {
                () = self.sender.closed() => return Ok(()),
                changes = self.settled(read) => changes?,
            };
            if changes.gone {
                let dir = self.dir.0.clone();
                return Err(DirError::Gone { dir });
            }
            read = Some(Instant::now());
            self.read().await?;
        }
    }

    /// Reads the directory and wakes the receivers for what differs.
    async fn read(&self) -> Result<(), DirError> {
        let dir = self.dir.clone();
        let previous = self.sender.borrow().clone();
        // Off the runtime's threads: the directory may be on a slow file system.
        let read = tokio::task::spawn_blocking(move || dir.read(&previous));
        let Ok(set) = read.await else {
            // The runtime is shutting down.
            return Ok(());
        };
        let set = set?;
        self.sender.send_if_modified(|last| {
            let news = **last != set;
            if news {
                *last = Arc::new(set);
            }
            news
        });
        Ok(())
    }

    /// Waits for a change, and for more that may follow; `read` is when the directory was last read.
    async fn settled(&self, read: Option<Instant>) -> Result<Changes, DirError> {
        let mut changes = self.changed().await?;
        let settled = Instant::now() + SETTLE;
        let rested = read.is_none_or(|read| read.elapsed() >= SETTLE);
        while !(changes.gone || (changes.are_whole() && rested)) {
            match tokio::time::timeout_at(settled, self.changed()).await {
                Ok(more) => changes.add(more?),
                Err(_) => break,
            }
        }
        Ok(changes)
    }

    /// Waits for a change.
    async fn changed(&self) -> Result<Changes, DirError> {
        let changed = self.inotify.changed().await;
        changed.map_err(|source| DirError::Watch {
            dir: self.dir.0.clone(),
            source,
        })
    }
}
