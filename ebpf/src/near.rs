//! Memory cgroups whose usage comes near their own limit: reported once for each part of each limit.
//!
//! Usage is looked at where levels are, at context switches, and once more when a charge has failed and the kernel
//! begins to reclaim: that comes before its OOM killer.

use aya_ebpf::bindings::BPF_NOEXIST;
use podwarden_abi::{EventKind, NearLimitEvent};

use crate::{
    atomic::compare_and_swap,
    kernel::{Css, Task},
    level,
    maps::NEAR,
    telemetry,
};

/// Looks at the memory cgroup of a task that counts to `slot`, and at all above it.
#[inline(always)]
pub(crate) fn check_chain(task: Task, slot: u32) {
    level::each_above(task, |css| {
        check(css, css.memory_usage_and_limit(), task, slot);
    });
}

/// Reports that the `usage` of `css` has reached a part of its `limit`, unless that is known. `task` is in it or below, and
/// counts to `slot`: looked up here, in the walk of a chain, the account would be a walk in each of its steps.
#[inline(always)]
pub(crate) fn check(css: Css, (usage, limit): (u64, u64), task: Task, slot: u32) {
    let [near, nearest] = NearLimitEvent::PERCENT;
    // No limit is 2^51 pages: a hundred times that fits.
    let reached = |percent: u32| usage * 100 >= limit * u64::from(percent);
    if limit == 0 || !reached(near) {
        return;
    }
    let percent = if reached(nearest) { nearest } else { near };
    let id = css.cgroup().id();
    if is_news(id, limit, percent) {
        report(id, usage, limit, percent, (task, slot));
    }
}

/// Notes that this part of this limit is reported; false where it was, or a larger one.
#[inline(always)]
fn is_news(id: u64, limit: u64, percent: u32) -> bool {
    let new = (limit << 8) | u64::from(percent);
    let Some(known) = NEAR.get_ptr_mut(id) else {
        return NEAR.insert(id, new, u64::from(BPF_NOEXIST)).is_ok();
    };
    // SAFETY: an aligned word of a map value.
    let old = unsafe { known.read_volatile() };
    if old >> 8 == limit && old & 0xff >= u64::from(percent) {
        return false;
    }
    // SAFETY: as above.
    unsafe { compare_and_swap(known, old, new) }
}

#[inline(always)]
fn report(id: u64, usage: u64, limit: u64, percent: u32, (task, slot): (Task, u32)) {
    let Some(mut record) = telemetry::reserve::<NearLimitEvent>() else {
        // Reported when it is seen again.
        let _ = NEAR.remove(id);
        return;
    };
    let header = telemetry::header(EventKind::NearLimit, slot, task.cgroup().id());
    record.write(NearLimitEvent {
        header,
        memory_cgroup: id,
        usage_pages: usage,
        limit_pages: limit,
        percent,
        pad: 0,
    });
    telemetry::submit_at_once(record, header.time_ns);
}
