//! Waits for a CPU that are longer than an account's objective: one record in each window, when the wait ends.
//!
//! Without any objective the verifier removes all of it from the context switch.

use aya_ebpf::{Global, bindings::BPF_RB_FORCE_WAKEUP};
use podwarden_abi::{DropCounter, Figure, LongWait, NO_SLOT, Objective};

use crate::{
    atomic::compare_and_swap,
    kernel::{self, Task},
    maps::{OBJECTIVES, WAITS, dropped},
    telemetry::now,
};

/// The shortest wait that any account reports, nanoseconds; 0 where none reports any.
#[unsafe(no_mangle)]
static LEAST_OBJECTIVE: Global<u64> = Global::new(0);

#[inline(always)]
fn is_on() -> bool {
    LEAST_OBJECTIVE.load() != 0 && kernel::has(Figure::LongWaits)
}

/// `next`, which counts to `slot`, gets this CPU. Its wait on this run queue ends: a part before it was moved here
/// from another run queue is left out.
#[inline(always)]
pub(crate) fn check(slot: u32, next: Task) {
    if !is_on() || slot == NO_SLOT {
        return;
    }
    let queued = next.last_queued();
    // It had not been queued: it runs on.
    if queued == 0 {
        return;
    }
    let waited = next.queue_clock().saturating_sub(queued);
    if waited >= LEAST_OBJECTIVE.load() {
        report(slot, waited);
    }
}

#[inline(always)]
fn report(slot: u32, waited: u64) {
    let Some(objective) = OBJECTIVES.get_ptr_mut(slot) else {
        return;
    };
    // SAFETY: aligned words of a map value. A context switch on another CPU may report the same account; one of
    // the two writes the record.
    let mine = unsafe {
        let wait_ns = (&raw const (*objective).wait_ns).read_volatile();
        if wait_ns == 0 || waited < wait_ns {
            return;
        }
        let reported = &raw mut (*objective).reported_ns;
        let (before, time_ns) = (reported.read_volatile(), now());
        (time_ns.saturating_sub(before) >= Objective::WINDOW_NS
            && compare_and_swap(reported, before, time_ns))
        .then_some(time_ns)
    };
    let Some(time_ns) = mine else { return };
    let Some(mut record) = WAITS.reserve_untyped::<LongWait>(0) else {
        dropped(DropCounter::Waits);
        return;
    };
    record.write(LongWait {
        time_ns,
        wait_ns: waited,
        slot,
        pad: 0,
    });
    record.submit(u64::from(BPF_RB_FORCE_WAKEUP));
}

/// `slot` is another cgroup's from now on: an objective is not inherited.
#[inline(always)]
pub(crate) fn forget(slot: u32) {
    if is_on()
        && let Some(objective) = OBJECTIVES.get_ptr_mut(slot)
    {
        // SAFETY: an aligned word of a map value.
        unsafe { (&raw mut (*objective).wait_ns).write_volatile(0) };
    }
}
