//! Reading a cgroup's memory again and again, from open files and without allocating.

mod cold;

use podwarden_policy::{
    Bytes,
    settings::{table, value},
};

pub use self::cold::{ColdReader, ColdReading};

use crate::{
    CgroupPath, Controller, Error, Hierarchies, Result, Tree,
    io::{Reread, parse_u64},
};

/// Holds a `memory.stat` of every kernel known (6.18 writes about 2 KiB on v2).
const STAT_BUFFER: usize = 8192;

/// What `memory.stat` says of a cgroup and all below it, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryStat {
    /// File pages on the inactive list: `inactive_file` (v2), `total_inactive_file` (v1).
    pub inactive_file: u64,
    /// File pages on the active list: `active_file` (v2), `total_active_file` (v1).
    pub active_file: u64,
    /// Anonymous memory: `anon` (v2), `total_rss` (v1).
    pub rss: u64,
    /// Shared memory and tmpfs, which is on neither list of file pages: `shmem` (v2), `total_shmem` (v1).
    pub shmem: u64,
}

impl MemoryStat {
    /// The working set of a cgroup that uses `usage` bytes, as cAdvisor computes it: usage minus
    /// inactive file pages, never below 0.
    pub fn working_set(&self, usage: u64) -> u64 {
        usage.saturating_sub(self.inactive_file)
    }

    /// What is left of `usage` bytes when all page cache is dropped, be it in use.
    pub fn without_cache(&self, usage: u64) -> u64 {
        self.working_set(usage).saturating_sub(self.active_file)
    }

    /// What processes have filled themselves: of this nothing is dropped, and page cache that is in usage
    /// already but not yet on a list is not in it.
    pub const fn filled(&self) -> u64 {
        self.rss.saturating_add(self.shmem)
    }
}

/// One cgroup's memory files, open. Every method reads with one or two system calls, holds its
/// buffer on the stack (8 KiB at most) and allocates nothing.
///
/// The kernel keeps a removed cgroup's memory alive while these files are open; drop the reader
/// when [`Error::Gone`] says so.
#[derive(Debug)]
pub struct MemoryReader {
    /// None for all of the node on v2: the topmost cgroup has no such file.
    usage: Option<Reread>,
    stat: Reread,
    /// None for all of the node, which has no limit.
    limit: Option<Reread>,
    keys: StatKeys,
}

/// Page cache on both of the kernel's lists, bytes: `inactive_file` and `active_file` (v1: `total_`
/// before each).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageCache {
    /// All of it.
    pub all: u64,
    /// What is not to be written to a disk first: `file_dirty` and `file_writeback` (v1: `total_dirty`,
    /// `total_writeback`) taken off.
    pub clean: u64,
}

#[derive(Debug, Clone, Copy)]
struct StatKeys {
    inactive_file: &'static [u8],
    active_file: &'static [u8],
    dirty: &'static [u8],
    writeback: &'static [u8],
    rss: &'static [u8],
    shmem: &'static [u8],
    file: &'static [u8],
}

/// The usage of a v1 cgroup.
pub(crate) const V1_USAGE: &str = "memory.usage_in_bytes";

const V1_KEYS: StatKeys = StatKeys {
    inactive_file: b"total_inactive_file",
    active_file: b"total_active_file",
    dirty: b"total_dirty",
    writeback: b"total_writeback",
    rss: b"total_rss",
    shmem: b"total_shmem",
    file: b"total_cache",
};
const V2_KEYS: StatKeys = StatKeys {
    inactive_file: b"inactive_file",
    active_file: b"active_file",
    dirty: b"file_dirty",
    writeback: b"file_writeback",
    rss: b"anon",
    shmem: b"shmem",
    file: b"file",
};

impl MemoryReader {
    /// Opens the files of a cgroup. [`Error::NotFound`] also for the topmost cgroup of v2, which has no such files.
    pub fn open(tree: &Tree, cgroup: &CgroupPath) -> Result<Self> {
        let directory = tree.path(Controller::Memory, cgroup)?;
        let is_v2 = tree.hierarchies().is_on_v2(Controller::Memory);
        Ok(Self {
            usage: Some(Reread::open(&directory.join(usage_file(is_v2)))?),
            stat: Reread::open(&directory.join("memory.stat"))?,
            limit: Some(Reread::open(&directory.join(
                table::MEMORY_LIMIT.files(tree.version_of(Controller::Memory))[0],
            ))?),
            keys: if is_v2 { V2_KEYS } else { V1_KEYS },
        })
    }

    /// Opens the files of the topmost cgroup, for what the whole node uses as the kubelet counts it:
    /// anonymous memory and page cache, nothing of the kernel's own. v1 says so itself
    /// (`mem_cgroup_usage` of kernel `mm/memcontrol-v1.c`), on v2 the two are added up
    /// (`rootStatsFromMeminfo` of opencontainers/cgroups `fs2/memory.go`). [`Error::Unsupported`] where what is mounted
    /// is not the topmost cgroup (a cgroup namespace).
    pub fn open_node(hierarchies: &Hierarchies) -> Result<Self> {
        let directory = hierarchies.mount_of(Controller::Memory)?;
        let is_v2 = hierarchies.is_on_v2(Controller::Memory);
        // Only the topmost one has the first, and every other one the second
        // (`CFTYPE_ONLY_ON_ROOT` and `CFTYPE_NOT_ON_ROOT` of kernel `kernel/cgroup`).
        let topmost = match is_v2 {
            false => directory.join("release_agent").exists(),
            true => !directory.join("cgroup.type").exists(),
        };
        if !topmost {
            return Err(Error::Unsupported {
                what: "the memory of the whole node",
                reason: "what is mounted is not the topmost cgroup: mount the host's /sys/fs/cgroup",
            });
        }
        Ok(Self {
            usage: match is_v2 {
                true => None,
                false => Some(Reread::open(&directory.join(V1_USAGE))?),
            },
            stat: Reread::open(&directory.join("memory.stat"))?,
            limit: None,
            keys: if is_v2 { V2_KEYS } else { V1_KEYS },
        })
    }

    /// Memory charged to the cgroup and all below it, in bytes. Up to 64 pages for every CPU may be
    /// charged ahead of use (`MEMCG_CHARGE_BATCH`, `include/linux/memcontrol.h`).
    pub fn usage(&self) -> Result<u64> {
        if let Some(usage) = &self.usage {
            return usage.number();
        }
        let mut buffer = [0_u8; STAT_BUFFER];
        let text = self.stat.read_at(&mut buffer, 0)?;
        let keys = [self.keys.rss, self.keys.file];
        let [anon, file] = find(text, keys).ok_or_else(|| self.stat.malformed("anon and file"))?;
        Ok(anon.saturating_add(file))
    }

    /// The parts of usage. They may be up to 2 s old: a reader makes the kernel gather its per-CPU
    /// counters only when more than 64 updates for every CPU are waiting, else a worker does it
    /// every 2 s (`mem_cgroup_flush_stats`, `mm/memcontrol.c`).
    pub fn stat(&self) -> Result<MemoryStat> {
        let mut buffer = [0_u8; STAT_BUFFER];
        let text = self.stat.read_at(&mut buffer, 0)?;
        let keys = &self.keys;
        let keys = [keys.inactive_file, keys.active_file, keys.rss, keys.shmem];
        let parts = "inactive and active file, rss and shmem";
        let [inactive_file, active_file, rss, shmem] =
            find(text, keys).ok_or_else(|| self.stat.malformed(parts))?;
        Ok(MemoryStat {
            inactive_file,
            active_file,
            rss,
            shmem,
        })
    }

    /// Page cache that the kernel could drop. As old as [`MemoryReader::stat`].
    pub fn page_cache(&self) -> Result<PageCache> {
        let mut buffer = [0_u8; STAT_BUFFER];
        let text = self.stat.read_at(&mut buffer, 0)?;
        page_cache(text, self.keys).ok_or_else(|| self.stat.malformed("file pages"))
    }

    /// The limit of this cgroup itself, in bytes; `None` when there is none. Those above it may be
    /// lower.
    pub fn limit(&self) -> Result<Option<u64>> {
        let Some(limit) = &self.limit else {
            return Ok(None);
        };
        let mut buffer = [0_u8; 32];
        let text = limit.read_at(&mut buffer, 0)?;
        value::parse_limit(text)
            .map(|limit| limit.bound().map(Bytes::as_u64))
            .ok_or_else(|| limit.malformed("a limit or max"))
    }
}

/// One cgroup's usage alone, open, to follow many. Otherwise as [`MemoryReader`].
#[derive(Debug)]
pub struct UsageReader(Reread);

impl UsageReader {
    /// Opens the file of a cgroup.
    pub fn open(tree: &Tree, cgroup: &CgroupPath) -> Result<Self> {
        let directory = tree.path(Controller::Memory, cgroup)?;
        let is_v2 = tree.hierarchies().is_on_v2(Controller::Memory);
        Ok(Self(Reread::open(&directory.join(usage_file(is_v2)))?))
    }

    /// Opens the file with the number of tasks of a cgroup and all below it (`pids.current`).
    pub fn processes(tree: &Tree, cgroup: &CgroupPath) -> Result<Self> {
        let directory = tree.path(Controller::Pids, cgroup)?;
        Ok(Self(Reread::open(&directory.join("pids.current"))?))
    }

    /// As [`MemoryReader::usage`].
    pub fn usage(&self) -> Result<u64> {
        self.0.number()
    }
}

/// The file with a cgroup's usage.
pub(crate) const fn usage_file(is_v2: bool) -> &'static str {
    if is_v2 { "memory.current" } else { V1_USAGE }
}

/// `None` when a field is missing.
fn page_cache(text: &[u8], keys: StatKeys) -> Option<PageCache> {
    let keys = [
        keys.inactive_file,
        keys.active_file,
        keys.dirty,
        keys.writeback,
    ];
    let [inactive, active, dirty, writeback] = find(text, keys)?;
    let all = inactive.saturating_add(active);
    Some(PageCache {
        all,
        clean: all.saturating_sub(dirty.saturating_add(writeback)),
    })
}

/// The values of these keys; `None` when one is missing.
fn find<const N: usize>(text: &[u8], keys: [&[u8]; N]) -> Option<[u64; N]> {
    let mut found = [None; N];
    // A line without its end was cut off by the buffer: its number is not to be trusted.
    for line in text
        .split_inclusive(|b| *b == b'\n')
        .filter(|l| l.ends_with(b"\n"))
    {
        let Some(space) = line.iter().position(|b| *b == b' ') else {
            continue;
        };
        let (key, value) = line.split_at(space);
        if let Some(position) = keys.iter().position(|wanted| *wanted == key) {
            found[position] = parse_u64(value);
        }
    }
    let mut values = [0; N];
    for (value, found) in values.iter_mut().zip(found) {
        *value = found?;
    }
    Some(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_cache_that_is_to_be_written_cannot_be_dropped() {
        let v1 = b"dirty 1\ntotal_dirty 20\ntotal_writeback 3\ntotal_inactive_file 100\n\
                   total_active_file 50\n";
        let clean = |text, keys| Some(page_cache(text, keys)?.clean);
        assert_eq!(clean(v1, V1_KEYS), Some(127));
        assert_eq!(page_cache(v1, V1_KEYS).unwrap().all, 150);
        let v2 = b"file_dirty 200\nfile_writeback 0\ninactive_file 100\nactive_file 50\n";
        assert_eq!(
            clean(v2, V2_KEYS),
            Some(0),
            "shared memory can be dirty as well"
        );
        assert_eq!(clean(b"inactive_file 1\nactive_file 1\n", V2_KEYS), None);
    }

    #[test]
    fn what_stays_without_page_cache_and_what_was_filled() {
        let stat = MemoryStat {
            inactive_file: 30,
            active_file: 20,
            rss: 40,
            shmem: 5,
        };
        assert_eq!((stat.working_set(100), stat.without_cache(100)), (70, 50));
        assert_eq!(stat.without_cache(40), 0);
        assert_eq!(stat.filled(), 45);
    }

    #[test]
    fn stat_fields_are_found_by_their_whole_name() {
        let v1 = b"cache 1\nrss 2\ninactive_file 3\ntotal_rss 4\ntotal_rss_huge 5\n\
                   total_inactive_file 6\ntotal_active_file 7\ntotal_cache 8\n";
        let all =
            |text: &[u8], keys: StatKeys| find(text, [keys.inactive_file, keys.rss, keys.file]);
        assert_eq!(all(v1, V1_KEYS), Some([6, 4, 8]));
        let v2 = b"anon 10\nfile 11\nanon_thp 12\ninactive_anon 13\ninactive_file 14\n";
        assert_eq!(all(v2, V2_KEYS), Some([14, 10, 11]));
        assert_eq!(all(b"", V2_KEYS), None);
        assert_eq!(
            all(b"anon 1\nfile 2\n", V2_KEYS),
            None,
            "missing is not zero"
        );
        let cut = b"anon 10\nfile 11\ninactive_file 14";
        assert_eq!(all(cut, V2_KEYS), None, "a cut number is not a number");
    }
}
