//! Which kernel structure members the programs read.
//!
//! Rust has no CO-RE yet: the agent looks each offset up in the running kernel's BTF and hands it over as
//! a read-only global, which the verifier treats as a constant. This list is the one place that
//! names them; both sides expand it.

/// Calls `$each!` with every `(GLOBAL, structure, member path)` that the programs need.
#[macro_export]
macro_rules! for_each_offset {
    ($each:ident) => {
        $each! {
            OFF_TASK_CGROUPS: "task_struct", "cgroups";
            OFF_TASK_PID: "task_struct", "pid";
            OFF_TASK_TGID: "task_struct", "tgid";
            OFF_TASK_COMM: "task_struct", "comm";
            OFF_TASK_SIGNAL: "task_struct", "signal";
            OFF_TASK_LEADER: "task_struct", "group_leader";
            OFF_TASK_START: "task_struct", "start_time";
            OFF_TASK_EXIT_CODE: "task_struct", "exit_code";
            OFF_TASK_RUNTIME: "task_struct", "se.sum_exec_runtime";
            OFF_TASK_PICKED_RUNTIME: "task_struct", "se.prev_sum_exec_runtime";
            OFF_TASK_PRIO: "task_struct", "prio";
            OFF_TASK_CFS_RQ: "task_struct", "se.cfs_rq";
            OFF_TASK_RUN_DELAY: "task_struct", "sched_info.run_delay";
            OFF_TASK_BPF_STORAGE: "task_struct", "bpf_storage";
            OFF_CFS_RQ_RQ: "cfs_rq", "rq";
            OFF_RQ_CLOCK: "rq", "clock";
            OFF_SIGNAL_LIVE: "signal_struct", "live";
            OFF_SIGNAL_FLAGS: "signal_struct", "flags";
            OFF_SIGNAL_GROUP_EXIT_CODE: "signal_struct", "group_exit_code";
            OFF_SIGNAL_RUNTIME: "signal_struct", "sum_sched_runtime";
            OFF_SIGNAL_MAXRSS: "signal_struct", "maxrss";
            OFF_CSET_SUBSYS: "css_set", "subsys";
            OFF_CSET_DFL_CGRP: "css_set", "dfl_cgrp";
            OFF_CSS_CGROUP: "cgroup_subsys_state", "cgroup";
            OFF_CSS_PARENT: "cgroup_subsys_state", "parent";
            OFF_CGROUP_PARENT: "cgroup", "self.parent";
            OFF_CGROUP_KN: "cgroup", "kn";
            OFF_CGROUP_ROOT: "cgroup", "root";
            OFF_ROOT_HIERARCHY: "cgroup_root", "hierarchy_id";
            OFF_KN_ID: "kernfs_node", "id";
            OFF_KN_NAME: "kernfs_node", "name";
            OFF_MEMCG_MEMORY: "mem_cgroup", "memory";
            OFF_COUNTER_USAGE: "page_counter", "usage";
            OFF_COUNTER_PARENT: "page_counter", "parent";
        }
    };
}
