//! CPU quotas and bursts of pods, where an agent and its guard were both killed.

use super::{Item, Place, Step, put_back};
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
    let refused = "the kernel refused a quota, see the log";
    Ok(put_back(place, &found, &cgroups, refused))
}
