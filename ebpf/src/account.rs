//! CPU time and run-queue wait: who runs, and which account it counts to.

use podwarden_abi::{Account, CpuState, DropCounter, NO_SLOT, WAIT_BUCKETS};

use crate::{
    atomic::compare_and_swap,
    kernel::{POSSIBLE_CPUS, Task},
    level,
    maps::{ACCOUNTS, CONTROL, CPUS, TRACKED, dropped},
};

/// The account that a cgroup counts to, by this CPU's cache. Only for programs that cannot be
/// preempted: a line is written in parts.
#[inline(always)]
fn slot_of(state: &mut CpuState, id: u64) -> u32 {
    let Some(control) = CONTROL.get(0) else {
        return NO_SLOT;
    };
    let line = &mut state.cache[id as usize % CpuState::CACHE_LINES];
    if line.id == id && line.generation == control.generation {
        return line.slot;
    }
    let slot = tracked_slot(id);
    line.id = id;
    line.generation = control.generation;
    line.slot = slot;
    slot
}

/// The account that a cgroup counts to, from the table.
#[inline(always)]
pub(crate) fn tracked_slot(id: u64) -> u32 {
    // SAFETY: read at once; a concurrent removal may leave the values of another cgroup in scope,
    // which the agent only allows once no task can be in this one.
    unsafe { TRACKED.get(id) }.map_or(NO_SLOT, |t| t.slot)
}

/// This CPU's figures of an account.
///
/// Where tracepoints can be preempted (7.0 and later) another program may run on this CPU between a
/// load and a store here, so every field has one writer that is never preempted by another of its
/// own: a context switch and a move (`TRACE_CGROUP_PATH`, kernel/cgroup/cgroup-internal.h) run with
/// interrupts off, reclaim is guarded by the kernel, which skips a program that is already running on
/// the CPU. Exits have two writers, which add atomically.
#[inline(always)]
pub(crate) fn account<'a>(slot: u32) -> Option<&'a mut Account> {
    // SAFETY: a per-CPU slot; see above.
    ACCOUNTS.get_ptr_mut(slot).map(|a| unsafe { &mut *a })
}

#[inline(always)]
fn this_cpu<'a>() -> Option<&'a mut CpuState> {
    // SAFETY: this CPU's only entry; see `account`. `attach` on another CPU changes `current` and
    // `accounted` by compare-and-swap.
    CPUS.get_ptr_mut(0).map(|s| unsafe { &mut *s })
}

/// Accounts the task that leaves this CPU, or is flushed, up to now.
#[inline(always)]
fn settle(state: &mut CpuState, task: Task) {
    if state.task != task.address() {
        return settle_untraced(state, task);
    }
    let slot = CpuState::slot(state.current);
    if slot != NO_SLOT {
        count(slot, task.runtime().saturating_sub(state.accounted));
    }
}

/// `task` runs here although another one was last seen to: kernels that skip the tracepoint for some
/// switches exist. The kernel's own note of a task's runtime when it was picked fills the gap.
#[inline(always)]
fn settle_untraced(state: &mut CpuState, task: Task) {
    if state.task == 0 {
        // The first switch seen on this CPU: nothing is known of the time before.
        return;
    }
    dropped(DropCounter::Untraced);
    let slot = CpuState::slot(state.current);
    if slot != NO_SLOT
        && let Some((runtime, picked)) = Task::runtimes_at(state.task)
    {
        // Picked again elsewhere since? Then what it used here ends where that begins.
        let until = if picked > state.accounted {
            picked
        } else {
            runtime
        };
        count(slot, until.saturating_sub(state.accounted));
    }
    let slot = slot_of(state, task.cgroup().id());
    if slot != NO_SLOT && task.is_fair() {
        count(
            slot,
            task.runtime().saturating_sub(task.runtime_when_picked()),
        );
    }
}

#[inline(always)]
fn count(slot: u32, ns: u64) {
    if let Some(account) = account(slot) {
        account.cpu_ns += ns;
    }
}

/// Notes that `task` now runs here and counts to `slot`.
#[inline(always)]
fn enter(state: &mut CpuState, task: Task, slot: u32) {
    let switches = (state.current >> 32).wrapping_add(1);
    state.current = (switches << 32) | u64::from(slot);
    state.task = task.address();
    if slot != NO_SLOT {
        state.accounted = task.runtime();
    }
}

/// Counts a wait of `ns`.
#[inline(always)]
fn wait(account: &mut Account, ns: u64) {
    account.wait_ns += ns;
    let bucket = log2(ns / 1000);
    account.wait_hist[if bucket < WAIT_BUCKETS {
        bucket
    } else {
        WAIT_BUCKETS - 1
    }] += 1;
}

/// floor(log2(n)), 0 for 0. Branches on purpose: this target has no count-leading-zeros instruction.
#[inline(always)]
fn log2(mut n: u64) -> usize {
    let mut bits = 0;
    if n >= 1 << 32 {
        return 32;
    }
    if n >= 1 << 16 {
        n >>= 16;
        bits += 16;
    }
    if n >= 1 << 8 {
        n >>= 8;
        bits += 8;
    }
    if n >= 1 << 4 {
        n >>= 4;
        bits += 4;
    }
    if n >= 1 << 2 {
        n >>= 2;
        bits += 2;
    }
    bits + (n >> 1) as usize
}

/// A context switch. The tracepoint fires before the kernel consumes `sched_info.last_queued`
/// (`sched_info_arrive`) and after it has charged `prev` (`put_prev_task`).
#[inline(always)]
pub(crate) fn switch(prev: Task, next: Task) {
    let Some(state) = this_cpu() else { return };
    settle(state, prev);
    if CpuState::slot(state.current) != NO_SLOT {
        level::check_at_switch(state, prev, next);
    }
    let slot = slot_of(state, next.cgroup().id());
    enter(state, next, slot);
    if slot == NO_SLOT {
        return;
    }
    let Some(account) = account(slot) else { return };
    account.switches += 1;
    let queued = next.last_queued();
    if queued != 0 {
        wait(account, next.queue_clock().saturating_sub(queued));
    }
}

/// Accounts the running task up to the kernel's last tick, picks up a change of its scope, and
/// checks its levels.
#[inline(always)]
pub(crate) fn flush() {
    let Some(state) = this_cpu() else { return };
    let task = Task::current();
    settle(state, task);
    let slot = slot_of(state, task.cgroup().id());
    enter(state, task, slot);
    if slot != NO_SLOT {
        level::check_chain(task);
    }
}

/// A process has moved to the account `to`: what its running threads have used until now stays
/// with the old one. Sleeping threads need nothing: they are looked up when they run again.
#[inline(always)]
pub(crate) fn moved(task: Task, whole_process: bool, to: u32) {
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
        // SAFETY: a map value; another CPU writes it, so only aligned words are read, and written
        // by compare-and-swap.
        unsafe {
            let from = (*state).current;
            let accounted = (*state).accounted;
            let same = if whole_process {
                Task::tgid_at((*state).task) == Some(tgid)
            } else {
                (*state).task == task.address()
            };
            if !same || CpuState::slot(from) == to {
                continue;
            }
            let Some((runtime, _)) = Task::runtimes_at((*state).task) else {
                continue;
            };
            hand_over(state, from, accounted, runtime, to);
        }
    }
}

/// The second half of [`moved`] for one CPU.
///
/// # Safety
/// `state` must be a value of [`CPUS`].
#[inline(always)]
unsafe fn hand_over(state: *mut CpuState, from: u64, accounted: u64, runtime: u64, to: u32) {
    let new = (from & !0xffff_ffff) | u64::from(to);
    // SAFETY: aligned words of a map value, by the caller's word.
    let (current, done) = unsafe { (&raw mut (*state).current, &raw mut (*state).accounted) };
    // SAFETY: as above. The switch count in the high half makes this fail if that CPU has
    // switched since.
    if !unsafe { compare_and_swap(current, from, new) } {
        return;
    }
    // SAFETY: as above.
    let settled = unsafe { compare_and_swap(done, accounted, runtime) };
    // A task that comes from outside the scope owes nothing for the time before.
    let slot = CpuState::slot(from);
    if settled && slot != NO_SLOT {
        count(slot, runtime.saturating_sub(accounted));
    }
}
