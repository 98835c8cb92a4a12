//! The read-only globals: what the kernel programs need of this kernel.

use std::collections::HashMap as StdHashMap;

use podwarden_abi::{Figure, Objective, for_each_type};

use super::{LoadError, LoadOptions};
use crate::kernel::{
    btf::KernelBtf,
    hooks::{MEMBERS, Member},
    walk,
};

/// Members that stand in for one that this kernel lacks, as (missing, instead). A start time never changes, so
/// no wait is counted; the pointer to a task's cgroups is never null, so its storage is always looked up.
const STAND_INS: [(&str, &str); 2] = [
    ("OFF_TASK_RUN_DELAY", "OFF_TASK_START"),
    ("OFF_TASK_BPF_STORAGE", "OFF_TASK_CGROUPS"),
];

macro_rules! types {
    ($($global:ident: $structure:literal;)*) => {
        const TYPES: &[(&str, &str)] = &[$((stringify!($global), $structure)),*];
    };
}
for_each_type!(types);

/// The globals of the object, for a kernel that lacks the members `lacking`.
pub(super) fn globals(
    btf: &KernelBtf,
    options: &LoadOptions,
    lacking: &[Member],
) -> Result<StdHashMap<&'static str, u64>, LoadError> {
    if let Some(member) = lacking.iter().find(|m| m.figure == Figure::Accounts) {
        return Err(LoadError::NoMember {
            structure: member.structure,
            path: member.path,
        });
    }
    let mut globals = StdHashMap::new();
    for member in MEMBERS.iter().filter(|member| !lacking.contains(member)) {
        if let Some(offset) = btf.offset(member.structure, member.path) {
            globals.insert(member.global, u64::from(offset));
        }
    }
    for (missing, instead) in STAND_INS {
        if let Some(offset) = globals.get(instead).copied() {
            globals.entry(missing).or_insert(offset);
        }
    }
    let lost = lacking.iter().fold(0, |bits, m| bits | m.figure.bit());
    globals.insert("LOST_FIGURES", lost);
    globals.insert("HAS_CASTS", u64::from(options.casts(btf).are_known()));
    for (global, tracepoint, least) in [
        ("EXIT_HAS_GROUP_DEAD", "sched_process_exit", 2),
        ("RETRANSMIT_HAS_ERROR", "tcp_retransmit_skb", 3),
    ] {
        let arguments = btf.tracepoint_args(tracepoint).unwrap_or_default();
        globals.insert(global, u64::from(arguments.len() >= least));
    }
    globals.insert(
        "STORAGE_RECURS",
        u64::from(btf.func_exists("bpf_task_storage_get_recur")),
    );
    let controller = |name| {
        let value = btf.enum_value("cgroup_subsys_id", name);
        value.and_then(|v| u64::try_from(v).ok())
    };
    let memory = controller("memory_cgrp_id").ok_or(LoadError::NoMember {
        structure: "cgroup_subsys_id",
        path: "memory_cgrp_id",
    })?;
    globals.insert("MEMORY_CGRP_ID", memory);
    for (global, name) in [
        ("CPU_CGRP_ID", "cpu_cgrp_id"),
        ("PIDS_CGRP_ID", "pids_cgrp_id"),
        ("IO_CGRP_ID", "io_cgrp_id"),
    ] {
        // A kernel without the controller lacks its structure, too, and the programs do not look then.
        globals.insert(global, controller(name).unwrap_or_default());
    }
    for (global, name) in TYPES.iter().copied() {
        // Without the structure what is read of it is lost.
        globals.insert(global, u64::from(btf.struct_id(name).unwrap_or_default()));
    }
    globals.extend(walk::globals(btf));
    globals.insert("IDENTITY_HIERARCHY", u64::from(options.identity_hierarchy));
    let least = if options.waits {
        Objective::LEAST_NS
    } else {
        0
    };
    globals.insert("LEAST_OBJECTIVE", least);
    let cpus = aya::util::nr_cpus().unwrap_or(1);
    globals.insert("POSSIBLE_CPUS", cpus as u64);
    Ok(globals)
}
