//! CPU quotas and bursts of pods and of the besteffort tier, where an agent and its guards were killed.

use std::path::Path;

use super::{Item, Place, Step, put_back};
use crate::colocation::{found_file, hold_file, left, restore};

pub(super) const STEP: Step = Step {
    name: "quotas",
    about: "CPU quotas and bursts that are not what the agent found",
    run,
};

fn run(place: &Place) -> anyhow::Result<Vec<Item>> {
    let files = [found_file, hold_file].map(|file| file(&place.run_dir, &place.cgroup_root));
    Ok(files
        .into_iter()
        .flat_map(|file| undo(place, &file))
        .collect())
}

fn undo(place: &Place, found: &Path) -> Vec<Item> {
    let cgroups = left(found.to_owned());
    if !place.dry_run && !cgroups.is_empty() {
        restore(&place.tree, found.to_owned());
    }
    let refused = "the kernel refused a quota, see the log";
    put_back(place, found, &cgroups, refused)
}
