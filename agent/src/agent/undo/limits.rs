//! The tiers' limits, where an agent and its guard were both killed.

use anyhow::Context as _;
use podwarden_cgroup::Driver;

use super::{Item, Place, Step, put_back};
use crate::hierarchy::converge::{found_file, guard};

pub(super) const STEP: Step = Step {
    name: "limits",
    about: "limits of the tiers that are not what the agent found",
    run,
};

fn run(place: &Place) -> anyhow::Result<Vec<Item>> {
    let found = found_file(&place.run_dir, &place.cgroup_root);
    let is_slices = place.drivers == [Driver::Systemd];
    let of_guard = guard::Place {
        cgroup_root: place.cgroup_root.clone(),
        found: Some(found.clone()),
        frozen: None,
        quotas: None,
        resctrl: None,
        systemd: is_slices,
    };
    let left = guard::put_back(&of_guard, place.dry_run).context("put the tiers' limits back")?;
    let refused = "the kernel refused a limit, see the log";
    Ok(put_back(place, &found, &left, refused))
}
