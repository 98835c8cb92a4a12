//! Which members of kernel structures the programs read, and which figure each of them is for.
//!
//! Rust has no CO-RE yet: the agent looks each offset up in the running kernel's BTF and hands it over as
//! a read-only global, which the verifier treats as a constant. This list names the members once; both
//! sides expand it.

/// What is lost where this kernel lacks a member. The agent sets the bit of each lost figure in the global
/// `LOST_FIGURES`; the verifier then removes the code that would read the member.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Figure {
    /// CPU time per cgroup, and which cgroup is which: no program works without its members.
    Accounts = 0,
    /// Run-queue wait.
    Wait = 1,
    /// CPU time of tasks that existed before the agent, across switches that the kernel does not trace.
    Untraced = 2,
    /// Members that make a context switch cheaper; slower ways give the same figures.
    Shortcuts = 3,
    /// Levels that the programs check.
    Levels = 4,
    /// Exits of processes.
    Exits = 5,
    /// Command, CPU time and largest resident set in the record of an exit.
    ExitDetails = 6,
    /// Waits that are longer than their objective, when they end.
    LongWaits = 7,
    /// Memory of every cgroup in one pass.
    Walk = 8,
    /// Tasks of every cgroup in that pass.
    WalkPids = 9,
    /// CPU bandwidth of every cgroup in that pass.
    WalkBandwidth = 10,
    /// Pressure of every cgroup in that pass.
    WalkPressure = 11,
    /// Reads and writes of disks.
    Disk = 12,
    /// TCP segments that are sent again.
    Retransmits = 13,
    /// How long reads and writes of disks take.
    DiskLatency = 14,
}

impl Figure {
    /// Every one.
    pub const ALL: [Self; 15] = [
        Self::Accounts,
        Self::Wait,
        Self::Untraced,
        Self::Shortcuts,
        Self::Levels,
        Self::Exits,
        Self::ExitDetails,
        Self::LongWaits,
        Self::Walk,
        Self::WalkPids,
        Self::WalkBandwidth,
        Self::WalkPressure,
        Self::Disk,
        Self::Retransmits,
        Self::DiskLatency,
    ];

    /// Its bit in the global `LOST_FIGURES`.
    pub const fn bit(self) -> u64 {
        1 << self as u32
    }
}

/// Calls `$each!` with every `(GLOBAL, figure, structure, member path)` that the programs read.
#[macro_export]
macro_rules! for_each_offset {
    ($each:ident) => {
        $each! {
            OFF_TASK_CGROUPS: Accounts, "task_struct", "cgroups";
            OFF_TASK_TGID: Accounts, "task_struct", "tgid";
            OFF_TASK_COMM: ExitDetails, "task_struct", "comm";
            OFF_TASK_SIGNAL: Exits, "task_struct", "signal";
            OFF_TASK_LEADER: Exits, "task_struct", "group_leader";
            OFF_TASK_START: Accounts, "task_struct", "start_time";
            OFF_TASK_EXIT_CODE: Exits, "task_struct", "exit_code";
            OFF_TASK_RUNTIME: Accounts, "task_struct", "se.sum_exec_runtime";
            OFF_TASK_PICKED_RUNTIME: Untraced, "task_struct", "se.prev_sum_exec_runtime";
            OFF_TASK_PRIO: Untraced, "task_struct", "prio";
            OFF_TASK_CHARGED: Shortcuts, "task_struct", "se.exec_start";
            OFF_TASK_CFS_RQ: LongWaits, "task_struct", "se.cfs_rq";
            OFF_TASK_RUN_DELAY: Wait, "task_struct", "sched_info.run_delay";
            OFF_TASK_LAST_QUEUED: LongWaits, "task_struct", "sched_info.last_queued";
            OFF_TASK_BPF_STORAGE: Shortcuts, "task_struct", "bpf_storage";
            OFF_CFS_RQ_RQ: LongWaits, "cfs_rq", "rq";
            OFF_RQ_CLOCK: LongWaits, "rq", "clock";
            OFF_SIGNAL_LIVE: Exits, "signal_struct", "live";
            OFF_SIGNAL_FLAGS: Exits, "signal_struct", "flags";
            OFF_SIGNAL_GROUP_EXIT_CODE: Exits, "signal_struct", "group_exit_code";
            OFF_SIGNAL_RUNTIME: ExitDetails, "signal_struct", "sum_sched_runtime";
            OFF_SIGNAL_MAXRSS: ExitDetails, "signal_struct", "maxrss";
            OFF_CSET_SUBSYS: Accounts, "css_set", "subsys";
            OFF_CSET_DFL_CGRP: Accounts, "css_set", "dfl_cgrp";
            OFF_CSS_CGROUP: Accounts, "cgroup_subsys_state", "cgroup";
            OFF_CSS_PARENT: Levels, "cgroup_subsys_state", "parent";
            OFF_CGROUP_PARENT: Accounts, "cgroup", "self.parent";
            OFF_CGROUP_KN: Accounts, "cgroup", "kn";
            OFF_CGROUP_ROOT: Accounts, "cgroup", "root";
            OFF_ROOT_HIERARCHY: Accounts, "cgroup_root", "hierarchy_id";
            OFF_KN_ID: Accounts, "kernfs_node", "id";
            OFF_KN_NAME: Accounts, "kernfs_node", "name";
            OFF_MEMCG_MEMORY: Levels, "mem_cgroup", "memory";
            OFF_COUNTER_USAGE: Levels, "page_counter", "usage";
            OFF_COUNTER_PARENT: Levels, "page_counter", "parent";
            OFF_META_SEQ: Walk, "bpf_iter_meta", "seq";
            OFF_META_SESSION: Walk, "bpf_iter_meta", "session_id";
            OFF_META_NUMBER: Walk, "bpf_iter_meta", "seq_num";
            OFF_CGROUP_SERIAL: Walk, "cgroup", "self.serial_nr";
            OFF_CGROUP_LEVEL: Walk, "cgroup", "level";
            OFF_CGROUP_ANCESTORS: Walk, "cgroup", "ancestors";
            OFF_CGROUP_SUBSYS: Walk, "cgroup", "subsys";
            OFF_MEMCG_VMSTATS: Walk, "mem_cgroup", "vmstats";
            OFF_COUNTER_MAX: Levels, "page_counter", "max";
            OFF_COUNTER_WATERMARK: Walk, "page_counter", "watermark";
            OFF_COUNTER_FAILCNT: Walk, "page_counter", "failcnt";
            OFF_PIDS_COUNTER: WalkPids, "pids_cgroup", "counter";
            OFF_GROUP_PERIODS: WalkBandwidth, "task_group", "cfs_bandwidth.nr_periods";
            OFF_GROUP_THROTTLED: WalkBandwidth, "task_group", "cfs_bandwidth.nr_throttled";
            OFF_GROUP_THROTTLED_TIME: WalkBandwidth, "task_group", "cfs_bandwidth.throttled_time";
            OFF_CGROUP_PSI: WalkPressure, "cgroup", "psi";
            OFF_PSI_TOTAL: WalkPressure, "psi_group", "total";
            OFF_PSI_ENABLED: WalkPressure, "psi_group", "enabled";
            OFF_BIO_OPF: Disk, "bio", "bi_opf";
            OFF_BIO_FLAGS: Disk, "bio", "bi_flags";
            OFF_BIO_SIZE: Disk, "bio", "bi_iter.bi_size";
            OFF_BIO_BLKG: Disk, "bio", "bi_blkg";
            OFF_BLKG_BLKCG: Disk, "blkcg_gq", "blkcg";
            OFF_BLKCG_CSS: Disk, "blkcg", "css";
            OFF_BIO_NEXT: DiskLatency, "bio", "bi_next";
            OFF_REQUEST_BIO: DiskLatency, "request", "bio";
            OFF_SOCK_CGROUP: Retransmits, "sock", "sk_cgrp_data.cgroup";
            OFF_SKB_CB: Retransmits, "sk_buff", "cb";
            OFF_CB_SEGMENTS: Retransmits, "tcp_skb_cb", "tcp_gso_segs";
        }
    };
}

/// Calls `$each!` with every `GLOBAL: structure` whose type id the programs are given.
#[macro_export]
macro_rules! for_each_type {
    ($each:ident) => {
        $each! {
            TYPE_TASK: "task_struct";
            TYPE_CGROUP: "cgroup";
            TYPE_MEM_CGROUP: "mem_cgroup";
            TYPE_MEMCG_VMSTATS: "memcg_vmstats";
            TYPE_PIDS_CGROUP: "pids_cgroup";
            TYPE_TASK_GROUP: "task_group";
            TYPE_PSI_GROUP: "psi_group";
        }
    };
}
