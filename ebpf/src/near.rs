//! Memory cgroups whose usage comes near their own limit: reported once for each part of each limit.
//!
//! Usage is looked at where levels are, at context switches, and once more when a charge has failed and the kernel
//! begins to reclaim: that comes before its OOM killer.

use aya_ebpf::bindings::BPF_NOEXIST;
use podwarden_abi::{EventKind, NearLimitEvent};

use crate::{atomic::compare_and_swap, kernel::Task, maps::NEAR, telemetry};

/// Whether `usage` is at so many percent of a `limit`; no limit is 2^51 pages, and a hundred times that fits.
#[inline(always)]
fn is_at(percent: u32, usage: u64, limit: u64) -> bool {
    usage * 100 >= limit * u64::from(percent)
}

/// Whether there may be something to report.
#[inline(always)]
pub(crate) fn is_near(usage: u64, limit: u64) -> bool {
    limit != 0 && is_at(NearLimitEvent::PERCENT[0], usage, limit)
}

/// Reports that the `usage` of the memory cgroup `id` has reached a part of its `limit`, unless that is known. The running
/// task is in it or below, and counts to `slot`.
#[inline(always)]
pub(crate) fn check(id: u64, (usage, limit): (u64, u64), slot: u32) {
    if !is_near(usage, limit) {
        return;
    }
    let [near, nearest] = NearLimitEvent::PERCENT;
    let percent = if is_at(nearest, usage, limit) {
        nearest
    } else {
        near
    };
    if is_news(id, limit, percent) {
        report(id, usage, limit, percent, slot);
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
fn report(id: u64, usage: u64, limit: u64, percent: u32, slot: u32) {
    let Some(mut record) = telemetry::reserve::<NearLimitEvent>() else {
        // Reported when it is seen again.
        let _ = NEAR.remove(id);
        return;
    };
    let task = Task::current();
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
