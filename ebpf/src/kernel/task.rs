//! A task: what it has used, where it belongs, how it ends.

use podwarden_abi::Used;

use super::*;
use crate::telemetry::now;

pointer! {
    /// `struct task_struct *`
    Task {
        /// Process id in the root namespace.
        tgid: u32 = OFF_TASK_TGID,
        /// `CLOCK_MONOTONIC` at the task's start, nanoseconds.
        start_time: u64 = OFF_TASK_START,
        /// CPU time so far: exactly what the kernel has charged to the task's cgroup, since
        /// `update_curr` (kernel/sched/fair.c) adds one delta to both.
        runtime: u64 = OFF_TASK_RUNTIME,
        /// [`Task::runtime`] when the task was last picked to run; fair tasks only (`set_next_entity`,
        /// kernel/sched/fair.c).
        runtime_when_picked: u64 = OFF_TASK_PICKED_RUNTIME,
        /// How long the task has waited for CPUs so far. The wait that ends with the switch that is being
        /// traced is not in it yet (`sched_info_arrive`, kernel/sched/stats.h).
        waited: u64 = OFF_TASK_RUN_DELAY,
        /// When the task came to the run queue that it is on, by that queue's clock; 0 for one that runs
        /// (`sched_info_enqueue`, kernel/sched/stats.h).
        last_queued: u64 = OFF_TASK_LAST_QUEUED,
        exit_code: u32 = OFF_TASK_EXIT_CODE,
    }
}

pointer! {
    /// `struct signal_struct *`: what the threads of a process have in common.
    Signal {
        /// Threads of the process that have not begun to exit.
        live_threads: u32 = OFF_SIGNAL_LIVE,
        flags: u32 = OFF_SIGNAL_FLAGS,
        group_exit_code: u32 = OFF_SIGNAL_GROUP_EXIT_CODE,
        /// CPU time of the process's threads that are gone, nanoseconds.
        reaped_runtime: u64 = OFF_SIGNAL_RUNTIME,
        /// Largest resident set of the process, pages.
        max_rss: u64 = OFF_SIGNAL_MAXRSS,
    }
}

impl Task {
    /// The task that runs on this CPU.
    #[inline(always)]
    pub(crate) fn current() -> Self {
        // SAFETY: always allowed; returns the running task.
        Self(unsafe { helpers::bpf_get_current_task_btf() }.cast::<u8>())
    }

    #[inline(always)]
    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }

    /// A number of so many bits that the address gives.
    #[inline(always)]
    pub(crate) fn hash(self, bits: u32) -> u32 {
        let low: u32;
        // SAFETY: a move. Of a pointer the verifier allows no arithmetic, but a copy of its low half is a number.
        unsafe {
            core::arch::asm!("{low} = {task}", task = in(wreg) self.0 as u32, low = lateout(wreg) low);
        }
        // Multiplicative hashing (Knuth, The Art of Computer Programming, volume 3, 6.4).
        low.wrapping_mul(0x9e37_79b1) >> (u32::BITS - bits)
    }

    /// A member that is a pointer.
    #[inline(always)]
    fn pointer(self, offset: u64) -> *const u8 {
        member(untrusted(self.0, TYPE_TASK.load()), offset)
    }

    /// [`Task::tgid`] of a task by its address only.
    #[inline(always)]
    pub(crate) fn tgid_at(address: u64) -> Option<u32> {
        read_at(address + OFF_TASK_TGID.load())
    }

    /// [`Task::runtime`] and [`Task::waited`].
    #[inline(always)]
    pub(crate) fn used(self) -> Used {
        Used {
            runtime: self.runtime(),
            waited: self.waited(),
        }
    }

    /// True for SCHED_OTHER, SCHED_BATCH and SCHED_IDLE.
    #[inline(always)]
    pub(crate) fn is_fair(self) -> bool {
        /// `MAX_RT_PRIO` of include/linux/sched/prio.h.
        const MAX_RT_PRIO: i32 = 100;
        member::<i32>(self.0, OFF_TASK_PRIO.load()) >= MAX_RT_PRIO
    }

    /// [`Task::used`] of a task by its address only.
    #[inline(always)]
    pub(crate) fn used_at(address: u64) -> Option<Used> {
        Some(Used {
            runtime: read_at(address + OFF_TASK_RUNTIME.load())?,
            waited: read_at(address + OFF_TASK_RUN_DELAY.load())?,
        })
    }

    /// [`Task::runtime_when_picked`] of a task by its address only.
    #[inline(always)]
    pub(crate) fn runtime_when_picked_at(address: u64) -> Option<u64> {
        read_at(address + OFF_TASK_PICKED_RUNTIME.load())
    }

    /// When the task's CPU time was last charged, by the clock of its run queue less what interrupts took; for a task that
    /// leaves a CPU that is now (`update_curr`, kernel/sched/fair.c). Where it is out of reach `CLOCK_MONOTONIC`, which costs
    /// more.
    #[inline(always)]
    pub(crate) fn charged(self) -> u64 {
        if !has(Figure::Shortcuts) {
            return now();
        }
        member(self.0, OFF_TASK_CHARGED.load())
    }

    /// The clock of the run queue that the task is on.
    #[inline(always)]
    pub(crate) fn queue_clock(self) -> u64 {
        let cfs_rq = self.pointer(OFF_TASK_CFS_RQ.load());
        let rq: *const u8 = member(cfs_rq, OFF_CFS_RQ_RQ.load());
        member(rq, OFF_RQ_CLOCK.load())
    }

    /// Whether any program has stored something with the task.
    #[inline(always)]
    pub(crate) fn has_storage(self) -> bool {
        !self.pointer(OFF_TASK_BPF_STORAGE.load()).is_null()
    }

    #[inline(always)]
    fn css_set(self) -> *const u8 {
        self.pointer(OFF_TASK_CGROUPS.load())
    }

    /// The task's cgroup in the hierarchy that identifies pods.
    #[inline(always)]
    pub(crate) fn cgroup(self) -> Cgroup {
        let cset = self.css_set();
        if IDENTITY_HIERARCHY.load() == 0 {
            Cgroup(member(cset, OFF_CSET_DFL_CGRP.load()))
        } else {
            self.memory_css().cgroup()
        }
    }

    /// The task's memory cgroup.
    #[inline(always)]
    pub(crate) fn memory_css(self) -> Css {
        self.css(MEMORY_CGRP_ID.load())
    }

    /// The state of a controller that the task belongs to.
    #[inline(always)]
    pub(super) fn css(self, id: u64) -> Css {
        member(self.css_set(), OFF_CSET_SUBSYS.load() + id * 8)
    }

    #[inline(always)]
    pub(crate) fn signal(self) -> Signal {
        Signal(self.pointer(OFF_TASK_SIGNAL.load()))
    }

    #[inline(always)]
    pub(crate) fn leader(self) -> Self {
        Self(self.pointer(OFF_TASK_LEADER.load()))
    }

    /// What `wait(2)` will report for the process (kernel/exit.c, `wait_task_zombie`).
    #[inline(always)]
    pub(crate) fn exit_status(self) -> u32 {
        /// `SIGNAL_GROUP_EXIT` of include/linux/sched/signal.h.
        const GROUP_EXIT: u32 = 4;
        let signal = self.signal();
        if signal.flags() & GROUP_EXIT != 0 {
            signal.group_exit_code()
        } else {
            self.leader().exit_code()
        }
    }

    /// `comm`, as two words.
    #[inline(always)]
    pub(crate) fn comm(self) -> [u8; podwarden_abi::TASK_COMM_LEN] {
        let mut comm = [0; podwarden_abi::TASK_COMM_LEN];
        let at = self.address() + OFF_TASK_COMM.load();
        // SAFETY: a bad address is an error, not a fault; the buffer is 16 bytes long.
        unsafe {
            helpers::generated::bpf_probe_read_kernel(
                comm.as_mut_ptr().cast(),
                comm.len() as u32,
                at as *const _,
            );
        }
        comm
    }
}
