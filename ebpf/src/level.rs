//! Armed levels: report, once, that a memory cgroup's usage has reached one.

use aya_ebpf::bindings::BPF_RB_FORCE_WAKEUP;
use podwarden_abi::{CpuState, Crossing, DropCounter, Figure, Level, LevelState, Source};

use crate::{
    atomic::compare_and_swap,
    kernel::{self, MemoryGroup, PageCounter, Plain, Structure, Task, Typed},
    maps::{ARMED, COUNTERS, DECISIONS, LEVELS, dropped},
    near,
    telemetry::now,
};

/// Memory cgroups between a task and the root that are looked at: kubepods, tier, pod, container and
/// four nested ones.
const MAX_CHAIN: usize = 8;

/// How often a CPU checks at context switches, nanoseconds of [`Task::charged`].
const CHECK_INTERVAL_NS: u64 = 100_000;

/// The bits of the cgroups that may have a level; 0 where none has.
#[inline(always)]
fn armed() -> u64 {
    if !kernel::has(Figure::Levels) {
        return 0;
    }
    ARMED.get(0).copied().unwrap_or(0)
}

/// Checks the levels of the outgoing task, which counts to `slot`, at most once per [`CHECK_INTERVAL_NS`].
#[inline(always)]
pub(crate) fn check_at_switch(state: &mut CpuState, prev: Task, slot: u32) {
    let clock = prev.charged();
    if clock.saturating_sub(state.last_check) < CHECK_INTERVAL_NS {
        return;
    }
    state.last_check = clock;
    check_chain(prev, slot);
}

/// Checks the limits and the levels of the memory cgroup of the running task, which counts to `slot`, and of all above it.
#[inline(always)]
pub(crate) fn check_chain(task: Task, slot: u32) {
    walk(task, slot, armed());
}

/// Checks the limits of the memory cgroup of the running task, which counts to `slot`, and of all above it.
#[inline(always)]
pub(crate) fn check_limits(task: Task, slot: u32) {
    walk(task, slot, 0);
}

/// Goes up from the running task's memory cgroup; what may be at a limit or has one of the `armed` levels is looked at by
/// a call.
#[inline(always)]
fn walk(task: Task, slot: u32, armed: u64) {
    if !kernel::has(Figure::Levels) {
        return;
    }
    let mut css = task.memory_css();
    for _ in 0..MAX_CHAIN {
        if css.is_null() {
            return;
        }
        let (usage, limit) = css.memory_usage_and_limit();
        let is_armed = || armed & Level::bit(css.cgroup().id()) != 0;
        if near::is_near(usage, limit) || (armed != 0 && is_armed()) {
            look(css.plain_address(), slot, armed);
        }
        css = css.parent();
    }
}

/// Checks the limit and the level of the memory cgroup with the state at `address`, for the running task, which counts to
/// `slot`. A function that is global to the kernel, as [`crate::account`] has one: within [`walk`] the verifier would
/// follow it in each step anew, on each way that leads there.
#[unsafe(no_mangle)]
extern "C" fn look(address: u64, slot: u32, armed: u64) -> u32 {
    // One of the two is all that the verifier looks at.
    if kernel::HAS_CASTS.load() != 0 {
        look_at(MemoryGroup::<Typed>::at(address), slot, armed);
    } else {
        look_at(MemoryGroup::<Plain>::at(address), slot, armed);
    }
    0
}

#[inline(always)]
fn look_at<S: Structure>(memory: MemoryGroup<S>, slot: u32, armed: u64) {
    let (usage, limit) = memory.usage_and_limit();
    let id = memory.cgroup_id();
    near::check(id, (usage, limit), slot);
    if armed & Level::bit(id) != 0 {
        check(id, usage, memory.counter_address());
    }
}

/// Checks the level of the memory cgroup `id`, whose counter is at an address.
#[inline(always)]
fn check(id: u64, usage: u64, counter: u64) {
    let Some(level) = LEVELS.get_ptr_mut(id) else {
        return;
    };
    // SAFETY: a map value; only aligned words of it are touched.
    let level = unsafe { &mut *level };
    if level.counter != counter {
        // The charge hook finds the level by this.
        level.counter = counter;
        let _ = COUNTERS.insert(counter, id, 0);
    }
    report(level, id, usage, Source::Switch);
}

/// A charge of `pages` to `counter` and all above it is about to be tried.
#[inline(always)]
pub(crate) fn charge(counter: PageCounter, pages: u64) {
    if armed() == 0 {
        return;
    }
    let mut counter = counter;
    for _ in 0..MAX_CHAIN {
        if counter.is_null() {
            return;
        }
        // SAFETY: read at once.
        if let Some(&id) = unsafe { COUNTERS.get(counter.address()) }
            && let Some(level) = LEVELS.get_ptr_mut(id)
        {
            // SAFETY: as in `check`.
            report(
                unsafe { &*level },
                id,
                counter.usage() + pages,
                Source::Charge,
            );
        }
        counter = counter.parent();
    }
}

/// Reports, once, that `usage` is at the level.
#[inline(always)]
fn report(level: &Level, id: u64, usage: u64, source: Source) {
    if usage < level.level_pages || level.state != LevelState::Armed as u64 {
        return;
    }
    let state = (&raw const level.state).cast_mut();
    // SAFETY: an aligned word of a map value.
    if !unsafe { compare_and_swap(state, LevelState::Armed as u64, LevelState::Silent as u64) } {
        return;
    }
    let Some(mut record) = DECISIONS.reserve_untyped::<Crossing>(0) else {
        // The reactor's sampler finds it; but the level must not stay silent.
        // SAFETY: as above; the next program that finds it armed reports again.
        unsafe { state.write_volatile(LevelState::Armed as u64) };
        dropped(DropCounter::Decisions);
        return;
    };
    record.write(Crossing {
        time_ns: now(),
        cgroup: id,
        usage_pages: usage,
        level_pages: level.level_pages,
        source: source as u32,
        pad: 0,
    });
    record.submit(u64::from(BPF_RB_FORCE_WAKEUP));
}
