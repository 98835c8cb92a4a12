//! The telemetry ring: batched, so that a storm of exits does not wake the agent each time.

use aya_ebpf::{
    bindings::{BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers,
    maps::ring_buf::RingBufEntry,
};
use podwarden_abi::{DropCounter, EventHeader, EventKind};

use crate::maps::{CPUS, TELEMETRY, dropped};

/// After a wake-up a CPU stays silent for this long. The reader, once woken, comes back until it has
/// found the ring empty later than this after its last wake-up, so that nothing is left lying.
const QUIET_NS: u64 = 20_000_000;

/// `CLOCK_MONOTONIC`, nanoseconds.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: always allowed.
    unsafe { helpers::bpf_ktime_get_ns() }
}

/// A header of this moment.
#[inline(always)]
pub(crate) fn header(kind: EventKind, slot: u32, cgroup: u64) -> EventHeader {
    EventHeader {
        kind: kind as u32,
        slot,
        time_ns: now(),
        cgroup,
    }
}

/// Room for a record; counts the loss where there is none.
#[inline(always)]
pub(crate) fn reserve<T: 'static>() -> Option<RingBufEntry<T>> {
    let record = TELEMETRY.reserve_untyped::<T>(0);
    if record.is_none() {
        dropped(DropCounter::Telemetry);
    }
    record
}

/// Hands a record over that happened at `time_ns` and wakes the reader, who then comes back by himself for a while.
#[inline(always)]
pub(crate) fn submit_at_once<T>(record: RingBufEntry<T>, time_ns: u64) {
    if let Some(state) = CPUS.get_ptr_mut(0) {
        // SAFETY: this CPU's entry, and a word that only this module writes.
        unsafe { (*state).last_wake = time_ns };
    }
    record.submit(u64::from(BPF_RB_FORCE_WAKEUP));
}

/// Hands a record over that happened at `time_ns`.
#[inline(always)]
pub(crate) fn submit<T>(record: RingBufEntry<T>, time_ns: u64) {
    let mut flags = BPF_RB_NO_WAKEUP;
    if let Some(state) = CPUS.get_ptr_mut(0) {
        // SAFETY: this CPU's entry, and a word that only this function writes.
        let last = unsafe { &mut (*state).last_wake };
        if time_ns.saturating_sub(*last) > QUIET_NS {
            *last = time_ns;
            flags = BPF_RB_FORCE_WAKEUP;
        }
    }
    record.submit(u64::from(flags));
}
