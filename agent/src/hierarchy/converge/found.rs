//! The tiers' former limits, in a file: an agent that was
//! killed leaves its limits behind, and the next one must not take those for the former ones.
//!
//! The file is below `/run`, so that it ends with its cgroups; each entry has the id of
//! its cgroup besides.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use podwarden_cgroup::{CgroupPath, root_as_file_name};
use podwarden_policy::{Bytes, limits::Limit};
use serde::{Deserialize, Serialize};

/// Limits of one cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Found {
    /// The cgroup's id in the memory controller's hierarchy.
    pub(super) id: u64,
    /// The hard limit.
    pub(super) max: Limit<Bytes>,
    /// `memory.high`; `None` on v1.
    pub(super) high: Option<Limit<Bytes>>,
}

/// The file, and what is in it by cgroup.
#[derive(Debug)]
pub(super) struct Book {
    path: PathBuf,
    found: BTreeMap<String, Found>,
}

/// The name of the file for a cgroup root.
pub fn file(directory: &Path, root: &str) -> PathBuf {
    let name = root_as_file_name(root);
    directory.join(format!("podwarden-{name}.limits.json"))
}

impl Book {
    /// Reads what an agent before this one has left. What cannot be read counts as nothing and is said.
    pub(super) fn open(path: PathBuf) -> Self {
        let read = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(error),
            Ok(text) => serde_json::from_slice(&text).map_err(io::Error::from),
        };
        let found = read.unwrap_or_else(|error| {
            tracing::warn!(%error, "{} cannot be read: the limits that are there now count as found", path.display());
            BTreeMap::new()
        });
        Self { path, found }
    }

    /// What was found in a cgroup; `now` when it is seen for the first time, and that is kept before
    /// anything is written to it. True for one that an agent before this one has seen.
    pub(super) fn of(&mut self, path: &CgroupPath, now: Found) -> (Found, bool) {
        if let Some(found) = self
            .found
            .get(path.as_str())
            .filter(|found| found.id == now.id)
        {
            return (*found, true);
        }
        self.found.insert(path.to_string(), now);
        if let Err(error) = self.write() {
            tracing::warn!(%error, "{} cannot be written: an agent after a kill will take its limits for those that were found", self.path.display());
        }
        (now, false)
    }

    /// Every cgroup with what was found in it.
    pub(super) fn all(&self) -> impl Iterator<Item = (CgroupPath, &Found)> {
        self.found
            .iter()
            .map(|(path, found)| (path.as_str().into(), found))
    }

    fn write(&self) -> io::Result<()> {
        let text = serde_json::to_vec(&self.found)?;
        let new = self.path.with_extension("new");
        fs::write(&new, text)?;
        // Whole or not at all.
        fs::rename(&new, &self.path)
    }

    /// All limits are as they were found.
    pub(super) fn close(self) {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, "{} stays behind", self.path.display());
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(id: u64, max: u64) -> Found {
        Found {
            id,
            max: Limit::At(Bytes(max)),
            high: Some(Limit::Unlimited),
        }
    }

    #[test]
    fn what_was_found_first_outlives_a_kill_but_not_the_cgroup() {
        let dir = tempfile::tempdir().unwrap();
        let path = file(dir.path(), "/a/b");
        assert!(path.ends_with("podwarden-a%2Fb.limits.json"));
        let mut book = Book::open(path.clone());
        assert_eq!(book.of(&"x".into(), limits(1, 10)), (limits(1, 10), false));
        // Another process.
        let mut book = Book::open(path.clone());
        assert_eq!(book.of(&"x".into(), limits(1, 30)), (limits(1, 10), true));
        let anew = (limits(2, 40), false);
        assert_eq!(book.of(&"x".into(), limits(2, 40)), anew, "made anew");
        book.close();
        assert!(!path.exists());
        Book::open(path.clone()).close();
        fs::write(&path, "{\"x\":{\"id\":1").unwrap();
        let (found, _) = Book::open(path).of(&"x".into(), limits(1, 50));
        assert_eq!(found, limits(1, 50));
    }
}
