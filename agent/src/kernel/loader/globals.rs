//! What the kernel programs are told of this kernel.

use std::collections::HashMap as StdHashMap;

use podwarden_abi::for_each_offset;

use super::{LoadError, LoadOptions};
use crate::kernel::btf::KernelBtf;

/// The read-only globals of the object.
pub(super) fn globals(
    btf: &KernelBtf,
    options: &LoadOptions,
) -> Result<StdHashMap<&'static str, u64>, LoadError> {
    let mut globals = StdHashMap::new();
    macro_rules! resolve {
        ($($name:ident: $structure:literal, $path:literal;)*) => {
            $(
                let offset = btf.offset($structure, $path).ok_or(LoadError::NoMember {
                    structure: $structure,
                    path: $path,
                })?;
                globals.insert(stringify!($name), u64::from(offset));
            )*
        };
    }
    for_each_offset!(resolve);
    check_arguments(
        btf,
        "sched_switch",
        &["bool", "task_struct *", "task_struct *", "unsigned int"],
    )?;
    check_arguments(btf, "sched_process_exit", &["task_struct *"])?;
    check_arguments(btf, "cgroup_mkdir", &["cgroup *"])?;
    check_arguments(
        btf,
        "cgroup_attach_task",
        &["cgroup *", "char *", "task_struct *", "bool"],
    )?;
    let exit_arguments = btf
        .tracepoint_args("sched_process_exit")
        .unwrap_or_default();
    globals.insert("EXIT_HAS_GROUP_DEAD", u64::from(exit_arguments.len() >= 2));
    globals.insert(
        "STORAGE_RECURS",
        u64::from(btf.func_exists("bpf_task_storage_get_recur")),
    );
    let memory = btf
        .enum_value("cgroup_subsys_id", "memory_cgrp_id")
        .and_then(|v| u64::try_from(v).ok())
        .ok_or(LoadError::NoMember {
            structure: "cgroup_subsys_id",
            path: "memory_cgrp_id",
        })?;
    globals.insert("MEMORY_CGRP_ID", memory);
    globals.insert("IDENTITY_HIERARCHY", u64::from(options.identity_hierarchy));
    let cpus = aya::util::nr_cpus().unwrap_or(1);
    globals.insert("POSSIBLE_CPUS", cpus as u64);
    Ok(globals)
}

/// Compares the first arguments of a tracepoint with those that the programs were written for.
fn check_arguments(
    btf: &KernelBtf,
    name: &'static str,
    known: &[&'static str],
) -> Result<(), LoadError> {
    let found = btf.tracepoint_args(name);
    let matches = found.as_ref().is_some_and(|found| {
        found.len() >= known.len() && known.iter().zip(found).all(|(k, f)| f.contains(k))
    });
    if matches {
        return Ok(());
    }
    Err(LoadError::Tracepoint {
        name,
        found: found.map_or_else(|| "no such tracepoint".to_owned(), |f| f.join(", ")),
        known: match name {
            "sched_switch" => "bool, task_struct *, task_struct *, unsigned int",
            "sched_process_exit" => "task_struct *, ...",
            "cgroup_attach_task" => "cgroup *, const char *, task_struct *, bool",
            _ => "cgroup *, ...",
        },
    })
}
