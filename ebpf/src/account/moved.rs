//! Tasks that move to another cgroup: what a running thread has used until the move stays with the old account.

use podwarden_abi::{CpuState, NO_SLOT, Remembered, Split, Used};

use crate::{
    atomic::compare_and_swap,
    kernel::{POSSIBLE_CPUS, Task},
    maps::CPUS,
    remembered,
};

/// A process has moved to the account `to`: what its running threads have used until now stays
/// with the old one. Sleeping threads need nothing: they are looked up when they run again.
#[inline(always)]
pub(crate) fn moved(task: Task, whole_process: bool, to: u32) {
    if to == NO_SLOT {
        if let Some(known) = remembered::of(task) {
            known.mark = 0;
        }
    } else {
        remember(task);
    }
    let tgid = task.tgid();
    for cpu in 0..POSSIBLE_CPUS.load() as u32 {
        // SAFETY: the map and key are valid; the result is checked for null.
        let state = unsafe {
            aya_ebpf::helpers::generated::bpf_map_lookup_percpu_elem(
                core::ptr::from_ref(&CPUS).cast_mut().cast(),
                core::ptr::from_ref(&0u32).cast(),
                cpu,
            )
        }
        .cast::<CpuState>();
        if state.is_null() {
            break;
        }
        // SAFETY: a map value; another CPU writes it, so only aligned words are read.
        unsafe {
            let from = (*state).current;
            let running = (*state).task;
            let same = if whole_process {
                Task::tgid_at(running) == Some(tgid)
            } else {
                running == task.address()
            };
            if !same || CpuState::slot(from) == to {
                continue;
            }
            if let Some(used) = Task::used_at(running) {
                hand_over(state, from, used, to);
            }
            if running == task.address() {
                (*state).remembered = 1;
            }
        }
    }
}

/// `task` comes into the scope: from here on it is accounted, unless it remembers from where already.
#[inline(always)]
fn remember(task: Task) {
    let Some(known) = remembered::of_or_new(task) else {
        return;
    };
    // SAFETY: aligned words of a map value. It may run and be settled elsewhere meanwhile, and what that
    // writes stands.
    unsafe {
        let waited = &raw mut known.waited;
        let mark = &raw mut known.mark;
        let before = waited.read_volatile();
        if mark.read_volatile() == 0 {
            let now = Remembered::of(task.used());
            compare_and_swap(waited, before, now.waited);
            compare_and_swap(mark, 0, now.mark);
        }
    }
}

/// The second half of [`moved`] for one CPU: notes where the task's time is to be split when it is
/// settled. The kernel's lock for moves makes this the only writer of splits.
///
/// # Safety
/// `state` must be a value of [`CPUS`].
#[inline(always)]
unsafe fn hand_over(state: *mut CpuState, from: u64, used: Used, to: u32) {
    let switch = from >> 32;
    // SAFETY: aligned words of a map value, by the caller's word. The switch count in the high half
    // makes the last step fail if that CPU has switched since, and the splits mean nothing then.
    unsafe {
        let before = (*state).split_count;
        let splits = if before >> 32 == switch {
            before as u32 as usize
        } else {
            0
        };
        if splits < CpuState::MAX_SPLITS {
            (*state).splits[splits] = Split {
                slot: CpuState::slot(from),
                pad: 0,
                used,
            };
            let after = (switch << 32) | (splits as u64 + 1);
            compare_and_swap(&raw mut (*state).split_count, before, after);
        }
        let new = (from & !0xffff_ffff) | u64::from(to);
        compare_and_swap(&raw mut (*state).current, from, new);
    }
}
