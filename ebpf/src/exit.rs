//! Processes that end, and those that the OOM killer chose.

use aya_ebpf::bindings::BPF_NOEXIST;
use podwarden_abi::{EventKind, ExitEvent, Figure, NO_SLOT, OomEvent, TASK_COMM_LEN};

use crate::{
    account, atomic,
    kernel::{self, Task},
    maps::{ENDED, OOM_VICTIMS},
    telemetry,
};

/// `-EEXIST`
const EXISTS: i32 = -17;

/// A thread is switched out for the last time. Where tracepoints can be preempted (7.0 and later) the
/// kernel skips a program that is already running on the CPU, and so may have skipped its process's
/// exit; a switch is never preempted.
#[inline(always)]
pub(crate) fn last_switch(task: Task) {
    if kernel::has(Figure::Exits) && task.signal().live_threads() == 0 {
        process(task, true);
    }
}

/// The last thread of a process, `task`, exits.
#[inline(always)]
pub(crate) fn last_thread(task: Task) {
    if kernel::has(Figure::Exits) {
        process(task, false);
    }
}

/// A process has ended. Its exit and the last switches of threads that have not got so far by then report it; the first one
/// counts. `is_last` where none may follow.
#[inline(always)]
fn process(task: Task, is_last: bool) {
    let cgroup = task.cgroup();
    let slot = account::tracked_slot(cgroup);
    if slot == NO_SLOT {
        return;
    }
    let tgid = task.tgid();
    let started = task.leader().start_time();
    let identity = [started, u64::from(tgid)];
    if let Err(why) = ENDED.insert(identity, 0, u64::from(BPF_NOEXIST)) {
        // The kernel can also give up on the map's lock (6.15 and later, `kernel/bpf/rqspinlock.c`).
        if why == EXISTS || !is_last {
            return;
        }
    }
    let status = task.exit_status();
    let oom = was_chosen(tgid, started) && status & 0x7f != 0;
    if let Some(shared) = account::shared(slot) {
        let signaled = status & 0x7f != 0;
        // SAFETY: aligned words of a map value.
        unsafe {
            atomic::add(&raw mut (*shared).exits, 1);
            atomic::add(&raw mut (*shared).exits_oom, u64::from(oom));
            atomic::add(&raw mut (*shared).exits_signaled, u64::from(signaled));
            atomic::add(
                &raw mut (*shared).exits_failed,
                u64::from(!signaled && status != 0),
            );
        }
    }
    let Some(mut record) = telemetry::reserve::<ExitEvent>() else {
        return;
    };
    let header = telemetry::header(EventKind::Exit, slot, cgroup.id());
    let leader = task.leader();
    let (mut cpu_ns, mut max_rss_pages, mut comm) = (0, 0, [0; TASK_COMM_LEN]);
    if kernel::has(Figure::ExitDetails) {
        cpu_ns = task.signal().reaped_runtime() + task.runtime();
        if leader.address() != task.address() {
            cpu_ns += leader.runtime();
        }
        max_rss_pages = task.signal().max_rss();
        comm = leader.comm();
    }
    record.write(ExitEvent {
        header,
        tgid,
        status,
        run_time_ns: header.time_ns.saturating_sub(leader.start_time()),
        cpu_ns,
        max_rss_pages,
        comm,
        oom: u32::from(oom),
        pad: 0,
    });
    telemetry::submit(record, header.time_ns);
}

/// Whether the OOM killer has chosen the process `tgid`, which began at `started`, `CLOCK_MONOTONIC` nanoseconds. What is
/// noted of it is taken away; of a process before it with its id it means nothing.
#[inline(always)]
fn was_chosen(tgid: u32, started: u64) -> bool {
    // SAFETY: copied at once; an entry is never changed.
    let Some(&at) = (unsafe { OOM_VICTIMS.get(tgid) }) else {
        return false;
    };
    let _ = OOM_VICTIMS.remove(tgid);
    at >= started
}

/// The OOM killer has chosen the process `tgid`; `task` where the kernel hands it over.
#[inline(always)]
pub(crate) fn oom_victim(tgid: u32, task: Option<Task>) {
    let (slot, id) = match task {
        Some(task) => {
            let cgroup = task.cgroup();
            (account::tracked_slot(cgroup), cgroup.id())
        }
        None => (NO_SLOT, 0),
    };
    if task.is_some() && slot == NO_SLOT {
        return;
    }
    let header = telemetry::header(EventKind::Oom, slot, id);
    // Where it cannot be noted only the mark on the exit record is lost; the record below is still made.
    let _ = OOM_VICTIMS.insert(tgid, header.time_ns, 0);
    let Some(mut record) = telemetry::reserve::<OomEvent>() else {
        return;
    };
    record.write(OomEvent {
        header,
        tgid,
        pad: 0,
    });
    telemetry::submit(record, header.time_ns);
}
