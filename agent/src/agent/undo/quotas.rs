//! CPU quotas and bursts of pods and of the besteffort tier, and the tier's CPUs, where an agent and its guards were
//! killed.

use std::path::{Path, PathBuf};

use podwarden_cgroup::{CgroupPath, Tree};

use super::{Item, Place, Step, put_back};
use crate::colocation::{cpus_file, cpus_left, found_file, hold_file, left, restore, restore_cpus};

pub(super) const STEP: Step = Step {
    name: "quotas",
    about: "CPU quotas, bursts and CPUs that are not what the agent found",
    run,
};

fn run(place: &Place) -> anyhow::Result<Vec<Item>> {
    const REFUSED: &str = "the kernel refused a value, see the log";
    const REFUSED_CPUS: &str = "the kernel refused its list of CPUs, see the log; some kernels take it away only while the \
         cgroup has no process: then run this again";
    let of = |file: fn(&Path, &str) -> PathBuf| file(&place.run_dir, &place.cgroup_root);
    let mut items = undo(place, &of(found_file), left, restore, REFUSED);
    items.extend(undo(place, &of(hold_file), left, restore, REFUSED));
    items.extend(undo(
        place,
        &of(cpus_file),
        cpus_left,
        restore_cpus,
        REFUSED_CPUS,
    ));
    Ok(items)
}

fn undo(
    place: &Place,
    found: &Path,
    left: fn(PathBuf) -> Vec<CgroupPath>,
    restore: fn(&Tree, PathBuf) -> bool,
    refused: &str,
) -> Vec<Item> {
    let cgroups = left(found.to_owned());
    if !place.dry_run && !cgroups.is_empty() {
        restore(&place.tree, found.to_owned());
    }
    put_back(place, found, &cgroups, refused)
}
