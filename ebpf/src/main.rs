//! The kernel programs of podwarden.
//!
//! | program | hook | effect |
//! |---|---|---|
//! | `sched_switch` | tp_btf | CPU time and run-queue wait per account; waits beyond an objective; level check at most every 100 us per CPU |
//! | `flush` | raw_tp, never attached | the same bookkeeping for what runs right now; the agent runs it on a CPU by `BPF_PROG_TEST_RUN` |
//! | `task_newtask` | tp_btf | a new task in scope remembers up to where it has been accounted |
//! | `sched_process_exit` | tp_btf | exits per account, one record each |
//! | `mark_victim_task`, `mark_victim_pid` | tp_btf `mark_victim` | victims of the kernel's OOM killer; which of the two loads depends on the kernel |
//! | `cgroup_mkdir`, `cgroup_rmdir`, `cgroup_release`, `cgroup_attach_task` | tp_btf | what is in scope, and which account a task counts to |
//! | `direct_reclaim_begin`/`_end`, `memcg_reclaim_begin`/`_end` | tp_btf | stall time per account |
//! | `block_bio_queue` | tp_btf | bytes and operations of disks per account |
//! | `block_bio_complete`, `block_rq_complete` | tp_btf | how long these took, from devices without and with a queue of requests |
//! | `tcp_retransmit_skb` | tp_btf | TCP segments sent again per account |
//! | `walk` | iter `cgroup` | a record for each cgroup below kubepods when the agent asks |
//! | `charge` | fentry `page_counter_try_charge` | armed levels, at the charge that reaches them |
//!
//! The programs decide nothing: they count and report, the agent acts. A task outside the
//! kubepods subtree costs one lookup in its CPU's cache.
//!
//! Identity: the cgroup of the unified (v2) hierarchy, or on pure v1 the memory controller's.
//!
//! The rarer programs write to the agent's log. The agent sets the level before it loads them, and the verifier
//! removes the statements below it. `sched_switch`, `flush` and `charge` have none.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]
#![expect(
    clippy::needless_pass_by_value,
    reason = "aya's macros call the programs with their context by value"
)]

mod account;
mod atomic;
mod disk;
mod exit;
mod histogram;
mod kernel;
mod level;
mod lifecycle;
mod maps;
mod near;
mod network;
mod objective;
mod remembered;
mod stall;
mod task_storage;
mod telemetry;
mod walk;

use aya_ebpf::{
    macros::{btf_tracepoint, fentry, raw_tracepoint},
    programs::{BtfTracePointContext, FEntryContext, RawTracePointContext},
};

use aya_log_ebpf::{debug, warn};
use kernel::{Bio, Cgroup, Packet, PageCounter, Request, Socket, Task};
use lifecycle::Outcome;

#[btf_tracepoint(function = "sched_switch")]
fn sched_switch(ctx: BtfTracePointContext) -> i32 {
    // (preempt, prev, next, prev_state); the agent has checked that in BTF.
    let (prev, next) = (Task(ctx.arg(1)), Task(ctx.arg(2)));
    account::switch(prev, next);
    if ctx.arg::<u64>(3) & kernel::TASK_DEAD != 0 {
        exit::last_switch(prev);
        remembered::forget(prev);
    }
    0
}

#[raw_tracepoint(tracepoint = "sched_switch")]
fn flush(_ctx: RawTracePointContext) -> i32 {
    account::flush();
    0
}

#[btf_tracepoint(function = "task_newtask")]
fn task_newtask(ctx: BtfTracePointContext) -> i32 {
    account::born(Task(ctx.arg(0)));
    0
}

#[btf_tracepoint(function = "sched_process_exit")]
fn sched_process_exit(ctx: BtfTracePointContext) -> i32 {
    let task = Task(ctx.arg(0));
    account::leave(task);
    let last = if kernel::EXIT_HAS_GROUP_DEAD.load() != 0 {
        ctx.arg::<u64>(1) as u8 != 0
    } else {
        task.signal().live_threads() == 0
    };
    if last {
        exit::last_thread(task);
        debug!(&ctx, "process {} exits", task.tgid());
    }
    0
}

#[btf_tracepoint(function = "mark_victim")]
fn mark_victim_task(ctx: BtfTracePointContext) -> i32 {
    let task = Task(ctx.arg(0));
    exit::oom_victim(task.tgid(), Some(task));
    debug!(&ctx, "process {} chosen by the OOM killer", task.tgid());
    0
}

#[btf_tracepoint(function = "mark_victim")]
fn mark_victim_pid(ctx: BtfTracePointContext) -> i32 {
    exit::oom_victim(ctx.arg::<u64>(0) as u32, None);
    0
}

#[btf_tracepoint(function = "cgroup_mkdir")]
fn cgroup_mkdir(ctx: BtfTracePointContext) -> i32 {
    let cgroup = Cgroup(ctx.arg(0));
    match lifecycle::mkdir(cgroup) {
        Outcome::OutOfScope => {}
        Outcome::Entered => debug!(&ctx, "cgroup {} below {}", cgroup.id(), cgroup.parent_id()),
        Outcome::Shared => warn!(
            &ctx,
            "no free account: cgroup {} counts to its parent",
            cgroup.id()
        ),
        Outcome::NoRoom => warn!(
            &ctx,
            "no room for cgroup {}: it is not accounted",
            cgroup.id()
        ),
    }
    0
}

#[btf_tracepoint(function = "cgroup_rmdir")]
fn cgroup_rmdir(ctx: BtfTracePointContext) -> i32 {
    lifecycle::gone(Cgroup(ctx.arg(0)), podwarden_abi::EventKind::Rmdir);
    0
}

#[btf_tracepoint(function = "cgroup_release")]
fn cgroup_release(ctx: BtfTracePointContext) -> i32 {
    lifecycle::gone(Cgroup(ctx.arg(0)), podwarden_abi::EventKind::Release);
    0
}

#[btf_tracepoint(function = "cgroup_attach_task")]
fn cgroup_attach_task(ctx: BtfTracePointContext) -> i32 {
    // (dst_cgrp, path, task, threadgroup)
    let (to, task) = (Cgroup(ctx.arg(0)), Task(ctx.arg(2)));
    let whole_process = ctx.arg::<u64>(3) as u8 != 0;
    lifecycle::attach(to, task, whole_process);
    debug!(&ctx, "process {} moves to cgroup {}", task.tgid(), to.id());
    0
}

#[btf_tracepoint(function = "mm_vmscan_direct_reclaim_begin")]
fn direct_reclaim_begin(_ctx: BtfTracePointContext) -> i32 {
    stall::begin(stall::Kind::Direct);
    0
}

#[btf_tracepoint(function = "mm_vmscan_direct_reclaim_end")]
fn direct_reclaim_end(_ctx: BtfTracePointContext) -> i32 {
    stall::end(stall::Kind::Direct);
    0
}

#[btf_tracepoint(function = "mm_vmscan_memcg_reclaim_begin")]
fn memcg_reclaim_begin(_ctx: BtfTracePointContext) -> i32 {
    stall::begin(stall::Kind::Memcg);
    0
}

#[btf_tracepoint(function = "mm_vmscan_memcg_reclaim_end")]
fn memcg_reclaim_end(_ctx: BtfTracePointContext) -> i32 {
    stall::end(stall::Kind::Memcg);
    0
}

#[btf_tracepoint(function = "block_bio_queue")]
fn block_bio_queue(ctx: BtfTracePointContext) -> i32 {
    disk::queued(Bio(ctx.arg(0)));
    0
}

#[btf_tracepoint(function = "block_bio_complete")]
fn block_bio_complete(ctx: BtfTracePointContext) -> i32 {
    // (queue, bio)
    disk::bio_done(Bio(ctx.arg(1)));
    0
}

#[btf_tracepoint(function = "block_rq_complete")]
fn block_rq_complete(ctx: BtfTracePointContext) -> i32 {
    // (request, error, bytes)
    disk::request_done(Request(ctx.arg(0)), ctx.arg::<u64>(2) as u32);
    0
}

#[btf_tracepoint(function = "tcp_retransmit_skb")]
fn tcp_retransmit_skb(ctx: BtfTracePointContext) -> i32 {
    // (socket, packet, error)
    if kernel::RETRANSMIT_HAS_ERROR.load() != 0 && ctx.arg::<u64>(2) as u32 != 0 {
        return 0;
    }
    network::retransmitted(Socket(ctx.arg(0)), Packet(ctx.arg(1)));
    0
}

#[fentry(function = "page_counter_try_charge")]
fn charge(ctx: FEntryContext) -> i32 {
    level::charge(PageCounter(ctx.arg(0)), ctx.arg(1));
    0
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // The verifier proves that no program reaches this.
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
