//! Accounts: the kernel side's counters per cgroup, and how it finds the right one.

use core::mem::{offset_of, size_of};

/// Buckets of a histogram of times. Bucket `i` counts those in `[2^i, 2^(i+1))` microseconds;
/// bucket 0 also everything shorter, the last (from 0.52 s) also everything longer.
pub const BUCKETS: usize = 20;

/// One cgroup's figures on one CPU: what a context switch counts, in the bytes of one cache line. A reader adds up the
/// CPUs and [`SharedAccount`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuAccount {
    /// See [`Account::cpu_ns`].
    pub cpu_ns: u64,
    /// See [`Account::wait_ns`].
    pub wait_ns: u64,
    /// See [`Account::switches`].
    pub switches: u64,
    /// See [`BUCKETS`]; a bucket that overflows adds 65,536 to [`SharedAccount::wait_carry`].
    pub wait_hist: [u16; BUCKETS],
}
const _: () = assert!(size_of::<CpuAccount>() == 64);

/// How long operations of disks took, from when they were handed to the topmost device until it had done them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyAccount {
    /// All of them, nanoseconds.
    pub total_ns: u64,
    /// See [`BUCKETS`].
    pub hist: [u64; BUCKETS],
}
const _: () = assert!(size_of::<LatencyAccount>() == 8 + BUCKETS * 8);

impl LatencyAccount {
    /// Adds what another has counted.
    pub fn accumulate(&mut self, of: &Self) {
        self.total_ns += of.total_ns;
        for (to, of) in self.hist.iter_mut().zip(of.hist) {
            *to += of;
        }
    }
}

/// What a cgroup's tasks asked of disks, and what was written back of theirs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskAccount {
    /// Bytes of reads.
    pub read_bytes: u64,
    /// Bytes of writes.
    pub written_bytes: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Reads that are done.
    pub read_latency: LatencyAccount,
    /// Writes that are done.
    pub write_latency: LatencyAccount,
}
const _: () = assert!(size_of::<DiskAccount>() == 4 * 8 + 2 * size_of::<LatencyAccount>());

impl DiskAccount {
    /// Adds what another has counted.
    pub fn accumulate(&mut self, of: &Self) {
        self.read_bytes += of.read_bytes;
        self.written_bytes += of.written_bytes;
        self.reads += of.reads;
        self.writes += of.writes;
        self.read_latency.accumulate(&of.read_latency);
        self.write_latency.accumulate(&of.write_latency);
    }
}

/// One cgroup's figures of what is rare, which all CPUs add to atomically.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedAccount {
    /// See [`Account::direct_stall_ns`].
    pub direct_stall_ns: u64,
    /// See [`Account::memcg_stall_ns`].
    pub memcg_stall_ns: u64,
    /// See [`Account::exits`].
    pub exits: u64,
    /// See [`Account::exits_failed`].
    pub exits_failed: u64,
    /// See [`Account::exits_signaled`].
    pub exits_signaled: u64,
    /// See [`Account::exits_oom`].
    pub exits_oom: u64,
    /// See [`Account::disk`].
    pub disk: DiskAccount,
    /// See [`Account::retransmits`].
    pub retransmits: u64,
    /// What the CPUs' buckets have no room for.
    pub wait_carry: [u64; BUCKETS],
}
const _: () = assert!(size_of::<SharedAccount>() == 7 * 8 + size_of::<DiskAccount>() + BUCKETS * 8);

/// What a bucket of [`CpuAccount::wait_hist`] has counted when it is 0 again.
pub const WAIT_CARRY: u64 = 1 << 16;

/// One cgroup's figures, the CPUs added up. All only ever grow until the account is handed to another cgroup.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// CPU time of tasks that have been switched out or flushed, nanoseconds.
    pub cpu_ns: u64,
    /// Time that these tasks had waited for a CPU before they ran, nanoseconds.
    pub wait_ns: u64,
    /// Switches to a task of this cgroup.
    pub switches: u64,
    /// Time inside direct reclaim for the node, nanoseconds.
    pub direct_stall_ns: u64,
    /// Time inside reclaim for a memory cgroup's limit, nanoseconds.
    pub memcg_stall_ns: u64,
    /// Processes (not threads) that ended.
    pub exits: u64,
    /// Of these, with a non-zero exit code.
    pub exits_failed: u64,
    /// Of these, by a signal.
    pub exits_signaled: u64,
    /// Of these, chosen by the kernel's OOM killer.
    pub exits_oom: u64,
    /// Disk.
    pub disk: DiskAccount,
    /// TCP segments that its sockets sent again.
    pub retransmits: u64,
    /// See [`BUCKETS`].
    pub wait_hist: [u64; BUCKETS],
}
const _: () = assert!(size_of::<Account>() == 10 * 8 + size_of::<DiskAccount>() + BUCKETS * 8);

impl Account {
    /// Adds what one CPU has counted.
    pub fn add_cpu(&mut self, of: &CpuAccount) {
        self.cpu_ns += of.cpu_ns;
        self.wait_ns += of.wait_ns;
        self.switches += of.switches;
        for (to, of) in self.wait_hist.iter_mut().zip(of.wait_hist) {
            *to += u64::from(of);
        }
    }

    /// Adds what the CPUs count together.
    pub fn add_shared(&mut self, of: &SharedAccount) {
        self.accumulate(&Self {
            direct_stall_ns: of.direct_stall_ns,
            memcg_stall_ns: of.memcg_stall_ns,
            exits: of.exits,
            exits_failed: of.exits_failed,
            exits_signaled: of.exits_signaled,
            exits_oom: of.exits_oom,
            disk: of.disk,
            retransmits: of.retransmits,
            wait_hist: of.wait_carry,
            ..Self::default()
        });
    }

    /// Adds what another account has counted.
    pub fn accumulate(&mut self, of: &Self) {
        self.cpu_ns += of.cpu_ns;
        self.wait_ns += of.wait_ns;
        self.switches += of.switches;
        self.direct_stall_ns += of.direct_stall_ns;
        self.memcg_stall_ns += of.memcg_stall_ns;
        self.exits += of.exits;
        self.exits_failed += of.exits_failed;
        self.exits_signaled += of.exits_signaled;
        self.exits_oom += of.exits_oom;
        self.disk.accumulate(&of.disk);
        self.retransmits += of.retransmits;
        for (to, of) in self.wait_hist.iter_mut().zip(of.wait_hist) {
            *to += of;
        }
    }
}

/// A bio that a device has not done yet.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PendingBio {
    /// `CLOCK_MONOTONIC` when it was handed to the device, nanoseconds.
    pub start_ns: u64,
    /// The key in the table of cgroups of the one that it counts to.
    pub cgroup: u64,
    /// 1 when it writes.
    pub writes: u64,
}
const _: () = assert!(size_of::<PendingBio>() == 24);

/// A cgroup in scope, keyed by its kernel id. The table names all parents, so that it
/// can be read when a cgroup that it names is gone.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tracked {
    /// Where its tasks count to; shared with an ancestor below [`crate::MAX_ACCOUNT_DEPTH`], and when
    /// no account was free.
    pub slot: u32,
    /// Levels below kubepods, which is 0.
    pub depth: u16,
    /// 1 when it was given `slot` to itself.
    pub own: u16,
    /// Its parent's kernel id.
    pub parent: u64,
}
const _: () = assert!(size_of::<Tracked>() == 16);

impl Tracked {
    /// The account that it was given to itself.
    pub const fn own_slot(&self) -> Option<u32> {
        if self.own == 0 { None } else { Some(self.slot) }
    }
}

/// One line of a CPU's cache from cgroup id to account.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CacheLine {
    /// The cgroup's kernel id; ids are never reused while the system runs.
    pub id: u64,
    /// [`crate::Control::generation`] when the line was filled; another value means it is stale.
    pub generation: u32,
    /// The account, or [`crate::NO_SLOT`] for a cgroup out of scope.
    pub slot: u32,
}
const _: () = assert!(size_of::<CacheLine>() == 16);

/// What the kernel has noted of a task since its birth.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Used {
    /// `sum_exec_runtime`: CPU time, nanoseconds.
    pub runtime: u64,
    /// `sched_info.run_delay`: time on run queues without a CPU, up to when it last got one or changed
    /// the queue, nanoseconds.
    pub waited: u64,
}
const _: () = assert!(size_of::<Used>() == 16);

impl Used {
    /// What was used after `earlier`.
    #[inline(always)]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            runtime: self.runtime.saturating_sub(earlier.runtime),
            waited: self.waited.saturating_sub(earlier.waited),
        }
    }
}

/// Up to where a task has been accounted, as far as that is remembered. What is zeroed remembers nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Remembered {
    /// [`Used::runtime`] plus 1; 0 for a task outside the scope.
    pub mark: u64,
    /// [`Used::waited`]; means nothing for a task outside the scope.
    pub waited: u64,
}
const _: () = assert!(size_of::<Remembered>() == 16);

impl Remembered {
    /// A task that has been accounted up to what it has used.
    pub const fn of(used: Used) -> Self {
        Self {
            mark: used.runtime + 1,
            waited: used.waited,
        }
    }

    /// Up to where; `None` for a task outside the scope.
    pub const fn used(self) -> Option<Used> {
        match self.mark.checked_sub(1) {
            Some(runtime) => Some(Used {
                runtime,
                waited: self.waited,
            }),
            None => None,
        }
    }
}

/// A place of the table of what is remembered of tasks.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TaskPlace {
    /// The `task_struct`'s address; 0 for a free place, which remembers nothing.
    pub task: u64,
    /// What is remembered of it.
    pub known: Remembered,
}
const _: () = assert!(size_of::<TaskPlace>() == 24);

impl TaskPlace {
    /// There are 2 to this power.
    pub const BITS: u32 = 14;
}

/// The running task was moved to another account: what it used up to here counts to `slot`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Split {
    /// The account before the move, or [`crate::NO_SLOT`].
    pub slot: u32,
    /// Padding.
    pub pad: u32,
    /// By the task, at the move.
    pub used: Used,
}
const _: () = assert!(size_of::<Split>() == 24);

/// What one CPU is doing.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CpuState {
    /// Low half: the account of the running task; high half: counts switches, so that another CPU
    /// can change the account by compare-and-swap for this very task only.
    pub current: u64,
    /// Up to where the running task has been accounted, unless the task remembers that itself.
    pub accounted: Used,
    /// The running `task_struct`'s address.
    pub task: u64,
    /// 1 when the running task itself remembers up to where it has been accounted, or another
    /// program's value is stored with it.
    pub remembered: u64,
    /// Run-queue clock of the last level check, nanoseconds.
    pub last_check: u64,
    /// `CLOCK_MONOTONIC` of the last wake-up of the telemetry reader, nanoseconds.
    pub last_wake: u64,
    /// Low half: how many of `splits` are in use; high half: the switch they belong to, as in
    /// `current`.
    pub split_count: u64,
    /// Moves of the running task since it was switched to, oldest first.
    pub splits: [Split; CpuState::MAX_SPLITS],
    /// Direct-mapped by the low bits of the cgroup id.
    pub cache: [CacheLine; CpuState::CACHE_LINES],
}
const CACHE_OFFSET: usize = 8 * 8 + 24 * CpuState::MAX_SPLITS;
const _: () = assert!(size_of::<CpuState>() == CACHE_OFFSET + 16 * CpuState::CACHE_LINES);
const _: () = assert!(offset_of!(CpuState, cache) == CACHE_OFFSET);

impl CpuState {
    /// Lines in [`CpuState::cache`]; a power of two.
    pub const CACHE_LINES: usize = 32;

    /// Moves of a running task that are accounted one by one; after more, its time counts to where it was before the
    /// last of these.
    pub const MAX_SPLITS: usize = 4;

    /// The account of the running task.
    pub const fn slot(current: u64) -> u32 {
        current as u32
    }
}
