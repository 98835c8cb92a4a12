//! Figures of every cgroup from one pass of the kernel's iterator, by path.
//!
//! Controllers may be on hierarchies of their own (v1): each such hierarchy has a pass, and a cgroup an id in each.

mod compare;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use podwarden_abi::{CgroupRecord, MemoryItem, part};
use podwarden_cgroup::{CgroupPath, Controller, MemoryReader, MemoryStat, Throttling, Tree};

use self::compare::compare;
use crate::{
    base::error,
    kernel::walk::{Gathered, WalkError, Walker},
};

/// Passes between two comparisons with the kernel's file.
const COMPARE_EVERY: u32 = 60;

/// Passes between two walks of the hierarchy of the pids controller, where that is another than memory's: the number of
/// tasks and the forks that were refused may be as old.
const TASKS_EVERY: u32 = 5;

/// Passes in a row that fail, or disagree with the kernel's file, before files are read for good.
const TOLERATED: u32 = 3;

/// What one pass took and found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PassStats {
    /// Records of cgroups.
    pub cgroups: u64,
    /// Cgroups without room for a record; their files are read.
    pub lost: u64,
    pub duration: Duration,
}

/// The records of one hierarchy.
#[derive(Debug, Default)]
struct Hierarchy {
    records: Gathered,
}

/// Where the records of one cgroup are; its reader keeps it for the next pass.
#[derive(Debug, Default)]
pub struct Places {
    path: CgroupPath,
    memory: Option<Known>,
    /// Where the CPU controller is on another hierarchy than memory.
    cpu: Option<Known>,
    /// Where the pids controller is.
    pids: Option<Known>,
}

impl Places {
    /// Begins anew where it was of another cgroup.
    fn of(&mut self, path: &CgroupPath) -> &mut Self {
        if self.path != *path {
            *self = Self {
                path: path.to_owned(),
                ..Self::default()
            };
        }
        self
    }
}

/// A cgroup in one hierarchy; one that was made anew has another id.
#[derive(Debug, Clone, Copy)]
struct Known {
    id: u64,
    /// Where its record was in the last pass.
    place: u32,
}

impl Hierarchy {
    fn walk(
        &mut self,
        walker: &Walker,
        root: &Path,
        took: &mut PassStats,
    ) -> Result<(), WalkError> {
        let found = self.records.walk(walker, root)?;
        took.cgroups += found.cgroups;
        took.lost += found.lost;
        Ok(())
    }

    /// The record of a cgroup; `id` looks its id up where `known` does not have it.
    fn record(
        &mut self,
        known: &mut Option<Known>,
        id: impl FnOnce() -> Option<u64>,
    ) -> Option<&CgroupRecord> {
        if self.records.is_empty() {
            return None;
        }
        let mut at = match known.take() {
            Some(known) => known,
            None => Known {
                id: id()?,
                place: 0,
            },
        };
        let found = self.records.find(at.id, &mut at.place)?;
        *known = Some(at);
        Some(found)
    }
}

#[derive(Debug, Default)]
pub struct Walked {
    memory: Hierarchy,
    /// Of the CPU controller, where it is on another hierarchy than memory.
    cpu: Option<Hierarchy>,
    /// Of the pids controller, where it is on another hierarchy than memory.
    pids: Option<Hierarchy>,
    /// Whose reading makes the kernel add up what its CPUs have counted.
    root: Option<MemoryReader>,
    passes: u32,
    failures: u32,
    given_up: bool,
    last: Option<PassStats>,
    /// Whether this kernel's records have page faults.
    faults: bool,
}

/// What the last pass says of pressure.
#[derive(Debug, Clone, Copy)]
pub enum WalkedPressure<'a> {
    /// The record has it.
    Counted(&'a CgroupRecord),
    /// The kernel does not count it for this cgroup.
    NotCounted,
    /// The cgroup has no record.
    NoRecord,
}

/// What a record says of memory.
#[derive(Debug, Clone, Copy)]
pub struct WalkedMemory<'a> {
    /// The record; it has memory and its items.
    pub record: &'a CgroupRecord,
    /// Its page faults are known.
    pub faults: bool,
}

impl Walked {
    /// Reads everything below `root` in one pass. The message says why it will not be tried again.
    pub fn pass(&mut self, tree: &Tree, walker: &Walker, root: &CgroupPath) -> Option<String> {
        self.forget();
        if self.given_up {
            return None;
        }
        match self.try_pass(tree, walker, root) {
            Ok(stats) => {
                self.failures = 0;
                self.last = Some(stats);
                None
            }
            Err(why) => {
                self.forget();
                self.root = None;
                self.failures += 1;
                tracing::debug!(why, "a pass over the cgroups");
                if self.failures >= TOLERATED {
                    self.give_up();
                }
                self.given_up.then(|| {
                    format!(
                        "memory and throttling of pods are read file by file from now on ({why})"
                    )
                })
            }
        }
    }

    /// Drops what the last pass found, so that files are read.
    fn forget(&mut self) {
        self.memory.records.clear();
        if let Some(cpu) = &mut self.cpu {
            cpu.records.clear();
        }
        self.last = None;
    }

    /// Drops what no pass refreshes any more.
    fn give_up(&mut self) {
        self.given_up = true;
        self.pids = None;
    }

    fn try_pass(
        &mut self,
        tree: &Tree,
        walker: &Walker,
        root: &CgroupPath,
    ) -> Result<PassStats, String> {
        let start = Instant::now();
        self.faults = walker.has(MemoryItem::Faults);
        let path = |controller| tree.path(controller, root);
        let directory = path(Controller::Memory).map_err(|e| error::chain(&e))?;
        let mut stats = PassStats::default();
        let before = self.file(tree, root)?;
        let walked = self.memory.walk(walker, &directory, &mut stats);
        walked.map_err(|e| error::chain(&e))?;
        if self.passes.is_multiple_of(COMPARE_EVERY) || self.failures > 0 {
            let after = self.file(tree, root)?;
            let id = tree.memory_id(root).ok();
            let record = self.memory.record(&mut None, || id);
            compare(
                record.ok_or("no record of the topmost cgroup")?,
                before,
                after,
            )?;
        }
        if let Ok(cpu) = path(Controller::Cpu)
            && cpu != directory
        {
            let hierarchy = self.cpu.get_or_insert_default();
            let walked = hierarchy.walk(walker, &cpu, &mut stats);
            walked.map_err(|e| error::chain(&e))?;
        }
        if self.passes.is_multiple_of(TASKS_EVERY)
            && let Ok(pids) = path(Controller::Pids)
            && pids != directory
        {
            let hierarchy = self.pids.get_or_insert_default();
            // Not each pass reads these: they do not count as its cgroups.
            let mut took = PassStats::default();
            let walked = hierarchy.walk(walker, &pids, &mut took);
            walked.map_err(|e| error::chain(&e))?;
            stats.lost += took.lost;
        }
        self.passes = self.passes.wrapping_add(1);
        stats.duration = start.elapsed();
        Ok(stats)
    }

    /// The topmost cgroup's statistics by its file.
    fn file(&mut self, tree: &Tree, root: &CgroupPath) -> Result<MemoryStat, String> {
        let reader = match self.root.take() {
            Some(reader) => reader,
            None => MemoryReader::open(tree, root).map_err(|e| error::chain(&e))?,
        };
        let stat = reader.stat().map_err(|e| error::chain(&e))?;
        self.root = Some(reader);
        Ok(stat)
    }

    /// What the last pass took and found; `None` where files are read.
    pub fn last(&self) -> Option<PassStats> {
        self.last
    }

    /// A cgroup's record in the memory controller's hierarchy.
    pub fn memory(
        &mut self,
        tree: &Tree,
        path: &CgroupPath,
        places: &mut Places,
    ) -> Option<WalkedMemory<'_>> {
        let known = &mut places.of(path).memory;
        let record = self.memory.record(known, || tree.memory_id(path).ok())?;
        let whole = part::MEMORY | part::ITEMS;
        (record.parts & whole == whole).then_some(WalkedMemory {
            record,
            faults: self.faults,
        })
    }

    /// How often a cgroup reached its CPU quota.
    pub fn throttling(
        &mut self,
        tree: &Tree,
        path: &CgroupPath,
        places: &mut Places,
    ) -> Option<Throttling> {
        let places = places.of(path);
        let (hierarchy, known) = match &mut self.cpu {
            Some(cpu) => (cpu, &mut places.cpu),
            None => (&mut self.memory, &mut places.memory),
        };
        let record = hierarchy.record(known, || tree.cpu_id(path).ok())?;
        (record.parts & part::BANDWIDTH != 0).then_some(Throttling {
            periods: record.periods,
            throttled_periods: record.throttled_periods,
            throttled_nanos: record.throttled_ns,
        })
    }

    /// The tasks of a cgroup and of all below it.
    pub fn tasks(&mut self, tree: &Tree, path: &CgroupPath, places: &mut Places) -> Option<u64> {
        let record = self.pids(tree, path, places)?;
        (record.parts & part::PIDS != 0).then_some(record.pids)
    }

    /// Forks that were refused, see [`Tree::refused_forks`].
    pub fn refused_forks(
        &mut self,
        tree: &Tree,
        path: &CgroupPath,
        places: &mut Places,
    ) -> Option<u64> {
        let record = self.pids(tree, path, places)?;
        let counted = part::FORKS_OF_LIMITS | part::FORKS_OF_TASKS;
        (record.parts & counted != 0).then_some(record.refused_forks)
    }

    /// A cgroup's record in the pids controller's hierarchy.
    fn pids(
        &mut self,
        tree: &Tree,
        path: &CgroupPath,
        places: &mut Places,
    ) -> Option<&CgroupRecord> {
        let places = places.of(path);
        let (hierarchy, known) = match &mut self.pids {
            Some(pids) => (pids, &mut places.pids),
            None => (&mut self.memory, &mut places.memory),
        };
        hierarchy.record(known, || tree.pids_id(path).ok())
    }

    /// How long the tasks of a cgroup waited, where memory is on v2, see [`Tree::has_pressure`].
    pub fn pressure(
        &mut self,
        tree: &Tree,
        path: &CgroupPath,
        places: &mut Places,
    ) -> WalkedPressure<'_> {
        let known = &mut places.of(path).memory;
        let record = self.memory.record(known, || tree.memory_id(path).ok());
        record.map_or(WalkedPressure::NoRecord, |record| {
            match record.parts & part::PRESSURE {
                0 => WalkedPressure::NotCounted,
                _ => WalkedPressure::Counted(record),
            }
        })
    }
}

/// Bytes of pages.
pub fn bytes(pages: u64) -> u64 {
    pages.saturating_mul(rustix::param::page_size() as u64)
}

/// An item of a record, bytes.
pub fn item(record: &CgroupRecord, item: MemoryItem) -> u64 {
    bytes(record.items[item as usize])
}

/// A cgroup's own limit, bytes; `None` for none (`PAGE_COUNTER_MAX` of include/linux/page_counter.h).
pub fn limit(record: &CgroupRecord) -> Option<u64> {
    let none = i64::MAX as u64 / rustix::param::page_size() as u64;
    (record.limit_pages < none).then(|| bytes(record.limit_pages))
}

/// The record's statistics as the file has them.
pub fn stat(record: &CgroupRecord) -> MemoryStat {
    MemoryStat {
        inactive_file: item(record, MemoryItem::InactiveFile),
        active_file: item(record, MemoryItem::ActiveFile),
        rss: item(record, MemoryItem::Anon),
        shmem: item(record, MemoryItem::Shmem),
    }
}

#[cfg(test)]
mod tests;
