//! Events on the two rings.

use core::mem::size_of;

/// Longest cgroup name carried, without its terminator; longer ones are cut. The longest that a runtime makes is 85
/// (`cri-containerd-` + 64 hex digits + `.scope`).
pub const NAME_LEN: usize = 128;

/// The kernel's `TASK_COMM_LEN`.
pub const TASK_COMM_LEN: usize = 16;

/// What a telemetry record is.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// [`CgroupEvent`]: created.
    Mkdir = 1,
    /// [`CgroupEvent`]: removed; tasks that are exiting may still count to it.
    Rmdir = 2,
    /// [`CgroupEvent`]: nothing can count to it any more.
    Release = 3,
    /// [`ExitEvent`].
    Exit = 4,
    /// [`OomEvent`].
    Oom = 5,
    /// [`NearLimitEvent`].
    NearLimit = 6,
}

impl EventKind {
    /// The kind with this number, if there is one.
    pub const fn from_u32(n: u32) -> Option<Self> {
        Some(match n {
            1 => Self::Mkdir,
            2 => Self::Rmdir,
            3 => Self::Release,
            4 => Self::Exit,
            5 => Self::Oom,
            6 => Self::NearLimit,
            _ => return None,
        })
    }
}

/// Starts every telemetry record.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventHeader {
    /// An [`EventKind`].
    pub kind: u32,
    /// The account concerned, or [`crate::NO_SLOT`].
    pub slot: u32,
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub time_ns: u64,
    /// Kernel id of the cgroup concerned; 0 when the kernel did not hand it over.
    pub cgroup: u64,
}
const _: () = assert!(size_of::<EventHeader>() == 24);

/// A cgroup in scope appeared or went away.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CgroupEvent {
    /// Kind, account, time and id.
    pub header: EventHeader,
    /// Kernel id of its parent.
    pub parent: u64,
    /// Levels below kubepods, which is 0.
    pub depth: u32,
    /// Bytes of [`CgroupEvent::name`], without a terminator; [`NAME_LEN`] may mean that it was cut.
    pub name_len: u32,
    /// Its directory's name.
    pub name: [u8; NAME_LEN],
}
const _: () = assert!(size_of::<CgroupEvent>() == 24 + 16 + NAME_LEN);

/// A process ended.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ExitEvent {
    /// Kind, account, time and id.
    pub header: EventHeader,
    /// Process id in the root namespace.
    pub tgid: u32,
    /// As `wait(2)` reports it: exit code in bits 8 to 15, or the signal in bits 0 to 6.
    pub status: u32,
    /// Since the process started, nanoseconds.
    pub run_time_ns: u64,
    /// CPU time of the process as far as the kernel has added it up, nanoseconds.
    pub cpu_ns: u64,
    /// Largest resident set, pages.
    pub max_rss_pages: u64,
    /// `comm` of the process's leader.
    pub comm: [u8; TASK_COMM_LEN],
    /// 1 when the OOM killer had chosen it.
    pub oom: u32,
    /// Unused.
    pub pad: u32,
}
const _: () = assert!(size_of::<ExitEvent>() == 24 + 32 + TASK_COMM_LEN + 8);

/// The OOM killer chose a process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OomEvent {
    /// Kind, account, time and id; account and id only where the kernel hands over the task.
    pub header: EventHeader,
    /// Process id in the root namespace.
    pub tgid: u32,
    /// Unused.
    pub pad: u32,
}
const _: () = assert!(size_of::<OomEvent>() == 32);

/// A memory cgroup's usage has come near its own limit for the first time.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NearLimitEvent {
    /// Kind and time; account and id of the task by which it was seen, which is in the cgroup or below it.
    pub header: EventHeader,
    /// Kernel id of the cgroup in the memory controller's hierarchy.
    pub memory_cgroup: u64,
    /// Usage seen, pages; reads high by up to 64 pages per CPU (the kernel's charge stock).
    pub usage_pages: u64,
    /// The limit, pages.
    pub limit_pages: u64,
    /// Which of [`NearLimitEvent::PERCENT`] usage has reached.
    pub percent: u32,
    /// Unused.
    pub pad: u32,
}
const _: () = assert!(size_of::<NearLimitEvent>() == 24 + 32);

impl NearLimitEvent {
    /// Parts of the limit that are reported, percent. A cgroup that is first seen above the second skips the first.
    pub const PERCENT: [u32; 2] = [80, 95];

    /// How many memory cgroups are remembered to have been reported.
    pub const REMEMBERED: usize = 4096;
}

/// A record of the decisions ring: an armed level was reached.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Crossing {
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub time_ns: u64,
    /// Kernel id of the cgroup in the memory controller's hierarchy.
    pub cgroup: u64,
    /// Usage seen, pages; reads high by up to 64 pages per CPU (the kernel's charge stock).
    pub usage_pages: u64,
    /// The level, pages.
    pub level_pages: u64,
    /// A [`crate::Source`].
    pub source: u32,
    /// Unused.
    pub pad: u32,
}
const _: () = assert!(size_of::<Crossing>() == 40);
