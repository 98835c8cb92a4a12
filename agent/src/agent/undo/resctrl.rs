//! Groups of resctrl, where an agent and its guard were killed.

use std::path::Path;

use super::{Item, Place, Step};
use crate::colocation::resctrl::{DIRECTORY, left, remove_left};

pub(super) const STEP: Step = Step {
    name: "resctrl",
    about: "groups of tasks with parts of cache and memory bandwidth",
    run,
};

fn run(place: &Place) -> anyhow::Result<Vec<Item>> {
    let dir = Path::new(DIRECTORY);
    let found = left(dir, &place.cgroup_root);
    if !place.dry_run {
        remove_left(dir, &place.cgroup_root);
    }
    let item = |group: &std::path::PathBuf| match !place.dry_run && group.exists() {
        false => Item::gone(group.display().to_string()),
        true => Item::stays(
            group.display().to_string(),
            "the kernel refused, see the log",
        ),
    };
    Ok(found.iter().map(item).collect())
}
