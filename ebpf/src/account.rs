//! CPU time and run-queue wait: who runs, and which account it counts to.

use podwarden_abi::{Account, CpuState, DropCounter, NO_SLOT, Split, Used, WAIT_BUCKETS};

use crate::{
    atomic::{self, compare_and_swap},
    kernel::{POSSIBLE_CPUS, STORAGE_RECURS, Task},
    level,
    maps::{ACCOUNTS, CONTROL, CPUS, TASKS, TRACKED, dropped},
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
/// own: a context switch runs with interrupts off, reclaim is guarded by the kernel, which skips a
/// program that is already running on the CPU. What exits write has two writers, which add
/// atomically.
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

/// The runtime that a task outside the scope remembers; how long it had waited means nothing then.
const OUTSIDE: u64 = u64::MAX;

/// Up to where `task` remembers to have been accounted. Loading one word tells for most tasks that
/// it remembers nothing; for the others this is what costs most of a context switch.
#[inline(always)]
fn memory_of<'a>(task: Task) -> Option<&'a mut Used> {
    if !task.has_storage() {
        return None;
    }
    // SAFETY: the task's own value. Its writers are this CPU with interrupts off while the task runs
    // here, a move (under the kernel's lock for moves) and the task's own exit by compare-and-swap.
    TASKS.get(task).map(|used| unsafe { &mut *used })
}

/// Accounts the task that leaves this CPU, or is flushed, up to now.
///
/// What it remembers is where that begins: that is earlier than where it was switched to when it has
/// run unseen before.
#[inline(always)]
fn settle(state: &mut CpuState, task: Task) {
    if state.task != task.address() {
        return settle_untraced(state, task);
    }
    let slot = CpuState::slot(state.current);
    let used = task.used();
    let mut done = state.accounted;
    if slot != NO_SLOT
        && let Some(memory) = memory_of(task)
    {
        if memory.runtime != OUTSIDE {
            done = *memory;
        }
        *memory = used;
    }
    if state.split_count >> 32 == state.current >> 32 {
        let splits = state.split_count as u32 as usize;
        for i in 0..CpuState::MAX_SPLITS {
            if i < splits {
                let split = state.splits[i];
                count(split.slot, done, split.used);
                done = split.used;
            }
        }
    }
    count(slot, done, used);
}

/// `task` runs here although another one was last seen to: kernels that skip the tracepoint for some
/// switches exist. What a task remembers fills the gap, for the one that left unseen when it is next
/// seen. For a task that existed before the agent, the kernel's own note of its runtime when it was
/// picked has to do.
#[inline(always)]
fn settle_untraced(state: &mut CpuState, task: Task) {
    if state.task != 0 {
        dropped(DropCounter::Untraced);
        settle_forgetful(state);
    }
    let slot = slot_of(state, task.cgroup().id());
    if slot == NO_SLOT {
        return;
    }
    count_switch(slot);
    let used = task.used();
    if let Some(memory) = memory_of(task) {
        if memory.runtime != OUTSIDE {
            count(slot, *memory, used);
        }
        *memory = used;
    } else if state.task != 0 && task.is_fair() {
        // Before the first switch seen on this CPU nothing is known, and of its wait nothing now.
        let runtime = task.runtime_when_picked();
        count(slot, Used { runtime, ..used }, used);
    }
}

/// The task that left unseen, where it remembers nothing itself.
#[inline(always)]
fn settle_forgetful(state: &CpuState) {
    let slot = CpuState::slot(state.current);
    if slot != NO_SLOT
        && state.remembered == 0
        && let Some((used, picked)) = Task::used_at(state.task)
    {
        let done = state.accounted;
        // Picked again elsewhere since? Then what it used here ends where that begins, and how long it
        // has waited is counted there.
        let until = if picked > done.runtime {
            Used {
                runtime: picked,
                ..done
            }
        } else {
            used
        };
        count(slot, done, until);
    }
}

/// Counts what a task has used from `done` on.
#[inline(always)]
fn count(slot: u32, done: Used, used: Used) {
    if slot != NO_SLOT
        && let Some(account) = account(slot)
    {
        account.cpu_ns += used.runtime.saturating_sub(done.runtime);
        if used.waited > done.waited {
            wait(account, used.waited - done.waited);
        }
    }
}

/// Counts a switch to a task.
#[inline(always)]
fn count_switch(slot: u32) {
    if slot != NO_SLOT
        && let Some(account) = account(slot)
    {
        account.switches += 1;
    }
}

/// Counts CPU time, in a program that a context switch or an interrupt may cut in two.
#[inline(always)]
fn count_atomically(slot: u32, ns: u64) {
    if let Some(account) = account(slot) {
        // SAFETY: an aligned word of a map value.
        unsafe { atomic::add(&raw mut account.cpu_ns, ns) };
    }
}

/// Notes that `task` now runs here and counts to `slot`.
#[inline(always)]
fn enter(state: &mut CpuState, task: Task, slot: u32) {
    let switches = (state.current >> 32).wrapping_add(1);
    state.current = (switches << 32) | u64::from(slot);
    state.task = task.address();
    state.remembered = 0;
    if slot == NO_SLOT {
        if let Some(memory) = memory_of(task) {
            memory.runtime = OUTSIDE;
        }
        return;
    }
    state.accounted = task.used();
    state.remembered = u64::from(task.has_storage());
}

/// A task has been created. It has not run yet.
#[inline(always)]
pub(crate) fn born(task: Task) {
    if tracked_slot(task.cgroup().id()) != NO_SLOT {
        // Without memory it is accounted by what is seen of its switches.
        let used = Used {
            runtime: 0,
            waited: task.waited(),
        };
        let _ = TASKS.get_or_insert(task, used);
    }
}

/// `task`, which runs here, exits: accounts its CPU time up to the last tick, should its last switch
/// not be seen.
#[inline(always)]
pub(crate) fn leave(task: Task) {
    let Some(state) = this_cpu() else { return };
    let traced = state.task == task.address();
    if traced && state.split_count >> 32 == state.current >> 32 && state.split_count as u32 != 0 {
        return;
    }
    let slot = if traced {
        CpuState::slot(state.current)
    } else {
        tracked_slot(task.cgroup().id())
    };
    if slot == NO_SLOT {
        return;
    }
    let done = match memory_of(task) {
        Some(memory) if memory.runtime != OUTSIDE => &raw mut memory.runtime,
        _ if traced => &raw mut state.accounted.runtime,
        _ => return,
    };
    // SAFETY: aligned words of map values.
    unsafe {
        let (before, runtime) = (done.read_volatile(), task.runtime());
        if before < runtime && compare_and_swap(done, before, runtime) {
            count_atomically(slot, runtime - before);
        }
    }
}

/// Counts a wait of `ns`.
#[inline(always)]
fn wait(account: &mut Account, ns: u64) {
    account.wait_ns += ns;
    // In 32 bits a division by a constant is a multiplication.
    let ns = if ns > u64::from(u32::MAX) {
        u32::MAX
    } else {
        ns as u32
    };
    let bucket = log2(ns / 1000);
    account.wait_hist[if bucket < WAIT_BUCKETS {
        bucket
    } else {
        WAIT_BUCKETS - 1
    }] += 1;
}

/// floor(log2(n)), 0 for 0. Branches on purpose: this target has no count-leading-zeros instruction.
#[inline(always)]
fn log2(mut n: u32) -> usize {
    let mut bits = 0;
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

/// A context switch. The tracepoint fires after the kernel has charged `prev` (`put_prev_task`) and
/// before it notes how long `next` has waited (`sched_info_arrive`): that counts when `next` leaves, or
/// is flushed.
#[inline(always)]
pub(crate) fn switch(prev: Task, next: Task) {
    let Some(state) = this_cpu() else { return };
    settle(state, prev);
    let left = CpuState::slot(state.current);
    let slot = slot_of(state, next.cgroup().id());
    enter(state, next, slot);
    if left != NO_SLOT {
        // `next` is on this CPU's run queue; `prev` may have been moved on already.
        level::check_at_switch(state, prev, next.queue_clock());
    }
    count_switch(slot);
}

/// Accounts the running task up to the kernel's last tick, picks up a change of its scope, and
/// checks its levels.
#[inline(always)]
pub(crate) fn flush() {
    let Some(state) = this_cpu() else { return };
    let task = Task::current();
    // What it remembers is out of reach: another time, then, or the same time would be counted twice.
    if state.task == task.address()
        && state.remembered != 0
        && STORAGE_RECURS.load() == 0
        && memory_of(task).is_none()
    {
        return;
    }
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
    if to == NO_SLOT {
        if let Some(memory) = memory_of(task) {
            memory.runtime = OUTSIDE;
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
            if let Some((used, _)) = Task::used_at(running) {
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
    let outside = Used {
        runtime: OUTSIDE,
        waited: 0,
    };
    let Some(memory) = TASKS.get_or_insert(task, outside) else {
        return;
    };
    // SAFETY: aligned words of a map value. It may run and be settled elsewhere meanwhile, and what that
    // writes stands.
    unsafe {
        let waited = &raw mut (*memory).waited;
        let runtime = &raw mut (*memory).runtime;
        let before = waited.read_volatile();
        if runtime.read_volatile() == OUTSIDE {
            compare_and_swap(waited, before, task.waited());
            compare_and_swap(runtime, OUTSIDE, task.runtime());
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
