//! What takes memory from a cgroup, and what slows it down.

use podwarden_policy::{
    Bytes,
    limits::Limit,
    settings::{Controller, Value, Version, table},
};
use rustix::io::Errno;

use super::limit_text;
use crate::{CgroupPath, Error, Result, Tree, io};

const MEMORY_RECLAIM: &str = "memory.reclaim";

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
    /// Sets `memory.high`, or lifts it: above it the kernel takes memory from the cgroup's own tasks as
    /// they charge more, and delays them; it kills none. v2 only; rounded down to whole pages.
    ///
    /// Below usage the write itself reclaims, which may take long; not from Linux 6.16 on, for the
    /// file is opened with `O_NONBLOCK` (`memory_high_write`, `mm/memcontrol.c`).
    pub fn set_memory_high(&self, cgroup: &CgroupPath, high: Limit<Bytes>) -> Result<()> {
        self.put(cgroup, &table::MEMORY_HIGH, None, Value::Limit(high))
    }

    /// `memory.high`.
    pub fn memory_high(&self, cgroup: &CgroupPath) -> Result<Limit<Bytes>> {
        self.limit_of(cgroup, &table::MEMORY_HIGH)
    }

    /// The memory limit of this cgroup itself.
    pub fn memory_limit(&self, cgroup: &CgroupPath) -> Result<Limit<Bytes>> {
        self.limit_of(cgroup, &table::MEMORY_LIMIT)
    }

    fn limit_of(&self, cgroup: &CgroupPath, row: &table::Row) -> Result<Limit<Bytes>> {
        Ok(match self.value(cgroup, row)? {
            Value::Limit(limit) => limit,
            _ => Limit::Unlimited,
        })
    }

    /// What `memory.reclaim` of a cgroup can do.
    pub fn reclaims(&self, cgroup: &CgroupPath) -> Reclaims {
        let Ok(directory) = self.path(Controller::Memory, cgroup) else {
            return Reclaims::Nothing;
        };
        let file = directory.join(MEMORY_RECLAIM);
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
    pub fn reclaim(&self, cgroup: &CgroupPath, bytes: u64, how: Reclaims) -> Result<bool> {
        let file = self.path(Controller::Memory, cgroup)?.join(MEMORY_RECLAIM);
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
    /// at once to `after`. Waits until that is done. Page cache goes
    /// first; where there is swap, anonymous memory may go too. False when there was less to be had: the
    /// limit is then as it was.
    ///
    /// The kernel reclaims until usage is at most `below` and only then sets the limit
    /// (`mem_cgroup_resize_max`, `mm/memcontrol-v1.c`; `page_counter_set_max`, `mm/page_counter.c`);
    /// where nothing more can be had it answers `EBUSY` and leaves the limit. So what remains until
    /// `after` is written is the time between two system calls, in which a task that charges more has to
    /// find something to reclaim. [`Error::Unsupported`] on v2, which would kill.
    pub fn reclaim_by_limit(
        &self,
        cgroup: &CgroupPath,
        below: Limit<Bytes>,
        after: Limit<Bytes>,
    ) -> Result<bool> {
        let version = self.version_of(Controller::Memory);
        if version == Version::V2 {
            return Err(Error::Unsupported {
                what: "reclaim by a lower limit",
                reason: "the memory controller is on cgroup v2, which kills for it",
            });
        }
        let name = table::MEMORY_LIMIT.v1[0];
        let path = self.path(Controller::Memory, cgroup)?.join(name);
        // Both at hand: nothing but the two writes is in between.
        let file = io::open_write(&path)?;
        let (below, after) = (limit_text(below, version), limit_text(after, version));
        match io::write_fd(&file, below.as_bytes()) {
            Err(Errno::BUSY | Errno::INTR) => return Ok(false),
            Err(error) => return Err(Error::os("write", path, error)),
            Ok(()) => {}
        }
        io::write_fd(&file, after.as_bytes()).map_err(|e| Error::os("write", path, e))?;
        Ok(true)
    }
}
