//! Memory limit and protection.

use super::{kept, memory_limit_file, none, shown, v2, whole_pages};
use crate::{Controller, Error, Result, Tree, io};

impl Tree {
    /// Sets the memory limit in bytes, or lifts it; the kernel rounds it down to whole pages.
    ///
    /// A limit below usage is dangerous: v1 reclaims and answers `EBUSY` when that is not enough,
    /// v2 takes the limit and kills processes in the cgroup until usage is below it. It is the
    /// caller who keeps the limit above usage.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NoController`]; `EBUSY` as said; on v1 `EINVAL` for more than
    /// `memory.memsw.limit_in_bytes`; [`Error::NotKept`].
    pub fn set_memory_limit(&self, rel: &str, bytes: Option<u64>) -> Result<()> {
        let is_v2 = self.is_v2(Controller::Memory);
        let file = self.file(Controller::Memory, rel, memory_limit_file(is_v2))?;
        io::write_text(&file, &shown(bytes, none(is_v2)))?;
        let found = self.memory_limit(rel)?;
        kept(file, bytes.map(whole_pages), found, |b| shown(b, v2::MAX))
    }

    /// The memory limit of this cgroup itself, in bytes; `None` when there is none.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NoController`], [`Error::Malformed`].
    pub fn memory_limit(&self, rel: &str) -> Result<Option<u64>> {
        let name = memory_limit_file(self.is_v2(Controller::Memory));
        self.limit(Controller::Memory, rel, name)
    }

    /// Sets `memory.min`, bytes: memory that is never reclaimed from the cgroup, as far as those
    /// above it are protected as much. v2 only; the kernel rounds it down to whole pages.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on v1; [`Error::NotFound`], [`Error::NoController`],
    /// [`Error::NotKept`].
    pub fn set_memory_min(&self, rel: &str, bytes: u64) -> Result<()> {
        self.set_protection(rel, v2::MEMORY_MIN, bytes)
    }

    /// `memory.min`, bytes; `None` when all of the cgroup's memory is protected.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on v1; [`Error::NotFound`], [`Error::NoController`],
    /// [`Error::Malformed`].
    pub fn memory_min(&self, rel: &str) -> Result<Option<u64>> {
        self.protection(rel, v2::MEMORY_MIN)
    }

    /// Sets `memory.low`, bytes: memory that is reclaimed from the cgroup only when there is none to
    /// be had from cgroups that are not protected. Otherwise as [`Tree::set_memory_min`].
    ///
    /// # Errors
    /// As [`Tree::set_memory_min`].
    pub fn set_memory_low(&self, rel: &str, bytes: u64) -> Result<()> {
        self.set_protection(rel, v2::MEMORY_LOW, bytes)
    }

    /// `memory.low`, bytes; `None` when all of the cgroup's memory is protected.
    ///
    /// # Errors
    /// As [`Tree::memory_min`].
    pub fn memory_low(&self, rel: &str) -> Result<Option<u64>> {
        self.protection(rel, v2::MEMORY_LOW)
    }

    fn set_protection(&self, rel: &str, name: &'static str, bytes: u64) -> Result<()> {
        self.needs_v2(name)?;
        let file = self.file(Controller::Memory, rel, name)?;
        io::write_text(&file, &bytes.to_string())?;
        let found = self.protection(rel, name)?;
        kept(file, Some(whole_pages(bytes)), found, |b| shown(b, v2::MAX))
    }

    fn protection(&self, rel: &str, name: &'static str) -> Result<Option<u64>> {
        self.needs_v2(name)?;
        self.limit(Controller::Memory, rel, name)
    }

    fn needs_v2(&self, what: &'static str) -> Result<()> {
        let mounted = self.hierarchies().mount_of(Controller::Memory);
        if mounted.is_ok() && !self.is_v2(Controller::Memory) {
            return Err(Error::Unsupported {
                what,
                reason: "the memory controller is on cgroup v1",
            });
        }
        mounted.map(drop)
    }
}
