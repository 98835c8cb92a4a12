//! Where `struct pids_cgroup` counts forks that a limit refused: what `pids.events` shows as `max`
//! (`__pids_events_show`, kernel/cgroup/pids.c).
//!
//! From Linux 6.11 on `events` has what the limits of a cgroup and of those below it refused, and `events_local` what
//! was refused to its own tasks, which v1 shows, and v2 where it is mounted with `pids_localevents`. Before there is
//! `events_limit` alone, of its own tasks.

use std::fs;

use crate::kernel::btf::KernelBtf;

/// Bytes of one count.
const WORD: u32 = 8;

/// The programs' globals with their values; none where they are not known.
pub(in crate::kernel) fn globals(btf: &KernelBtf) -> Vec<(&'static str, u64)> {
    let count = |array, of| {
        let place = u32::try_from(btf.enum_value("pidcg_event", of)?).ok()?;
        Some(btf.offset("pids_cgroup", array)? + place * WORD)
    };
    let of_limits = count("events", "PIDCG_MAX").filter(|_| !is_local());
    let of_tasks = count("events_local", "PIDCG_FORKFAIL");
    let of_tasks = of_tasks.or_else(|| btf.offset("pids_cgroup", "events_limit"));
    let globals = [
        ("FORKS_OF_LIMITS_AT", of_limits),
        ("FORKS_OF_TASKS_AT", of_tasks),
    ];
    let known = globals
        .into_iter()
        .filter_map(|(global, at)| Some((global, at?.into())));
    known.collect()
}

/// Whether v2 counts as v1 does.
fn is_local() -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut fields = mounts.lines().map(|line| line.split(' ').skip(2));
    fields.any(|mut mount| {
        mount.next() == Some("cgroup2")
            && mount.next().is_some_and(|options| {
                options
                    .split(',')
                    .any(|option| option == "pids_localevents")
            })
    })
}
