//! Time spent in reclaim.

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use podwarden_abi::{DropCounter, NO_SLOT};

use crate::{
    account, atomic,
    kernel::Task,
    level,
    maps::{STALLS, dropped},
    telemetry::now,
};

/// Which reclaim.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// For the node (`mm_vmscan_direct_reclaim_*`).
    Direct = 0,
    /// For a memory cgroup's limit (`mm_vmscan_memcg_reclaim_*`).
    Memcg = 1,
}

/// The running thread's entry: the two kinds may nest.
#[inline(always)]
fn key(kind: Kind) -> u64 {
    let tid = bpf_get_current_pid_tgid() & 0xffff_ffff;
    tid | ((kind as u64) << 32)
}

/// The account that the running task counts to.
#[inline(always)]
fn current_slot() -> u32 {
    account::tracked_slot(Task::current().cgroup())
}

/// The running task enters reclaim.
#[inline(always)]
pub(crate) fn begin(kind: Kind) {
    let slot = current_slot();
    if slot == NO_SLOT {
        return;
    }
    if kind == Kind::Memcg {
        level::check_limits(Task::current(), slot);
    }
    if STALLS.insert(key(kind), now(), 0).is_err() {
        dropped(DropCounter::Stalls);
    }
}

/// The running task leaves reclaim.
#[inline(always)]
pub(crate) fn end(kind: Kind) {
    let slot = current_slot();
    if slot == NO_SLOT {
        return;
    }
    let key = key(kind);
    // SAFETY: copied at once; only this thread touches its entry.
    let Some(&begun) = (unsafe { STALLS.get(key) }) else {
        return;
    };
    let _ = STALLS.remove(key);
    let Some(shared) = account::shared(slot) else {
        return;
    };
    let ns = now().saturating_sub(begun);
    // SAFETY: aligned words of a map value.
    unsafe {
        match kind {
            Kind::Direct => atomic::add(&raw mut (*shared).direct_stall_ns, ns),
            Kind::Memcg => atomic::add(&raw mut (*shared).memcg_stall_ns, ns),
        }
    }
}
