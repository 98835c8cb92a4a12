//! Reads and writes of disks.
//!
//! A bio counts where the kernel's `io.stat` counts it (`blk_cgroup_bio_start`, block/blk-cgroup.c): once, when it is
//! handed to the topmost device. What device mapper and RAID make of it are clones, which do not count again.
//!
//! A bio of a running task counts to the task's own cgroup, on both versions. One that another task writes back counts
//! to the cgroup that it is charged to, which v2 knows: on v1 the IO controller is on another hierarchy, and charges
//! written-back page cache to the root.

use podwarden_abi::{Figure, NO_SLOT};

use crate::{
    account, atomic,
    kernel::{self, Bio, Task},
};

/// `REQ_OP_DISCARD` of include/linux/blk_types.h.
const DISCARD: u32 = 3;

/// A bio is handed to a device.
#[inline(always)]
pub(crate) fn queued(bio: Bio) {
    if !kernel::has(Figure::Disk) || bio.is_clone() {
        return;
    }
    let operation = bio.operation();
    if operation == DISCARD {
        return;
    }
    let slot = slot_of(bio);
    if slot == NO_SLOT {
        return;
    }
    let Some(shared) = account::shared(slot) else {
        return;
    };
    let bytes = u64::from(bio.size());
    // SAFETY: aligned words of a map value. Operations with the lowest bit write (`op_is_write`,
    // include/linux/blk_types.h).
    unsafe {
        if operation & 1 != 0 {
            atomic::add(&raw mut (*shared).disk.written_bytes, bytes);
            atomic::add(&raw mut (*shared).disk.writes, 1);
        } else {
            atomic::add(&raw mut (*shared).disk.read_bytes, bytes);
            atomic::add(&raw mut (*shared).disk.reads, 1);
        }
    }
}

#[inline(always)]
fn slot_of(bio: Bio) -> u32 {
    let (task, css) = (Task::current(), bio.charged_to());
    if css.0 as u64 == task.io_css().0 as u64 {
        return account::tracked_slot(task.cgroup());
    }
    let cgroup = css.cgroup();
    if cgroup.is_identity() {
        account::tracked_slot(cgroup)
    } else {
        NO_SLOT
    }
}
