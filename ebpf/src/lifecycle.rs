//! Cgroups that appear, vanish, and receive tasks.

use core::ptr;

use aya_ebpf::bindings::BPF_NOEXIST;
use podwarden_abi::{
    CgroupEvent, DropCounter, EventKind, MAX_ACCOUNT_DEPTH, NAME_LEN, NO_SLOT, Tracked,
};

use crate::{
    account,
    kernel::{Cgroup, Task},
    maps::{FREE_SLOTS, TRACKED, dropped},
    objective, telemetry,
};

/// What became of a new cgroup.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is below no cgroup in scope.
    OutOfScope,
    /// It is in scope.
    Entered,
    /// It is in scope and counts to its parent: no account was free.
    Shared,
    /// The table of cgroups in scope is full.
    NoRoom,
}

/// A cgroup has been created: it is in scope if its parent is. It gets its account here, not in the
/// agent, so that a pod that lives for a millisecond is accounted like any other.
#[inline(always)]
pub(crate) fn mkdir(cgroup: Cgroup) -> Outcome {
    if !cgroup.is_identity() {
        return Outcome::OutOfScope;
    }
    let (id, key) = (cgroup.id(), account::key(cgroup));
    if key != id {
        // SAFETY: copied at once.
        let Some(&above) = (unsafe { TRACKED.get(key) }) else {
            return Outcome::OutOfScope;
        };
        report(cgroup, EventKind::Mkdir, id, nested(cgroup, above));
        return Outcome::Entered;
    }
    let parent_id = cgroup.parent_id();
    // SAFETY: copied at once.
    let Some(&parent) = (unsafe { TRACKED.get(parent_id) }) else {
        return Outcome::OutOfScope;
    };
    let depth = parent.depth.saturating_add(1);
    let wanted = u32::from(depth) <= MAX_ACCOUNT_DEPTH;
    let own = if wanted { take_account() } else { NO_SLOT };
    objective::forget(own);
    let tracked = Tracked {
        slot: if own == NO_SLOT { parent.slot } else { own },
        depth,
        own: u16::from(own != NO_SLOT),
        parent: parent_id,
    };
    if TRACKED.insert(id, tracked, u64::from(BPF_NOEXIST)).is_err() {
        // The agent's own walk was faster, or there is no room: the account goes back either way.
        if own != NO_SLOT {
            let _ = FREE_SLOTS.push(own, 0);
        }
        // SAFETY: only whether it is there.
        if unsafe { TRACKED.get(id) }.is_none() {
            dropped(DropCounter::Accounts);
            // It has no entry, and the agent knows it all the same: its pod may be a victim.
            let shared = Tracked {
                slot: parent.slot,
                own: 0,
                ..tracked
            };
            report(cgroup, EventKind::Mkdir, id, shared);
            return Outcome::NoRoom;
        }
        return Outcome::Entered;
    }
    report(cgroup, EventKind::Mkdir, id, tracked);
    if wanted && own == NO_SLOT {
        Outcome::Shared
    } else {
        Outcome::Entered
    }
}

/// A free account; [`NO_SLOT`] when there is none, which is counted.
#[inline(always)]
fn take_account() -> u32 {
    match FREE_SLOTS.pop() {
        Ok(Some(slot)) => slot,
        _ => {
            dropped(DropCounter::Accounts);
            NO_SLOT
        }
    }
}

/// A cgroup has been removed or released. The agent reads its figures and frees its account.
#[inline(always)]
pub(crate) fn gone(cgroup: Cgroup, kind: EventKind) {
    // Inode numbers may coincide between hierarchies.
    if !cgroup.is_identity() {
        return;
    }
    let (id, key) = (cgroup.id(), account::key(cgroup));
    // SAFETY: copied at once.
    if let Some(&entry) = unsafe { TRACKED.get(key) } {
        let tracked = if key == id {
            entry
        } else {
            nested(cgroup, entry)
        };
        report(cgroup, kind, id, tracked);
    }
}

/// What a cgroup without an entry counts to, by the entry above it.
#[inline(always)]
fn nested(cgroup: Cgroup, above: Tracked) -> Tracked {
    Tracked {
        slot: above.slot,
        // How much deeper does not matter.
        depth: MAX_ACCOUNT_DEPTH as u16 + 1,
        own: 0,
        parent: cgroup.parent_id(),
    }
}

#[inline(always)]
fn report(cgroup: Cgroup, kind: EventKind, id: u64, tracked: Tracked) {
    let Some(mut record) = telemetry::reserve::<CgroupEvent>() else {
        return;
    };
    let header = telemetry::header(kind, tracked.slot, id);
    let to = record.as_mut_ptr();
    // SAFETY: the reservation is that large. What is left unwritten of the name lies past `name_len`,
    // where no reader looks, and holds older records.
    unsafe {
        ptr::addr_of_mut!((*to).header).write(header);
        ptr::addr_of_mut!((*to).parent).write(tracked.parent);
        ptr::addr_of_mut!((*to).depth).write(u32::from(tracked.depth));
        let name = ptr::addr_of_mut!((*to).name).cast::<u8>();
        let len = cgroup.name_into(name, NAME_LEN as u32);
        ptr::addr_of_mut!((*to).name_len).write(len);
    }
    // A new container's values have to be in force before it has run for long, and there are few of them.
    if matches!(kind, EventKind::Mkdir) && u32::from(tracked.depth) <= MAX_ACCOUNT_DEPTH {
        telemetry::submit_at_once(record, header.time_ns);
    } else {
        telemetry::submit(record, header.time_ns);
    }
}

/// A task, or all threads of its process, now belongs to `to`.
#[inline(always)]
pub(crate) fn attach(to: Cgroup, task: Task, whole_process: bool) {
    if to.is_identity() {
        account::moved(task, whole_process, account::tracked_slot(to));
    }
}
