//! Armed levels, switches that the agent sets, and loss counters.

use core::mem::size_of;

/// A level on one memory cgroup, keyed by the cgroup's id in the memory controller's hierarchy.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Level {
    /// Usage at which to report, pages.
    pub level_pages: u64,
    /// A [`LevelState`].
    pub state: u64,
    /// Address of its `page_counter` once a program has seen it; 0 before.
    pub counter: u64,
}
const _: () = assert!(size_of::<Level>() == 24);

impl Level {
    /// The bit that stands for the cgroup with this id where the programs are told which cgroups may have a level.
    pub const fn bit(id: u64) -> u64 {
        1 << (id % 64)
    }
}

/// Where a [`Level`] stands.
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelState {
    /// Reported, or never armed: silent.
    Silent = 0,
    /// The next program that sees usage at the level reports it, once.
    Armed = 1,
}

/// What saw usage at a level.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The charge itself (`page_counter_try_charge`).
    Charge = 1,
    /// A context switch of a task below the cgroup.
    Switch = 2,
}

/// Set by the agent, read by every program.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Control {
    /// Changes whenever the agent adds cgroups by hand; invalidates the CPUs' caches.
    pub generation: u32,
    /// Levels below the hierarchy's root of the deepest cgroups with an entry in the table of cgroups in scope: those
    /// below count to them. 0 where it is not known: every cgroup in scope has an entry.
    pub deepest_level: u32,
}
const _: () = assert!(size_of::<Control>() == 8);

impl Control {
    /// The bits of [`Control::deepest_level`].
    pub const LEVELS_MASK: u32 = 0xff;
}

/// Indices of the per-CPU loss counters.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropCounter {
    /// Crossings that found the decisions ring full.
    Decisions = 0,
    /// Records that found the telemetry ring full.
    Telemetry = 1,
    /// Cgroups that found no free account, or no room in the table.
    Accounts = 2,
    /// Reclaims that found no room in the table.
    Stalls = 3,
    /// Context switches that the kernel did not trace; their CPU time is found by other means.
    Untraced = 4,
    /// Waits that found their ring full.
    Waits = 5,
}

impl DropCounter {
    /// How many there are.
    pub const COUNT: u32 = 6;
}
