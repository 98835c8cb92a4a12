//! One pass over the cgroups below kubepods: what the program writes for each, and what it is given.

use core::mem::size_of;

/// A figure of a memory cgroup's own statistics (`struct memcg_vmstats`), of the cgroup and all below it.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryItem {
    /// Anonymous memory, pages.
    Anon = 0,
    /// Page cache, pages.
    File = 1,
    /// Shared memory and tmpfs, pages; part of [`MemoryItem::File`].
    Shmem = 2,
    /// Page cache on the inactive list, pages.
    InactiveFile = 3,
    /// Page cache on the active list, pages.
    ActiveFile = 4,
    /// The kernel's own memory, pages.
    Kernel = 5,
    /// Anonymous pages read back soon after they were reclaimed.
    RefaultAnon = 6,
    /// Pages of files read back soon after they were reclaimed.
    RefaultFile = 7,
    /// Page faults.
    Faults = 8,
    /// Page faults that waited for a disk.
    MajorFaults = 9,
}

impl MemoryItem {
    /// How many there are.
    pub const COUNT: usize = 10;
}

/// The place of an item that this kernel does not have.
pub const NO_ITEM: u32 = u32::MAX;

/// Handed over before a pass.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkPlan {
    /// The depth of the cgroup that the pass starts with; the program writes it.
    pub root_level: u32,
    /// Places of records that the pass has used; the program counts.
    pub used: u32,
    /// Cgroups that lie more levels below the first get no record.
    pub depth: u32,
    /// How many records there are.
    pub places: u32,
    /// The first [`WalkPlace`] of this hierarchy; the program writes it.
    pub first: u32,
    /// Bits of [`part`] that the topmost cgroup has, and others can have; the program writes it.
    pub parts: u32,
}
const _: () = assert!(size_of::<WalkPlan>() == 24);

/// What a pass remembers of the cgroup at a place for the next one. Hierarchies with memory and without have places of
/// their own.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WalkPlace {
    /// `cgroup.self.serial_nr` and 1, which no other cgroup has while the system runs; 0 for none.
    pub serial: u64,
    /// See [`CgroupRecord::id`].
    pub id: u64,
    /// See [`CgroupRecord::level`].
    pub level: u32,
    /// Padding.
    pub pad: u32,
    /// Address of the cgroup, which may be gone; nothing that is read there is used.
    pub cgroup: u64,
    /// Address of its `mem_cgroup`, as above.
    pub memory: u64,
    /// Address of that one's `memcg_vmstats`, as above.
    pub statistics: u64,
    /// Address of its `task_group`, as above.
    pub group: u64,
    /// Address of its `psi_group`, as above.
    pub pressure: u64,
}
const _: () = assert!(size_of::<WalkPlace>() == 64);

/// How many places there are for so many records.
pub const fn walk_places(records: u32) -> u32 {
    records.saturating_mul(2)
}

/// What a cgroup's record has.
pub mod part {
    /// Usage, peak, limit and its hits.
    pub const MEMORY: u32 = 1;
    /// [`super::CgroupRecord::items`].
    pub const ITEMS: u32 = 2;
    /// The number of tasks.
    pub const PIDS: u32 = 4;
    /// CPU bandwidth.
    pub const BANDWIDTH: u32 = 8;
    /// [`super::CgroupRecord::pressure_ns`]; not where the kernel runs without PSI, and where `cgroup.pressure` is 0.
    pub const PRESSURE: u32 = 16;
    /// [`super::CgroupRecord::refused_forks`] by the limits of the cgroup and of those below it (v2, Linux 6.11).
    pub const FORKS_OF_LIMITS: u32 = 32;
    /// [`super::CgroupRecord::refused_forks`] of tasks directly in the cgroup, whichever limit above refused them.
    pub const FORKS_OF_TASKS: u32 = 64;
}

/// A resource that tasks wait for.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressed {
    /// Disks.
    Io = 0,
    /// Memory: reclaim, and pages that are read back.
    Memory = 1,
    /// A CPU, also one that a quota keeps from them.
    Cpu = 2,
}

/// The times in [`CgroupRecord::pressure_ns`]: `some` and `full` of each [`Pressed`], in the kernel's order
/// (`enum psi_states`).
pub const PRESSURES: usize = 6;

/// One cgroup.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CgroupRecord {
    /// The pass that wrote it; another number than the pass's own means that it is older.
    pub session: u64,
    /// Kernel id of the cgroup in the hierarchy that the pass was in.
    pub id: u64,
    /// Bits of [`part`].
    pub parts: u32,
    /// Levels below the hierarchy's root.
    pub level: u32,
    /// Usage of the memory controller, pages.
    pub usage_pages: u64,
    /// Highest usage since the cgroup was made or the kernel's own mark was reset, pages.
    pub peak_pages: u64,
    /// The hard limit, pages; `i64::MAX` divided by the page size for none.
    pub limit_pages: u64,
    /// How often usage reached the limit (v1; v2 counts in `memory.events`).
    pub limit_hits: u64,
    /// By [`MemoryItem`]; 0 for an item that this kernel does not have.
    pub items: [u64; MemoryItem::COUNT],
    /// Tasks of the cgroup and all below it.
    pub pids: u64,
    /// Forks that a limit on tasks refused, as the bit of [`part`] says.
    pub refused_forks: u64,
    /// Periods of the CPU quota in which its tasks ran.
    pub periods: u64,
    /// Of these the periods in which they were throttled.
    pub throttled_periods: u64,
    /// How long they were throttled, summed over CPUs, nanoseconds.
    pub throttled_ns: u64,
    /// Time in which some (even) and all (odd) tasks waited, by [`Pressed`], nanoseconds; as old as the kernel's last
    /// average (2 s while anything waits).
    pub pressure_ns: [u64; PRESSURES],
}
const _: () = assert!(size_of::<CgroupRecord>() == 24 + 32 + 8 * MemoryItem::COUNT + 40 + 48);

impl CgroupRecord {
    /// Time in which some and in which all tasks waited for the resource, nanoseconds.
    pub const fn waited(&self, of: Pressed) -> [u64; 2] {
        let some = of as usize * 2;
        [self.pressure_ns[some], self.pressure_ns[some + 1]]
    }
}

/// What a pass writes at its end.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkEnd {
    /// The pass.
    pub session: u64,
    /// Places of records used; more than there are where the last cgroups found no room.
    pub places: u64,
}
const _: () = assert!(size_of::<WalkEnd>() == 16);
