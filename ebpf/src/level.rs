//! Armed levels: report, once, that a memory cgroup's usage has reached one.

use aya_ebpf::bindings::BPF_RB_FORCE_WAKEUP;
use podwarden_abi::{CpuState, Crossing, DropCounter, Figure, Level, LevelState, Source};

use crate::{
    atomic::compare_and_swap,
    kernel::{self, Css, PageCounter, Task},
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

/// Calls `look` with a task's memory cgroup and all above it.
#[inline(always)]
pub(crate) fn each_above(task: Task, mut look: impl FnMut(Css)) {
    if !kernel::has(Figure::Levels) {
        return;
    }
    let mut css = task.memory_css();
    for _ in 0..MAX_CHAIN {
        if css.is_null() {
            return;
        }
        look(css);
        css = css.parent();
    }
}

/// Checks the limits and the levels of the memory cgroup of a task that counts to `slot`, and of all above it.
#[inline(always)]
pub(crate) fn check_chain(task: Task, slot: u32) {
    let armed = armed();
    each_above(task, |css| {
        let (usage, limit) = css.memory_usage_and_limit();
        near::check(css, (usage, limit), task, slot);
        if armed != 0 {
            check(css, usage, armed);
        }
    });
}

#[inline(always)]
fn check(css: Css, usage: u64, armed: u64) {
    let id = css.cgroup().id();
    if armed & Level::bit(id) == 0 {
        return;
    }
    let Some(level) = LEVELS.get_ptr_mut(id) else {
        return;
    };
    // SAFETY: a map value; only aligned words of it are touched.
    let level = unsafe { &mut *level };
    let counter = css.memory_counter();
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
