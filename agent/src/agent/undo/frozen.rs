//! Pods that an agent froze to kill them whole (cgroup v1), where it and its guard were killed in the middle.

use podwarden_cgroup::{LeftFrozen, freeze_record_file};

use super::{Item, Place, Step};

pub(super) const STEP: Step = Step {
    name: "frozen",
    about: "pods that are frozen in the middle of an eviction",
    run,
};

fn run(place: &Place) -> anyhow::Result<Vec<Item>> {
    let file = freeze_record_file(&place.run_dir, &place.cgroup_root)?;
    let Some(left) = LeftFrozen::open(&file)? else {
        return Ok(Vec::new());
    };
    if place.dry_run {
        return Ok(vec![Item::gone(file.display().to_string())]);
    }
    let thawed = left.thaw(&place.tree)?;
    std::fs::remove_file(&file)?;
    let thawed = thawed.iter().map(|cgroup| cgroup.display().to_string());
    Ok(thawed.map(Item::gone).collect())
}
