//! One pass over the cgroups of a hierarchy: a record for each, in a map that the agent has mapped.
//!
//! The records do not go through the iterator's own file: a pass that fills its buffer of 32 KiB cannot be
//! continued (`cgroup_iter_seq_start`, kernel/bpf/cgroup_iter.c). A pass writes nothing there but its end.
//! It holds `cgroup_mutex` from begin to end: cgroups are made and removed after it.

use core::ptr;

use aya_ebpf::{bindings::seq_file, helpers};
use podwarden_abi::{CgroupRecord, Figure, WalkEnd, part};

use crate::{
    kernel::{Cgroup, WalkMeta, has},
    maps::{RECORDS, WALK},
};

/// `struct bpf_iter__cgroup`.
#[repr(C)]
pub(crate) struct Context {
    meta: *const u8,
    cgroup: *const u8,
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/cgroup")]
extern "C" fn walk(context: *const Context) -> i32 {
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
    visit(meta, Cgroup(cgroup));
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

#[inline(always)]
fn visit(meta: WalkMeta, cgroup: Cgroup) {
    let Some(plan) = WALK.get_ptr_mut(0) else {
        return;
    };
    let level = cgroup.level();
    // SAFETY: a value of the map that the lookup has just returned; passes follow one another.
    let plan = unsafe { &mut *plan };
    if meta.number() == 0 {
        plan.root_level = level;
        plan.used = 0;
    }
    if level > plan.root_level.saturating_add(plan.depth) {
        return;
    }
    let place = plan.used;
    plan.used = place.saturating_add(1);
    let Some(record) = RECORDS.get_ptr_mut(place) else {
        return;
    };
    // SAFETY: as above.
    let record = unsafe { &mut *record };
    record.session = meta.session();
    record.id = cgroup.id();
    record.level = level;
    record.parts = fill(record, cgroup, &plan.item_at);
}

/// Reads what the cgroup's controllers have; returns the parts that it has.
#[inline(always)]
fn fill(record: &mut CgroupRecord, cgroup: Cgroup, item_at: &[u32; 10]) -> u32 {
    let mut parts = 0;
    if let Some(memory) = cgroup.memory() {
        parts |= part::MEMORY;
        record.usage_pages = memory.usage();
        record.peak_pages = memory.watermark();
        record.limit_pages = memory.limit();
        record.limit_hits = memory.limit_hits();
        let statistics = memory.statistics();
        if statistics != 0 {
            parts |= part::ITEMS;
            for (item, at) in record.items.iter_mut().zip(item_at) {
                *item = memory.item(statistics, *at);
            }
        }
    }
    if has(Figure::WalkPids)
        && let Some(tasks) = cgroup.tasks()
    {
        parts |= part::PIDS;
        record.pids = tasks;
    }
    if has(Figure::WalkBandwidth)
        && let Some(bandwidth) = cgroup.bandwidth()
    {
        parts |= part::BANDWIDTH;
        [
            record.periods,
            record.throttled_periods,
            record.throttled_ns,
        ] = bandwidth;
    }
    if has(Figure::WalkPressure) && cgroup.pressure(&mut record.pressure_ns) {
        parts |= part::PRESSURE;
    }
    parts
}
