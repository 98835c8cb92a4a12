//! Waits for a CPU that are longer than they may be.

use core::mem::size_of;

/// How long the tasks of an account may wait for a CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Objective {
    /// A wait of this length or longer is reported, nanoseconds; 0 for none.
    pub wait_ns: u64,
    /// `CLOCK_MONOTONIC` of the last report, nanoseconds.
    pub reported_ns: u64,
}
const _: () = assert!(size_of::<Objective>() == 16);

impl Objective {
    /// Between two reports of one account at least, nanoseconds.
    pub const WINDOW_NS: u64 = 2_000_000;

    /// The shortest objective: context switches look at no shorter wait, nanoseconds.
    pub const LEAST_NS: u64 = 100_000;
}

/// A record of the ring of waits: a task has waited for longer than its account's objective.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongWait {
    /// `CLOCK_MONOTONIC` when the task got its CPU, nanoseconds.
    pub time_ns: u64,
    /// How long it had waited on this CPU's run queue, nanoseconds.
    pub wait_ns: u64,
    /// The account.
    pub slot: u32,
    /// Unused.
    pub pad: u32,
}
const _: () = assert!(size_of::<LongWait>() == 24);
