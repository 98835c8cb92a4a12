//! A directory that is watched (inotify).

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd, RawFd},
    path::Path,
};

use nix::{
    errno::Errno,
    sys::inotify::{AddWatchFlags as On, InitFlags, Inotify},
};
use tokio::io::{Interest, unix::AsyncFd};

#[derive(Debug)]
pub(crate) struct DirectoryWatch(AsyncFd<Events>);

/// What is there from now on.
const NEW: On = On::IN_CREATE.union(On::IN_MOVED_TO);

impl DirectoryWatch {
    /// Of the files in `dir`: they come, change and go.
    pub(crate) fn new(dir: &Path) -> io::Result<Self> {
        Self::of(
            dir,
            NEW | On::IN_CLOSE_WRITE | On::IN_DELETE | On::IN_MOVED_FROM,
        )
    }

    /// Of what is new in `dir`. A cgroup's own files are written all the time.
    pub(crate) fn of_new(dir: &Path) -> io::Result<Self> {
        Self::of(dir, NEW)
    }

    fn of(dir: &Path, content: On) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let itself = On::IN_DELETE_SELF | On::IN_MOVE_SELF | On::IN_ONLYDIR;
        inotify.add_watch(dir, content | itself)?;
        // SAFETY: `Events` names the same open file for as long as it lives.
        let events =
            unsafe { AsyncFd::register_with_interest(Events(inotify), Interest::READABLE) }?;
        Ok(Self(events))
    }

    /// Waits for a change.
    pub(crate) async fn changed(&self) -> io::Result<Changes> {
        loop {
            let mut ready = self.0.readable().await?;
            if let Ok(result) = ready.try_io(|fd| drain(&fd.get_ref().0)) {
                return result;
            }
        }
    }
}

/// An inotify instance that tokio can wait for.
#[derive(Debug)]
struct Events(Inotify);

impl AsRawFd for Events {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Changes of the directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// The directory itself went away.
    pub(crate) gone: bool,
    /// A file is there, and its writer has closed it.
    pub(crate) put: bool,
    /// A file went away, which may come again under this or another name.
    pub(crate) taken: bool,
}

impl Changes {
    pub(crate) fn add(&mut self, more: Self) {
        self.gone |= more.gone;
        self.put |= more.put;
        self.taken |= more.taken;
    }

    /// The change of one file is complete.
    pub(crate) const fn are_whole(self) -> bool {
        self.put && !self.taken
    }
}

/// Takes everything that is queued. An overflow of the queue is a change as any other: the
/// directory is read whole.
fn drain(inotify: &Inotify) -> io::Result<Changes> {
    let mut changes = None;
    loop {
        match inotify.read_events() {
            Ok(events) => {
                let changes = changes.get_or_insert_with(Changes::default);
                for event in events {
                    let has = |flags| event.mask.intersects(flags);
                    changes.add(Changes {
                        gone: has(On::IN_DELETE_SELF | On::IN_MOVE_SELF | On::IN_IGNORED),
                        put: has(On::IN_CLOSE_WRITE | On::IN_MOVED_TO),
                        taken: has(On::IN_DELETE | On::IN_MOVED_FROM),
                    });
                }
            }
            Err(Errno::EINTR) => {}
            Err(error) => match changes {
                Some(changes) if error == Errno::EAGAIN => return Ok(changes),
                _ => return Err(error.into()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn what_is_new_is_seen_and_what_is_written_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("cgroup.procs");
        fs::write(&file, "").unwrap();
        let new = DirectoryWatch::of_new(directory.path()).unwrap();
        let files = DirectoryWatch::new(directory.path()).unwrap();
        fs::write(&file, "1").unwrap();
        assert!(files.changed().await.unwrap().put);
        let a_while = Duration::from_millis(50);
        assert!(timeout(a_while, new.changed()).await.is_err());
        fs::create_dir(directory.path().join("kubepods")).unwrap();
        assert_eq!(new.changed().await.unwrap(), Changes::default());
        assert!(timeout(a_while, new.changed()).await.is_err(), "once");
        drop(directory);
        assert!(new.changed().await.unwrap().gone);
        let missing = DirectoryWatch::of_new(&file).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
