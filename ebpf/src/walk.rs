//! One pass over the cgroups of a hierarchy: a record for each, in a map that the agent has mapped.
//!
//! The records do not go through the iterator's own file: a pass that fills its buffer of 32 KiB cannot be
//! continued (`cgroup_iter_seq_start`, kernel/bpf/cgroup_iter.c). A pass writes nothing there but its end.
//! It holds `cgroup_mutex` from begin to end: cgroups are made and removed after it.
//!
//! Most of a pass's time is memory that is not in the processor's caches, and calls. So a pass remembers at each place
//! what does not change, and has the processor load what it reads at the next place while it is at this one.

use core::ptr;

use aya_ebpf::{bindings::seq_file, helpers};
use podwarden_abi::{CgroupRecord, Figure, WalkEnd, WalkPlace, WalkPlan, part};

use crate::{
    kernel::{
        Cgroup, MemoryGroup, PidsGroup, Plain, PressureGroup, Statistics, Structure, TaskGroup,
        Typed, WalkMeta, has, refused_forks, touch_cgroup,
    },
    maps::{PLACES, RECORDS, WALK},
};

/// The number of the unified hierarchy, see proc_pid_cgroup(5).
const V2: u64 = 0;

/// The bits of refused forks; a pass has at most one of them.
const FORKS: u32 = part::FORKS_OF_LIMITS | part::FORKS_OF_TASKS;

/// `struct bpf_iter__cgroup`.
#[repr(C)]
pub(crate) struct Context {
    meta: *const u8,
    cgroup: *const u8,
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/cgroup")]
extern "C" fn walk(context: *const Context) -> i32 {
    run::<Typed>(context)
}

/// For kernels without `bpf_rdonly_cast`.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/cgroup")]
extern "C" fn walk_plain(context: *const Context) -> i32 {
    run::<Plain>(context)
}

#[inline(always)]
fn run<S: Structure>(context: *const Context) -> i32 {
    if !has(Figure::Walk) || !has(Figure::Levels) {
        return 0;
    }
    // SAFETY: the kernel calls iterators with a context of this type.
    let (meta, cgroup) = unsafe {
        (
            ptr::addr_of!((*context).meta).read_volatile(),
            ptr::addr_of!((*context).cgroup).read_volatile(),
        )
    };
    let meta = WalkMeta(meta);
    if cgroup.is_null() {
        end(meta);
        return 0;
    }
    visit::<S>(meta, Cgroup(cgroup));
    // 1 would have the kernel visit the cgroup once more (`bpf_iter_run_prog`, kernel/bpf/bpf_iter.c).
    0
}

/// Writes how many places were used.
#[inline(always)]
fn end(meta: WalkMeta) {
    let Some(plan) = WALK.get(0) else {
        return;
    };
    let end = WalkEnd {
        session: meta.session(),
        places: u64::from(plan.used),
    };
    // SAFETY: the file is the iterator's own, the bytes are on the stack.
    unsafe {
        helpers::bpf_seq_write(
            meta.file().cast::<seq_file>().cast_mut(),
            ptr::addr_of!(end).cast(),
            size_of::<WalkEnd>() as u32,
        );
    }
}

/// The first cgroup of a pass.
#[inline(always)]
fn begin(plan: &mut WalkPlan, cgroup: Cgroup) {
    plan.root_level = cgroup.level();
    plan.used = 0;
    let is_v2 = cgroup.hierarchy() == V2;
    let mut parts = 0;
    if cgroup.memory() != 0 {
        parts |= part::MEMORY;
    }
    if has(Figure::WalkPids) && cgroup.pids() != 0 {
        parts |= part::PIDS | refused_forks(is_v2);
    }
    if has(Figure::WalkBandwidth) && cgroup.cpu() != 0 {
        parts |= part::BANDWIDTH;
    }
    // The kernel counts pressure on the unified hierarchy alone (`task_psi_group`, kernel/sched/psi.c), and cgroups
    // of the others have averages all the same.
    if has(Figure::WalkPressure) && is_v2 && cgroup.pressure() != 0 {
        parts |= part::PRESSURE;
    }
    plan.parts = parts;
    plan.first = if parts & part::MEMORY != 0 {
        0
    } else {
        plan.places
    };
}

#[inline(always)]
fn visit<S: Structure>(meta: WalkMeta, cgroup: Cgroup) {
    let Some(plan) = WALK.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: a value of the map that the lookup has just returned; passes follow one another.
    let plan = unsafe { &mut *plan };
    if meta.number() == 0 {
        begin(plan, cgroup);
    }
    let number = plan.used;
    let Some(place) = PLACES.get_ptr_mut(plan.first.wrapping_add(number)) else {
        return out_of_places(plan, cgroup);
    };
    // SAFETY: as above.
    let place = unsafe { &mut *place };
    if S::TOUCHES
        && let Some(next) = PLACES.get(plan.first.wrapping_add(number).wrapping_add(1))
    {
        touch::<S>(next, plan.parts);
    }
    let serial = cgroup.serial().wrapping_add(1);
    if place.serial != serial {
        let level = cgroup.level();
        if level > plan.root_level.saturating_add(plan.depth) {
            return;
        }
        place.serial = serial;
        place.id = cgroup.id();
        place.level = level;
        place.cgroup = cgroup.address();
    }
    plan.used = number.saturating_add(1);
    let Some(record) = RECORDS.get_ptr_mut(number) else {
        return;
    };
    // SAFETY: as above.
    let record = unsafe { &mut *record };
    record.session = meta.session();
    record.id = place.id;
    record.level = place.level;
    record.parts = fill::<S>(record, cgroup, plan.parts, place);
}

/// Counts a cgroup that finds no room.
#[inline(always)]
fn out_of_places(plan: &mut WalkPlan, cgroup: Cgroup) {
    if cgroup.level() <= plan.root_level.saturating_add(plan.depth) {
        plan.used = plan.used.saturating_add(1);
    }
}

/// Has the processor load what was read at a place in the pass before.
#[inline(always)]
fn touch<S: Structure>(next: &WalkPlace, parts: u32) {
    touch_cgroup::<S>(next.cgroup);
    if parts & part::MEMORY != 0 {
        MemoryGroup::<S>::at(next.memory).touch();
        Statistics::<S>::at(next.statistics).touch();
    }
    if has(Figure::WalkBandwidth) && parts & part::BANDWIDTH != 0 {
        TaskGroup::<S>::at(next.group).touch();
    }
    if has(Figure::WalkPressure) && parts & part::PRESSURE != 0 {
        PressureGroup::<S>::at(next.pressure).touch();
    }
}

/// Reads what the cgroup's controllers have, as far as `of` says; returns the parts that it has.
#[inline(always)]
fn fill<S: Structure>(
    record: &mut CgroupRecord,
    cgroup: Cgroup,
    of: u32,
    place: &mut WalkPlace,
) -> u32 {
    let mut parts = 0;
    if of & part::MEMORY != 0 {
        place.memory = cgroup.memory();
        parts |= memory::<S>(record, place);
    }
    if has(Figure::WalkPids) && of & part::PIDS != 0 {
        let pids = cgroup.pids();
        if pids != 0 {
            let (pids, forks) = (PidsGroup::<S>::at(pids), of & FORKS);
            record.pids = pids.tasks();
            if forks != 0 {
                record.refused_forks = pids.refused_forks(forks);
            }
            parts |= part::PIDS | forks;
        }
    }
    if has(Figure::WalkBandwidth) && of & part::BANDWIDTH != 0 {
        place.group = cgroup.cpu();
        if place.group != 0 {
            parts |= part::BANDWIDTH;
            [
                record.periods,
                record.throttled_periods,
                record.throttled_ns,
            ] = TaskGroup::<S>::at(place.group).bandwidth();
        }
    }
    if has(Figure::WalkPressure) && of & part::PRESSURE != 0 {
        place.pressure = cgroup.pressure();
        if place.pressure != 0
            && PressureGroup::<S>::at(place.pressure).totals(&mut record.pressure_ns)
        {
            parts |= part::PRESSURE;
        }
    }
    parts
}

#[inline(always)]
fn memory<S: Structure>(record: &mut CgroupRecord, place: &mut WalkPlace) -> u32 {
    if place.memory == 0 {
        return 0;
    }
    let memory = MemoryGroup::<S>::at(place.memory);
    record.usage_pages = memory.usage();
    record.peak_pages = memory.watermark();
    record.limit_pages = memory.limit();
    record.limit_hits = memory.limit_hits();
    let statistics = memory.statistics();
    place.statistics = statistics.address();
    if place.statistics == 0 {
        return part::MEMORY;
    }
    statistics.items(&mut record.items);
    part::MEMORY | part::ITEMS
}
