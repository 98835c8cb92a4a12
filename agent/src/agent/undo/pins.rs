//! Maps that keep the accounts between two agents.

use super::{Item, Place, Step};
use crate::{base::error::chain, kernel::pins};

pub(super) const STEP: Step = Step {
    name: "pins",
    about: "pinned maps with the accounts of pods",
    run,
};

fn run(place: &Place) -> anyhow::Result<Vec<Item>> {
    let found = pins::left(&place.bpf_fs, &place.cgroup_root);
    if place.dry_run {
        return Ok(found
            .iter()
            .map(|path| Item::gone(path.display().to_string()))
            .collect());
    }
    let removed = found.iter().map(|path| match pins::remove(path) {
        Ok(()) => Item::gone(path.display().to_string()),
        Err(error) => Item::stays(path.display().to_string(), chain(&error)),
    });
    let items = removed.collect();
    pins::remove_empty(&place.bpf_fs, &place.cgroup_root);
    Ok(items)
}
