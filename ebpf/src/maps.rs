//! The maps; every one is bounded, and the agent resizes those whose comment says so.
//!
//! [`ACCOUNTS`], [`SHARED`], [`TRACKED`] and [`ENDED`] may be those of an agent before this one. Programs never outlive
//! theirs, so nothing else is kept.

use aya_ebpf::{
    btf_maps::{Array, HashMap, LruHashMap, PerCpuArray, Queue, RingBuf},
    macros::btf_map,
};
use podwarden_abi::{
    CgroupRecord, Control, CpuAccount, CpuState, DropCounter, ENDED_ENTRIES, Level, NearLimitEvent,
    Objective, PendingBio, Remembered, SharedAccount, TaskPlace, Tracked, WalkPlace, WalkPlan,
};

use crate::task_storage::TaskStorage;

/// Figures by account; resized by the agent. Index 0 is "not accounted" and stays empty.
#[btf_map]
pub(crate) static ACCOUNTS: PerCpuArray<CpuAccount, 4096> = PerCpuArray::new();

/// What of the figures is rare, by account; resized with [`ACCOUNTS`].
#[btf_map]
pub(crate) static SHARED: Array<SharedAccount, 4096> = Array::new();

/// Free accounts, which the agent fills and refills; resized with [`ACCOUNTS`].
#[btf_map]
pub(crate) static FREE_SLOTS: Queue<u32, 4096> = Queue::new();

/// Cgroups in scope, by kernel id; resized by the agent.
#[btf_map]
pub(crate) static TRACKED: HashMap<u64, Tracked, 16384> = HashMap::new();

/// What each CPU is doing.
#[btf_map]
pub(crate) static CPUS: PerCpuArray<CpuState, 1> = PerCpuArray::new();

/// What is remembered of tasks, by their addresses; see `remembered`.
#[btf_map]
pub(crate) static TASK_PLACES: Array<TaskPlace, { 1 << TaskPlace::BITS }> = Array::new();

/// The same of tasks whose place another one has.
#[btf_map]
pub(crate) static TASKS: TaskStorage<Remembered> = TaskStorage::new();

/// The agent's switches.
#[btf_map]
pub(crate) static CONTROL: Array<Control, 1> = Array::new();

/// Armed levels, by the id of the memory controller's cgroup.
#[btf_map]
pub(crate) static LEVELS: HashMap<u64, Level, 64> = HashMap::new();

/// [`Level::bit`]s of cgroups with a level. 0 switches the checks off; a cgroup without its bit is not looked up.
#[btf_map]
pub(crate) static ARMED: Array<u64, 1> = Array::new();

/// From the address of a `page_counter` to its key in [`LEVELS`].
#[btf_map]
pub(crate) static COUNTERS: HashMap<u64, u64, 64> = HashMap::new();

/// Reclaims under way: (thread id, kind) to the `CLOCK_MONOTONIC` of their begin.
#[btf_map]
pub(crate) static STALLS: HashMap<u64, u64, 8192> = HashMap::new();

/// Processes that the OOM killer has chosen, and when; by process id. Where the kernel does not say which task it is
/// (before 6.8), those outside the scope are here, too, and go when there is no room for another.
#[btf_map]
pub(crate) static OOM_VICTIMS: LruHashMap<u32, u64, 1024> = LruHashMap::new();

/// Processes whose end has been reported, by start time and process id: both reports of one are
/// milliseconds apart.
#[btf_map]
pub(crate) static ENDED: LruHashMap<[u64; 2], u8, ENDED_ENTRIES> = LruHashMap::new();

/// Memory cgroups that came near their limit, by kernel id: the limit, and in the low 8 bits the part of it that has
/// been reported.
#[btf_map]
pub(crate) static NEAR: LruHashMap<u64, u64, { NearLimitEvent::REMEMBERED }> = LruHashMap::new();

/// Bios that devices have not done yet, by address; resized by the agent. One whose end is missed goes when there is no
/// room for another, or when another bio is handed to a device at its address.
#[btf_map]
pub(crate) static BIOS: LruHashMap<u64, PendingBio, 4096> = LruHashMap::new();

/// What was lost, by [`DropCounter`].
#[btf_map]
pub(crate) static DROPS: PerCpuArray<u64, { DropCounter::COUNT as usize }> = PerCpuArray::new();

/// Crossings of armed levels; its reader is woken by every record.
#[btf_map]
pub(crate) static DECISIONS: RingBuf<u64, 65536> = RingBuf::new();

/// How long the tasks of an account may wait; resized with [`ACCOUNTS`].
#[btf_map]
pub(crate) static OBJECTIVES: Array<Objective, 4096> = Array::new();

/// Waits that were longer; the reader is woken by every record.
#[btf_map]
pub(crate) static WAITS: RingBuf<u64, 65536> = RingBuf::new();

/// Everything else; resized by the agent. See `telemetry` for when its reader is woken.
#[btf_map]
pub(crate) static TELEMETRY: RingBuf<u64, 1048576> = RingBuf::new();

/// `BPF_F_MMAPABLE` of include/uapi/linux/bpf.h.
const MAPPED: usize = aya_ebpf::bindings::BPF_F_MMAPABLE as usize;

/// The records of the last pass over the cgroups, which the agent reads in place; resized by the agent.
#[btf_map]
pub(crate) static RECORDS: Array<CgroupRecord, 4096, MAPPED> = Array::new();

/// What a pass remembers for the next one; resized by the agent.
#[btf_map]
pub(crate) static PLACES: Array<WalkPlace, 8192> = Array::new();

/// What a pass over the cgroups needs to be given.
#[btf_map]
pub(crate) static WALK: Array<WalkPlan, 1> = Array::new();

/// Counts one loss.
#[inline(always)]
pub(crate) fn dropped(what: DropCounter) {
    if let Some(n) = DROPS.get_ptr_mut(what as u32) {
        // SAFETY: a per-CPU slot that the lookup has just returned.
        unsafe { *n += 1 };
    }
}
