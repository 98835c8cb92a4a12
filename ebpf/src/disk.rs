//! Reads and writes of disks.
//!
//! A bio counts where the kernel's `io.stat` counts it (`blk_cgroup_bio_start`, block/blk-cgroup.c): once, when it is
//! handed to the topmost device. What device mapper and RAID make of it are clones, which do not count again.
//!
//! A bio of a running task counts to the task's own cgroup, on both versions. One that another task writes back counts
//! to the cgroup that it is charged to, which v2 knows: on v1 the IO controller is on another hierarchy, and charges
//! written-back page cache to the root.
//!
//! It is done when the kernel says so: of itself (`bio_endio`, block/bio.c) or, where the device has a queue of requests,
//! of the request that it is part of (`blk_update_request`, block/blk-mq.c).

use aya_ebpf::{cty::c_void, helpers};
use podwarden_abi::{Figure, PendingBio, SharedAccount};

use crate::{
    account, atomic, histogram,
    kernel::{self, Bio, Request, Task},
    maps::BIOS,
    telemetry::now,
};

/// `REQ_OP_DISCARD` of include/linux/blk_types.h.
const DISCARD: u32 = 3;

/// Bios of a request that are looked at; how long those behind them took is not counted.
const MAX_BIOS: u32 = 4096;

/// A bio is handed to a device.
#[inline(always)]
pub(crate) fn queued(bio: Bio) {
    if !kernel::has(Figure::Disk) {
        return;
    }
    let operation = bio.operation();
    let (cgroup, shared) = if bio.is_clone() || operation == DISCARD {
        (0, None)
    } else {
        let cgroup = cgroup_of(bio);
        (cgroup, account_in_scope(cgroup))
    };
    let Some(shared) = shared else {
        return forget(bio);
    };
    let bytes = u64::from(bio.size());
    // `op_is_write` of include/linux/blk_types.h.
    let writes = operation & 1 != 0;
    // SAFETY: aligned words of a map value.
    unsafe {
        if writes {
            atomic::add(&raw mut (*shared).disk.written_bytes, bytes);
            atomic::add(&raw mut (*shared).disk.writes, 1);
        } else {
            atomic::add(&raw mut (*shared).disk.read_bytes, bytes);
            atomic::add(&raw mut (*shared).disk.reads, 1);
        }
    }
    if kernel::has(Figure::DiskLatency) {
        let pending = PendingBio {
            start_ns: now(),
            cgroup,
            writes: u64::from(writes),
        };
        // Where it cannot be noted it is counted, but not how long it took.
        let _ = BIOS.insert(bio.address(), pending, 0);
    }
}

/// A bio that does not count is handed to a device: one before it at its address, whose end was missed, is done.
#[inline(always)]
fn forget(bio: Bio) {
    let address = bio.address();
    // SAFETY: only whether there is one. A look takes no lock, which removing does.
    if kernel::has(Figure::DiskLatency) && unsafe { BIOS.get(address) }.is_some() {
        let _ = BIOS.remove(address);
    }
}

/// The figures of a cgroup, if it is in scope.
#[inline(always)]
fn account_in_scope(cgroup: u64) -> Option<*mut SharedAccount> {
    account::shared(account::slot_in_table(cgroup))
}

/// The key of the cgroup that a bio counts to; 0 for none.
#[inline(always)]
fn cgroup_of(bio: Bio) -> u64 {
    let (task, css) = (Task::current(), bio.charged_to());
    if css.0 as u64 == task.io_css().0 as u64 {
        return account::key(task.cgroup());
    }
    let cgroup = css.cgroup();
    if cgroup.is_identity() {
        account::key(cgroup)
    } else {
        0
    }
}

/// A bio is done, on a device without a queue of requests.
#[inline(always)]
pub(crate) fn bio_done(bio: Bio) {
    if kernel::has(Figure::DiskLatency) {
        done(bio, now());
    }
}

/// The first `bytes` of a request are done.
#[inline(always)]
pub(crate) fn request_done(request: Request, bytes: u32) {
    if !kernel::has(Figure::Disk) || !kernel::has(Figure::DiskLatency) {
        return;
    }
    let mut done = Done {
        bio: request.bio(),
        left: bytes,
        now: now(),
    };
    // A loop of our own the verifier walks once for each bio: 147,000 instructions, most of what all programs took.
    // SAFETY: the callback gets what it takes, which lives until the call returns.
    unsafe {
        helpers::bpf_loop(
            MAX_BIOS,
            next_done as *mut c_void,
            (&raw mut done).cast(),
            0,
        );
    }
}

/// Where a pass over the bios of a request is.
#[repr(C)]
struct Done {
    bio: Bio,
    /// Bytes that are done, of this bio and those behind it.
    left: u32,
    now: u64,
}

/// One bio of a request; 1 where it was the last one that is done.
extern "C" fn next_done(_number: u64, pass: *mut Done) -> u64 {
    const GO_ON: u64 = 0;
    const END: u64 = 1;
    // SAFETY: what `request_done` hands over.
    let pass = unsafe { &mut *pass };
    if pass.bio.is_null() {
        return END;
    }
    let size = pass.bio.size();
    if size > pass.left {
        return END;
    }
    done(pass.bio, pass.now);
    pass.left -= size;
    if pass.left == 0 {
        return END;
    }
    pass.bio = pass.bio.next();
    GO_ON
}

#[inline(always)]
fn done(bio: Bio, now: u64) {
    // SAFETY: copied at once; the bio is done once.
    let Some(&pending) = (unsafe { BIOS.get(bio.address()) }) else {
        return;
    };
    let _ = BIOS.remove(bio.address());
    let Some(shared) = account_in_scope(pending.cgroup) else {
        return;
    };
    let ns = now.saturating_sub(pending.start_ns);
    let bucket = histogram::bucket(ns);
    // SAFETY: aligned words of a map value.
    unsafe {
        let disk = &raw mut (*shared).disk;
        let latency = if pending.writes != 0 {
            &raw mut (*disk).write_latency
        } else {
            &raw mut (*disk).read_latency
        };
        atomic::add(&raw mut (*latency).total_ns, ns);
        atomic::add(&raw mut (*latency).hist[bucket], 1);
    }
}
