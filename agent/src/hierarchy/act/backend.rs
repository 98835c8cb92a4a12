//! Who makes, sets and removes cgroups.

use std::{fmt, path::PathBuf, time::Duration};

use podwarden_cgroup::{CgroupPath, Created, Error, Systemd, Tree};
use podwarden_policy::settings::Setting;

/// The operations behind the actions. An implementation decides nothing: it
/// does or refuses.
pub trait Backend: fmt::Debug + Send + Sync {
    /// How long any of these may take while all is well.
    fn limit(&self) -> Duration;

    /// Makes a cgroup and what is missing above it; the answer names what this call made. `first` are
    /// the values that will be written to it next, for those who can make it with them.
    fn create(&self, tree: &Tree, path: &CgroupPath, first: &[Setting]) -> Result<Created, Error>;

    /// Sets one value and reads it back, see [`Tree::write`].
    fn write(&self, tree: &Tree, path: &CgroupPath, setting: &Setting) -> Result<(), Error>;

    /// Removes the directories that [`Backend::create`] made for a cgroup in which there are no
    /// processes, and nothing else. `EBUSY` when it is in use again.
    fn remove(&self, tree: &Tree, path: &CgroupPath, made: &Created) -> Result<(), Error>;

    /// What an earlier agent made of a cgroup, as far as that can be told; of the tree's root for the
    /// empty name.
    fn made_before(&self, tree: &Tree, path: &CgroupPath) -> Result<Created, Error>;

    /// Removes the unused ones of the directories that [`Backend::create`] made, parents
    /// first; the others stay.
    fn remove_unused(&self, tree: &Tree, made: Vec<PathBuf>);
}

/// The cgroup file system alone: the cgroupfs driver.
#[derive(Debug, Clone, Copy, Default)]
pub struct Files;

impl Backend for Files {
    /// The kernel answers within a millisecond, and within a second where many cgroups are made and removed at once.
    fn limit(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn create(&self, tree: &Tree, path: &CgroupPath, _first: &[Setting]) -> Result<Created, Error> {
        tree.create(path)
    }

    fn write(&self, tree: &Tree, path: &CgroupPath, setting: &Setting) -> Result<(), Error> {
        tree.write(path, setting)
    }

    fn remove(&self, tree: &Tree, _path: &CgroupPath, made: &Created) -> Result<(), Error> {
        tree.remove_created(made)
    }

    fn made_before(&self, tree: &Tree, path: &CgroupPath) -> Result<Created, Error> {
        tree.made_before(path)
    }

    fn remove_unused(&self, _tree: &Tree, made: Vec<PathBuf>) {
        for directory in made.iter().rev() {
            // rmdir refuses a cgroup with processes or children, as intended.
            if let Err(error) = std::fs::remove_dir(directory) {
                tracing::debug!(%error, directory = %directory.display(), "left as it is");
            }
        }
    }
}

/// systemd's slices: the systemd driver.
#[derive(Debug)]
pub struct Slices(pub Systemd);

impl Backend for Slices {
    /// Longer than its calls wait for systemd, which say what it does not answer.
    fn limit(&self) -> Duration {
        Systemd::LIMIT + Files.limit()
    }

    fn create(&self, tree: &Tree, path: &CgroupPath, first: &[Setting]) -> Result<Created, Error> {
        self.0.create(tree, path, first)
    }

    fn write(&self, tree: &Tree, path: &CgroupPath, setting: &Setting) -> Result<(), Error> {
        // A container's scope is its runtime's, and a cgroup that is no unit is unknown to systemd.
        let is_slice = |name: &str| name.ends_with(".slice");
        if path.last().is_some_and(|name| !is_slice(name)) {
            return tree.write(path, setting);
        }
        self.0
            .set(tree, path, setting, || tree.write(path, setting))
    }

    fn remove(&self, tree: &Tree, _path: &CgroupPath, made: &Created) -> Result<(), Error> {
        self.0.remove(tree, made)
    }

    fn made_before(&self, tree: &Tree, path: &CgroupPath) -> Result<Created, Error> {
        match self.0.made_before(tree, path) {
            // What is no slice was made by others.
            Err(Error::InvalidName { .. }) => Ok(Created::default()),
            found => found,
        }
    }

    fn remove_unused(&self, tree: &Tree, made: Vec<PathBuf>) {
        if let Err(error) = self.0.remove(tree, &Created { directories: made }) {
            tracing::debug!(%error, "slices are left as they are");
        }
    }
}
