//! `podwarden undo`: removes what agents have left on a node, when none runs any more.
//!
//! An agent that ends takes its own back (`convergence.onExit`), and a guard does that for one that was killed.
//! What stays after `kubectl delete` of the DaemonSet is in [`STEPS`], each of which stands alone: it finds what
//! there is, and removes it unless it is only to be listed. To undo more, add a step.

mod cgroups;
mod frozen;
mod limits;
mod pins;
mod quotas;
mod resctrl;
mod state;

use std::path::{Path, PathBuf};

use podwarden_cgroup::{CgroupPath, Driver, Hierarchies, Tree};
use serde::Serialize;

use super::start::{self, LOCK_DIR, StartError};
use crate::{base::error::chain, config::Config};

/// In the order in which they are undone: what runs first, then a limit before its cgroup.
const STEPS: &[Step] = &[
    frozen::STEP,
    limits::STEP,
    quotas::STEP,
    resctrl::STEP,
    cgroups::STEP,
    pins::STEP,
    state::STEP,
];

/// One kind of thing that agents leave.
struct Step {
    name: &'static str,
    /// What is done about it, for people.
    about: &'static str,
    /// Finds what there is, and undoes it unless [`Place::dry_run`].
    run: fn(&Place) -> anyhow::Result<Vec<Item>>,
}

/// Where to look.
struct Place {
    tree: Tree,
    cgroup_root: String,
    /// Where an agent keeps what ends with a boot.
    run_dir: PathBuf,
    bpf_fs: PathBuf,
    state_dir: Option<PathBuf>,
    /// As configured; both where none is.
    drivers: Vec<Driver>,
    /// Also remove what the next agent would go on with.
    state: bool,
    dry_run: bool,
}

/// One thing that an agent has left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Item {
    /// A path, or a cgroup.
    pub(crate) what: String,
    /// It is gone, or would be; otherwise why it stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stays: Option<String>,
}

impl Item {
    fn gone(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            stays: None,
        }
    }

    fn stays(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            stays: Some(why.into()),
        }
    }
}

/// Values of cgroups that are put back: the file with those found goes when all of it is done.
fn put_back(place: &Place, found: &Path, cgroups: &[CgroupPath], refused: &str) -> Vec<Item> {
    let undone = place.dry_run || !found.exists();
    let item = |cgroup: &CgroupPath| match undone {
        true => Item::gone(cgroup.to_string()),
        false => Item::stays(cgroup.to_string(), refused),
    };
    cgroups.iter().map(item).collect()
}

/// What came of a step.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Undone {
    pub(crate) step: &'static str,
    pub(crate) about: &'static str,
    pub(crate) items: Vec<Item>,
    /// Why it could not be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<String>,
}

impl Undone {
    /// Nothing of it is left.
    pub(crate) fn is_whole(&self) -> bool {
        self.problem.is_none() && self.items.iter().all(|item| item.stays.is_none())
    }
}

/// Undoes what agents with this configuration have left; with `state` also what the next one would go on
/// with. A step that fails keeps no other from its work. An error while an agent runs.
pub(crate) fn run(config: &Config, state: bool, dry_run: bool) -> Result<Vec<Undone>, StartError> {
    // Held until all is done: no agent starts meanwhile.
    let _lock = start::lock(config)?;
    let hierarchies = Hierarchies::detect().map_err(StartError::Cgroup)?;
    let place = Place {
        tree: Tree::new(hierarchies, &config.cgroup_root).map_err(StartError::Cgroup)?,
        cgroup_root: config.cgroup_root.clone(),
        run_dir: LOCK_DIR.into(),
        bpf_fs: crate::kernel::pins::BPF_FS.into(),
        state_dir: config.state_dir.clone(),
        drivers: match config.cgroup_driver {
            Some(driver) => vec![driver],
            None => vec![Driver::Cgroupfs, Driver::Systemd],
        },
        state,
        dry_run,
    };
    let undo = |step: &Step| {
        let (items, problem) = match (step.run)(&place) {
            Ok(items) => (items, None),
            Err(error) => (Vec::new(), Some(chain(error.as_ref()))),
        };
        Undone {
            step: step.name,
            about: step.about,
            items,
            problem,
        }
    };
    Ok(STEPS.iter().map(undo).collect())
}
