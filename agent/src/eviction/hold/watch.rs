//! Sees cgroups that are made in those of held pods.

use std::{
    collections::{BTreeSet, HashMap},
    os::fd::{AsFd as _, BorrowedFd},
    path::Path,
};

use podwarden_cgroup::{Notice, WatchId, WriteWatch};

/// See the module. Where the kernel refuses it, slow looks find them.
pub(super) struct Watch {
    inotify: Option<WriteWatch>,
    /// The pods by what is watched of them.
    uids: HashMap<WatchId, String>,
}

impl Watch {
    pub(super) fn new() -> Self {
        let inotify = WriteWatch::new();
        if let Err(error) = &inotify {
            tracing::info!(%error, "containers that start in evicted pods are found by slow looks");
        }
        Self {
            inotify: inotify.ok(),
            uids: HashMap::new(),
        }
    }

    /// Readable when there is something to take; `None` where the kernel refuses it.
    pub(super) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(|watch| watch.as_fd())
    }

    pub(super) fn add(&mut self, uid: &str, dir: &Path) {
        let watch = self.inotify.as_ref();
        // One that is gone, or was refused, is looked at all the same.
        let id = watch.and_then(|watch| watch.directory_and_children(dir).ok());
        if let Some(id) = id {
            self.uids.insert(id, uid.to_owned());
        }
    }

    /// Watches no others any more.
    pub(super) fn keep(&mut self, is_held: impl Fn(&str) -> bool) {
        let Some(watch) = &self.inotify else { return };
        self.uids.retain(|id, uid| {
            let is_held = is_held(uid);
            if !is_held {
                watch.remove(*id);
            }
            is_held
        });
    }

    /// The pods in which a cgroup was made.
    pub(super) fn stirred(&self) -> BTreeSet<&str> {
        let mut stirred = BTreeSet::new();
        let found = |id, notice, _: &str| {
            // A kill is a write.
            if notice == Notice::Made {
                stirred.extend(self.uids.get(&id).map(String::as_str));
            }
        };
        // What the kernel dropped, or does not tell, the slow look finds.
        let _ = self.inotify.as_ref().map(|watch| watch.read_all(found));
        stirred
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_made_in_a_held_pod_calls_for_a_look_and_a_write_does_not() {
        let (held, let_go) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut watch = Watch::new();
        watch.add("a", held.path());
        watch.add("b", let_go.path());
        std::fs::write(held.path().join("cgroup.kill"), "1").unwrap();
        assert_eq!(watch.stirred(), BTreeSet::new());
        for dir in [&held, &let_go] {
            std::fs::create_dir(dir.path().join("container")).unwrap();
        }
        assert_eq!(watch.stirred(), BTreeSet::from(["a", "b"]));
        watch.keep(|uid| uid == "a");
        for dir in [&held, &let_go] {
            std::fs::create_dir(dir.path().join("another")).unwrap();
        }
        assert_eq!(watch.stirred(), BTreeSet::from(["a"]));
    }
}
