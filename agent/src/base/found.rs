//! What cgroups held before the agent first wrote to them, in a file: an agent that was killed leaves its values
//! behind, and the next one must not take those for the former ones.
//!
//! The file is below `/run`, so that it ends with its cgroups; each entry has the id of
//! its cgroup besides.

use std::{collections::BTreeMap, io, path::PathBuf};

use podwarden_cgroup::CgroupPath;
use serde::{Serialize, de::DeserializeOwned};

use super::durable;

/// Values of one cgroup.
pub trait Found: Clone + Serialize + DeserializeOwned {
    /// The cgroup's id: another cgroup of the same name has another one.
    fn id(&self) -> u64;
}

/// The file, and what is in it by cgroup.
#[derive(Debug)]
pub struct Originals<F> {
    path: PathBuf,
    found: BTreeMap<String, F>,
}

impl<F: Found> Originals<F> {
    /// Reads what an agent before this one has left. What cannot be read counts as nothing and is said.
    pub fn open(path: PathBuf) -> Self {
        let read = match durable::read(&path) {
            Err(error) => Err(error),
            Ok(None) => Ok(BTreeMap::new()),
            Ok(Some(text)) => serde_json::from_slice(&text).map_err(io::Error::from),
        };
        let found = read.unwrap_or_else(|error| {
            tracing::warn!(%error, "{} cannot be read: the limits that are there now count as found", path.display());
            BTreeMap::new()
        });
        Self { path, found }
    }

    /// What was found in a cgroup; `now` when it is seen for the first time, and that is kept before
    /// anything is written to it. True for one that an agent before this one has seen.
    pub fn of(&mut self, path: &CgroupPath, now: F) -> (F, bool) {
        if let Some(found) = self.get(path).filter(|found| found.id() == now.id()) {
            return (found.clone(), true);
        }
        self.set(path, now.clone());
        (now, false)
    }

    /// What was found in this cgroup.
    pub fn get(&self, path: &CgroupPath) -> Option<&F> {
        self.found.get(path.as_str())
    }

    /// True where there is something found in this cgroup.
    pub fn has(&self, path: &CgroupPath) -> bool {
        self.get(path).is_some()
    }

    /// Another writer has set this: it counts as found from now on.
    pub fn set(&mut self, path: &CgroupPath, now: F) {
        self.found.insert(path.to_string(), now);
        self.write();
    }

    /// These cgroups are as they were found, or gone.
    pub fn forget<'a>(&mut self, paths: impl IntoIterator<Item = &'a CgroupPath>) {
        let before = self.found.len();
        for path in paths {
            self.found.remove(path.as_str());
        }
        if self.found.len() != before {
            self.write();
        }
    }

    /// Every cgroup with what was found in it.
    pub fn all(&self) -> impl Iterator<Item = (CgroupPath, &F)> {
        self.found
            .iter()
            .map(|(path, found)| (path.as_str().into(), found))
    }

    fn write(&self) {
        let write = || {
            let text = serde_json::to_vec(&self.found)?;
            durable::replace(&self.path, &text)
        };
        if let Err(error) = write() {
            tracing::warn!(%error, "{} cannot be written: an agent after a kill will take its limits for those that were found", self.path.display());
        }
    }

    /// All limits are as they were found.
    pub fn close(self) {
        if let Err(error) = durable::remove(&self.path) {
            tracing::warn!(%error, "{} stays behind", self.path.display());
        }
    }
}
