//! The types that cross the boundary between the kernel programs and the agent.
//!
//! Plain `repr(C)` data without padding that is not named, so that a value is the same bytes on both
//! sides. Sizes are asserted: a change that moves a field is a change of the boundary and shows up
//! as a compile error here.
#![no_std]

mod account;
mod cast;
mod event;
mod layout;
mod level;
mod wait;
mod walk;

pub use account::{
    Account, BUCKETS, CacheLine, CpuAccount, CpuState, DiskAccount, LatencyAccount, PendingBio,
    Remembered, SharedAccount, Split, TaskPlace, Tracked, Used, WAIT_CARRY,
};
pub use cast::{CAST_CALL, Instruction, RECAST_CALL};
pub use event::{
    CgroupEvent, Crossing, EventHeader, EventKind, ExitEvent, NAME_LEN, NearLimitEvent, OomEvent,
    TASK_COMM_LEN,
};
pub use layout::Figure;
pub use level::{Control, DropCounter, Level, LevelState, Source};
pub use wait::{LongWait, Objective};
pub use walk::{
    CgroupRecord, MemoryItem, NO_ITEM, PRESSURES, Pressed, WalkEnd, WalkPlace, WalkPlan, part,
    walk_places,
};

/// A cgroup this deep below kubepods (which is 0) still has an account of its own; deeper ones count
/// to their nearest ancestor that has one. 3 reaches the containers of Burstable and BestEffort pods;
/// Guaranteed pods, which have no tier above them, reach one nested level.
pub const MAX_ACCOUNT_DEPTH: u32 = 3;

/// How many ends of processes are remembered, so that none is counted twice.
pub const ENDED_ENTRIES: usize = 8192;

/// Version of what the maps that outlive the agent mean: [`CpuAccount`], [`SharedAccount`], [`Tracked`] and how the agent adds
/// up what is gone. To be raised with each change of meaning; sizes are compared besides.
pub const PINNED_LAYOUT: u32 = 4;

/// The account that means "not accounted".
pub const NO_SLOT: u32 = 0;
