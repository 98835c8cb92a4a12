//! CPU quotas and bursts of pods, where an agent and its guard were both killed.

use super::{Item, Place, Step};
use crate::colocation::{found_file, left, restore};

pub(super) const STEP: Step = Step {
    name: "quotas",
    about: "CPU quotas and bursts of pods that are not what the agent found",
    run,
};

fn run(place: &Place) -> anyhow::Result<Vec<Item>> {
    let found = found_file(&place.run_dir, &place.cgroup_root);
    let cgroups = left(found.clone());
    if !place.dry_run && !cgroups.is_empty() {
        restore(&place.tree, found.clone());
    }
    // The file goes when all of it is done.
    let undone = place.dry_run || !found.exists();
    let item = |cgroup: &podwarden_cgroup::CgroupPath| match undone {
        true => Item::gone(cgroup.to_string()),
        false => Item::stays(
            cgroup.to_string(),
            "the kernel refused a quota, see the log",
        ),
    };
    Ok(cgroups.iter().map(item).collect())
}
