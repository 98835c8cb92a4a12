//! Memory limit and protection, and what slows a cgroup down.

use rustix::io::Errno;

use super::{kept, memory_limit_file, none, shown, v2, whole_pages};
use crate::{CgroupPath, Controller, Error, Result, Tree, io};

/// What a kernel's `memory.reclaim` takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reclaims {
    /// There is no such file: v1, where a lower limit reclaims ([`Tree::reclaim_by_limit`]), and v2
    /// before Linux 5.19.
    Nothing,
    /// Also anonymous memory, where there is swap.
    Anything,
    /// Page cache alone, by `swappiness=0` (from Linux 6.9 on).
    CacheAlone,
}

impl Tree {
    /// Sets the memory limit in bytes, or lifts it; the kernel rounds it down to whole pages.
    ///
    /// A limit below usage is dangerous: v1 reclaims and answers `EBUSY` when that is not enough,
    /// v2 takes the limit and kills processes in the cgroup until usage is below it. It is the
    /// caller who keeps the limit above usage. Should usage outgrow it meanwhile, v2 from Linux 6.16
    /// on leaves that to the cgroup's next charge, for the file is opened with `O_NONBLOCK`
    /// (`memory_max_write`, `mm/memcontrol.c`).
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NoController`]; `EBUSY` as said; on v1 `EINVAL` for more than
    /// `memory.memsw.limit_in_bytes`; [`Error::NotKept`].
    pub fn set_memory_limit(&self, cgroup: &CgroupPath, bytes: Option<u64>) -> Result<()> {
        let is_v2 = self.is_v2(Controller::Memory);
        let file = self.file(Controller::Memory, cgroup, memory_limit_file(is_v2))?;
        io::write_text_nonblocking(&file, &shown(bytes, none(is_v2)))?;
        let found = self.memory_limit(cgroup)?;
        kept(file, bytes.map(whole_pages), found, |b| shown(b, v2::MAX))
    }

    /// The memory limit of this cgroup itself, in bytes; `None` when there is none.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NoController`], [`Error::Malformed`].
    pub fn memory_limit(&self, cgroup: &CgroupPath) -> Result<Option<u64>> {
        let name = memory_limit_file(self.is_v2(Controller::Memory));
        self.limit(Controller::Memory, cgroup, name)
    }

    /// Sets `memory.high`, bytes, or lifts it: above it the kernel takes memory from the cgroup's own
    /// tasks as they charge more, and delays them; nobody is killed. v2 only; rounded down to whole
    /// pages.
    ///
    /// Below usage the write itself reclaims, which may take long; not from Linux 6.16 on, for the
    /// file is opened with `O_NONBLOCK` (`memory_high_write`, `mm/memcontrol.c`).
    ///
    /// # Errors
    /// [`Error::Unsupported`] on v1; [`Error::NotFound`], [`Error::NoController`],
    /// [`Error::NotKept`].
    pub fn set_memory_high(&self, cgroup: &CgroupPath, bytes: Option<u64>) -> Result<()> {
        self.needs_v2(v2::MEMORY_HIGH)?;
        let file = self.file(Controller::Memory, cgroup, v2::MEMORY_HIGH)?;
        io::write_text_nonblocking(&file, &shown(bytes, v2::MAX))?;
        let found = self.memory_high(cgroup)?;
        kept(file, bytes.map(whole_pages), found, |b| shown(b, v2::MAX))
    }

    /// `memory.high`, bytes; `None` when there is no such limit.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on v1; [`Error::NotFound`], [`Error::NoController`],
    /// [`Error::Malformed`].
    pub fn memory_high(&self, cgroup: &CgroupPath) -> Result<Option<u64>> {
        self.needs_v2(v2::MEMORY_HIGH)?;
        self.limit(Controller::Memory, cgroup, v2::MEMORY_HIGH)
    }

    /// What `memory.reclaim` of a cgroup can do.
    pub fn reclaims(&self, cgroup: &CgroupPath) -> Reclaims {
        let Ok(file) = self.file(Controller::Memory, cgroup, v2::MEMORY_RECLAIM) else {
            return Reclaims::Nothing;
        };
        // Nothing is taken by either; a kernel without the key refuses to read it.
        if io::write_text(&file, "0 swappiness=0").is_ok() {
            Reclaims::CacheAlone
        } else if io::write_text(&file, "0").is_ok() {
            Reclaims::Anything
        } else {
            Reclaims::Nothing
        }
    }

    /// Takes `bytes` of memory from a cgroup: page cache and other memory that the kernel can have
    /// back, by [`Reclaims::CacheAlone`] no anonymous memory. Waits until that is done. False when there
    /// was less to be had.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NoController`]; what the kernel refuses.
    pub fn reclaim(&self, cgroup: &CgroupPath, bytes: u64, how: Reclaims) -> Result<bool> {
        let file = self.file(Controller::Memory, cgroup, v2::MEMORY_RECLAIM)?;
        let line = match how {
            Reclaims::CacheAlone => format!("{bytes} swappiness=0"),
            Reclaims::Anything => bytes.to_string(),
            Reclaims::Nothing => return Ok(false),
        };
        match io::write_text(&file, &line) {
            Err(error) if matches!(error.errno(), Some(Errno::AGAIN | Errno::INTR)) => Ok(false),
            result => result.map(|()| true),
        }
    }

    /// Takes memory from a cgroup of v1, as there is no `memory.reclaim`: sets its limit to `below` and
    /// at once to `after`, what it is to be (`None`: no limit). Waits until that is done. Page cache goes
    /// first; where there is swap, anonymous memory may go too. False when there was less to be had: the
    /// limit is then as it was.
    ///
    /// The kernel reclaims until usage is at most `below` and only then sets the limit
    /// (`mem_cgroup_resize_max`, `mm/memcontrol-v1.c`; `page_counter_set_max`, `mm/page_counter.c`);
    /// where nothing more can be had it answers `EBUSY` and leaves the limit. So what remains until
    /// `after` is written is the time between two system calls, in which a task that charges more has to
    /// find something to reclaim.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on v2, which would kill; [`Error::NotFound`], [`Error::NoController`]; what
    /// the kernel refuses.
    pub fn reclaim_by_limit(
        &self,
        cgroup: &CgroupPath,
        below: u64,
        after: Option<u64>,
    ) -> Result<bool> {
        if self.is_v2(Controller::Memory) {
            return Err(Error::Unsupported {
                what: "reclaim by a lower limit",
                reason: "the memory controller is on cgroup v2, which kills for it",
            });
        }
        let path = self.file(Controller::Memory, cgroup, memory_limit_file(false))?;
        // Both at hand: nothing but the two writes is in between.
        let file = io::open_write(&path)?;
        let (below, after) = (below.to_string(), shown(after, none(false)));
        match io::write_fd(&file, below.as_bytes()) {
            Err(Errno::BUSY | Errno::INTR) => return Ok(false),
            Err(error) => return Err(Error::os("write", path, error)),
            Ok(()) => {}
        }
        io::write_fd(&file, after.as_bytes()).map_err(|e| Error::os("write", path, e))?;
        Ok(true)
    }

    /// Sets `memory.min`, bytes: memory that is never reclaimed from the cgroup, as far as those
    /// above it are protected as much. v2 only; the kernel rounds it down to whole pages.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on v1; [`Error::NotFound`], [`Error::NoController`],
    /// [`Error::NotKept`].
    pub fn set_memory_min(&self, cgroup: &CgroupPath, bytes: u64) -> Result<()> {
        self.set_protection(cgroup, v2::MEMORY_MIN, bytes)
    }

    /// `memory.min`, bytes; `None` when all of the cgroup's memory is protected.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on v1; [`Error::NotFound`], [`Error::NoController`],
    /// [`Error::Malformed`].
    pub fn memory_min(&self, cgroup: &CgroupPath) -> Result<Option<u64>> {
        self.protection(cgroup, v2::MEMORY_MIN)
    }

    /// Sets `memory.low`, bytes: memory that is reclaimed from the cgroup only when there is none to
    /// be had from cgroups that are not protected. Otherwise as [`Tree::set_memory_min`].
    ///
    /// # Errors
    /// As [`Tree::set_memory_min`].
    pub fn set_memory_low(&self, cgroup: &CgroupPath, bytes: u64) -> Result<()> {
        self.set_protection(cgroup, v2::MEMORY_LOW, bytes)
    }

    /// `memory.low`, bytes; `None` when all of the cgroup's memory is protected.
    ///
    /// # Errors
    /// As [`Tree::memory_min`].
    pub fn memory_low(&self, cgroup: &CgroupPath) -> Result<Option<u64>> {
        self.protection(cgroup, v2::MEMORY_LOW)
    }

    fn set_protection(&self, cgroup: &CgroupPath, name: &'static str, bytes: u64) -> Result<()> {
        self.needs_v2(name)?;
        let file = self.file(Controller::Memory, cgroup, name)?;
        io::write_text(&file, &bytes.to_string())?;
        let found = self.protection(cgroup, name)?;
        kept(file, Some(whole_pages(bytes)), found, |b| shown(b, v2::MAX))
    }

    fn protection(&self, cgroup: &CgroupPath, name: &'static str) -> Result<Option<u64>> {
        self.needs_v2(name)?;
        self.limit(Controller::Memory, cgroup, name)
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
