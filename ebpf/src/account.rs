//! CPU time and run-queue wait: which task runs, and which account it counts to.

use podwarden_abi::{
    Control, CpuAccount, CpuState, DropCounter, Figure, NO_SLOT, Remembered, SharedAccount, Used,
};

mod moved;
mod wait;

use crate::{
    atomic::{self, compare_and_swap},
    kernel::{self, Cgroup, STORAGE_RECURS, Task},
    level,
    maps::{ACCOUNTS, CONTROL, CPUS, SHARED, TRACKED, dropped},
    objective, remembered,
};
pub(crate) use moved::moved;
use wait::wait;

/// The account that a cgroup counts to, by this CPU's cache. Only for programs that cannot be
/// preempted: a line is written in parts.
#[inline(always)]
fn slot_of(state: &mut CpuState, cgroup: Cgroup) -> u32 {
    let Some(control) = CONTROL.get(0) else {
        return NO_SLOT;
    };
    let id = cgroup.id();
    let line = &mut state.cache[id as usize % CpuState::CACHE_LINES];
    if line.id == id && line.generation == control.generation {
        return line.slot;
    }
    let slot = slot_in_table(key_of(control, cgroup, id));
    line.id = id;
    line.generation = control.generation;
    line.slot = slot;
    slot
}

/// The account that a cgroup counts to, from the table.
#[inline(always)]
pub(crate) fn tracked_slot(cgroup: Cgroup) -> u32 {
    slot_in_table(key(cgroup))
}

/// The account of the cgroup with this [`key`]; [`NO_SLOT`] when it is not in scope any more.
#[inline(always)]
pub(crate) fn slot_in_table(key: u64) -> u32 {
    // SAFETY: read at once; a concurrent removal may leave the values of another cgroup in scope,
    // which the agent only allows once no task can be in this one.
    unsafe { TRACKED.get(key) }.map_or(NO_SLOT, |t| t.slot)
}

/// The key of a cgroup's entry in the table, if it is in scope: its own id, or that of its ancestor at the deepest
/// level with accounts.
#[inline(always)]
pub(crate) fn key(cgroup: Cgroup) -> u64 {
    match CONTROL.get(0) {
        Some(control) => key_of(control, cgroup, cgroup.id()),
        None => 0,
    }
}

/// [`key`] of a cgroup with this id. One value comes out of both branches, before the table is read: a second lookup
/// in a branch would have the verifier follow all that comes after twice.
#[inline(always)]
fn key_of(control: &Control, cgroup: Cgroup, id: u64) -> u64 {
    let level = control.deepest_level;
    if kernel::has(Figure::Walk) && level != 0 && cgroup.level() > level {
        cgroup.ancestor_id(level)
    } else {
        id
    }
}

/// This CPU's figures of an account.
///
/// Where tracepoints can be preempted (7.0 and later) another program may run on this CPU between a
/// load and a store here, so every field has one writer that is never preempted by another of its
/// own: a context switch runs with interrupts off. CPU time has a second writer, an exit, which adds
/// atomically.
#[inline(always)]
fn account<'a>(slot: u32) -> Option<&'a mut CpuAccount> {
    // SAFETY: a per-CPU slot; see above.
    ACCOUNTS.get_ptr_mut(slot).map(|a| unsafe { &mut *a })
}

/// An account's figures of what is rare, to which every CPU adds atomically; `None` for [`NO_SLOT`].
#[inline(always)]
pub(crate) fn shared(slot: u32) -> Option<*mut SharedAccount> {
    if slot == NO_SLOT {
        return None;
    }
    SHARED.get_ptr_mut(slot)
}

#[inline(always)]
fn this_cpu<'a>() -> Option<&'a mut CpuState> {
    // SAFETY: this CPU's only entry; see `account`. `attach` on another CPU changes `current` and
    // `accounted` by compare-and-swap.
    CPUS.get_ptr_mut(0).map(|s| unsafe { &mut *s })
}

/// Accounts the task that leaves this CPU, or is flushed, up to now: `count` counts what it has used since it was switched
/// to.
///
/// What it remembers is where that begins: that is earlier than where it was switched to when it has
/// run unseen before.
#[inline(always)]
fn settle(state: &mut CpuState, task: Task, count: impl FnOnce(u32, Used, Used)) {
    if state.task != task.address() {
        return settle_untraced(state, task);
    }
    let slot = CpuState::slot(state.current);
    let is_split = state.split_count >> 32 == state.current >> 32;
    if slot == NO_SLOT && !is_split {
        return;
    }
    let used = task.used();
    let mut done = state.accounted;
    if slot != NO_SLOT {
        if let Some(known) = remembered::of(task) {
            if let Some(before) = known.used() {
                done = before;
            }
            *known = Remembered::of(used);
        } else {
            // It is older than the agent.
            remembered::begin(task, used);
        }
    }
    if is_split {
        let splits = state.split_count as u32 as usize;
        for i in 0..CpuState::MAX_SPLITS {
            if i < splits {
                let split = state.splits[i];
                count_by_call(split.slot, done, split.used);
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
    let slot = slot_of(state, task.cgroup());
    if slot == NO_SLOT {
        return;
    }
    count_switch(slot);
    let used = task.used();
    if let Some(known) = remembered::of(task) {
        if let Some(done) = known.used() {
            count_by_call(slot, done, used);
        }
        *known = Remembered::of(used);
    } else if state.task != 0 && kernel::has(Figure::Untraced) && task.is_fair() {
        // Before the first switch seen on this CPU nothing is known, and of its wait nothing now.
        let runtime = task.runtime_when_picked();
        count_by_call(slot, Used { runtime, ..used }, used);
    }
}

/// The task that left unseen, where it remembers nothing itself.
#[inline(always)]
fn settle_forgetful(state: &CpuState) {
    let slot = CpuState::slot(state.current);
    if slot != NO_SLOT
        && state.remembered == 0
        && kernel::has(Figure::Untraced)
        && let Some(used) = Task::used_at(state.task)
        && let Some(picked) = Task::runtime_when_picked_at(state.task)
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
        count_by_call(slot, done, until);
    }
}

/// Counts what a task has used from `done` on.
#[inline(always)]
fn count(slot: u32, done: Used, used: Used) {
    if slot != NO_SLOT {
        add(slot, used.since(done));
    }
}

/// The same by [`add_by_call`], for where few context switches come by.
#[inline(always)]
fn count_by_call(slot: u32, done: Used, used: Used) {
    if slot != NO_SLOT {
        let Used { runtime, waited } = used.since(done);
        add_by_call(slot, runtime, waited);
    }
}

/// Adds CPU time and a wait to an account.
#[inline(always)]
fn add(slot: u32, Used { runtime, waited }: Used) {
    if let Some(account) = account(slot) {
        account.cpu_ns += runtime;
        if waited > 0 {
            wait(slot, account, waited);
        }
    }
}

/// [`add`] that the verifier follows once, and not again on each way that leads to it: a function that is global to the
/// kernel (`subprog_is_global`, kernel/bpf/verifier.c), which has to return a number.
#[unsafe(no_mangle)]
extern "C" fn add_by_call(slot: u32, runtime: u64, waited: u64) -> u32 {
    add(slot, Used { runtime, waited });
    0
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
        if let Some(known) = remembered::of(task) {
            known.mark = 0;
        }
        return;
    }
    state.accounted = task.used();
    state.remembered = u64::from(remembered::may_be_of(task));
}

/// A task has been created. It has not run yet.
#[inline(always)]
pub(crate) fn born(task: Task) {
    if tracked_slot(task.cgroup()) == NO_SLOT {
        remembered::forget(task);
        return;
    }
    // Without memory it is accounted by what is seen of its switches.
    if let Some(known) = remembered::of_or_new(task) {
        *known = Remembered::of(Used {
            runtime: 0,
            waited: task.waited(),
        });
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
        tracked_slot(task.cgroup())
    };
    if slot == NO_SLOT {
        return;
    }
    // A mark is 1 more than what has been used.
    let (done, more) = match remembered::of(task) {
        Some(known) if known.mark != 0 => (&raw mut known.mark, 1),
        _ if traced => (&raw mut state.accounted.runtime, 0),
        _ => return,
    };
    // SAFETY: aligned words of map values.
    unsafe {
        let (before, runtime) = (done.read_volatile(), task.runtime() + more);
        if before < runtime && compare_and_swap(done, before, runtime) {
            count_atomically(slot, runtime - before);
        }
    }
}

/// A context switch. The tracepoint fires after the kernel has charged `prev` (`put_prev_task`) and
/// before it notes how long `next` has waited (`sched_info_arrive`): that counts when `next` leaves, or
/// is flushed.
#[inline(always)]
pub(crate) fn switch(prev: Task, next: Task) {
    let Some(state) = this_cpu() else { return };
    settle(state, prev, count);
    let left = CpuState::slot(state.current);
    let slot = slot_of(state, next.cgroup());
    enter(state, next, slot);
    objective::check(slot, next);
    if left != NO_SLOT {
        level::check_at_switch(state, prev, left);
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
        && remembered::of(task).is_none()
    {
        return;
    }
    settle(state, task, count_by_call);
    let slot = slot_of(state, task.cgroup());
    enter(state, task, slot);
    if slot != NO_SLOT {
        level::check_chain(task, slot);
    }
}
