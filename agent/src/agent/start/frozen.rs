//! What an agent before this one left frozen in the middle of an eviction, and the record of what this one
//! freezes (cgroup v1).

use std::{fs, path::Path, sync::Arc};

use podwarden_cgroup::{
    Controller, Error, FreezeRecord, Hierarchies, LeftFrozen, Tree, freeze_record_file,
};

use super::{LOCK_DIR, StartError};
use crate::{
    config::{Config, Mode},
    hierarchy::converge::guard,
};

/// Thaws, in every mode; then makes a record where this agent may freeze.
pub(super) fn take_over(config: &Config) -> Result<Option<Arc<FreezeRecord>>, StartError> {
    take_over_in(Path::new(LOCK_DIR), config).map_err(StartError::Frozen)
}

fn take_over_in(dir: &Path, config: &Config) -> Result<Option<Arc<FreezeRecord>>, Error> {
    let hierarchies = Hierarchies::detect()?;
    let file = freeze_record_file(dir, &config.cgroup_root)?;
    if let Some(left) = LeftFrozen::open(&file)? {
        let tree = Tree::new(hierarchies.clone(), &config.cgroup_root)?;
        guard::thaw(&left, &tree);
    }
    // `cgroup.kill` does without a freeze.
    let freezes = !hierarchies.is_on_v2(Controller::Memory)
        && hierarchies.mount_of(Controller::Freezer).is_ok();
    if config.mode == Mode::Enforce && freezes {
        return FreezeRecord::create(&file).map(|record| Some(Arc::new(record)));
    }
    // It may be that there is none.
    let _ = fs::remove_file(&file);
    Ok(None)
}
