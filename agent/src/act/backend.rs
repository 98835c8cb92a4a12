//! Who makes, sets and removes cgroups.

use std::fmt;

use podwarden_cgroup::{Created, Error, Tree};
use podwarden_policy::settings::Setting;

use super::write;

/// What the actions come down to. An implementation decides nothing: what it is asked to do, it
/// does or refuses.
pub trait Backend: fmt::Debug + Send {
    /// Makes a cgroup and what is missing above it; the answer names what this call made.
    ///
    /// # Errors
    /// As [`Tree::create`].
    fn create(&self, tree: &Tree, rel: &str) -> Result<Created, Error>;

    /// Sets one value and reads it back, see [`write::setting`].
    ///
    /// # Errors
    /// What the kernel refuses, and a value that reads back as another.
    fn write(&self, tree: &Tree, rel: &str, setting: &Setting) -> Result<(), Error>;

    /// Removes the directories that [`Backend::create`] made for a cgroup in which there are no
    /// processes, and nothing else.
    ///
    /// # Errors
    /// `EBUSY` when it is in use again; what the kernel refuses.
    fn remove(&self, tree: &Tree, rel: &str, made: &Created) -> Result<(), Error>;
}

/// The cgroup file system alone: the cgroupfs driver.
#[derive(Debug, Clone, Copy, Default)]
pub struct Files;

impl Backend for Files {
    fn create(&self, tree: &Tree, rel: &str) -> Result<Created, Error> {
        tree.create(rel)
    }

    fn write(&self, tree: &Tree, rel: &str, setting: &Setting) -> Result<(), Error> {
        write::setting(tree, rel, setting)
    }

    fn remove(&self, tree: &Tree, _rel: &str, made: &Created) -> Result<(), Error> {
        tree.remove_created(made)
    }
}
