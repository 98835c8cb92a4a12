//! The files of a new cgroup: where they are, and what is written there now.

use std::{
    fs,
    path::{Path, PathBuf},
};

use podwarden_cgroup::{CgroupPath, Controller, Error};
use podwarden_policy::{plan::Action, settings::Setting};

use super::Parts;
use crate::hierarchy::{
    act::{Operation, Outcome},
    starting::holds_back,
};

/// The controllers whose files are written.
const CONTROLLERS: [Controller; 2] = [Controller::Cpu, Controller::Memory];

impl Parts {
    /// Of a cgroup, one for each hierarchy.
    pub(super) fn directories(&self, path: &CgroupPath) -> Vec<PathBuf> {
        let all = CONTROLLERS.map(|controller| self.tree.path(controller, path));
        let mut directories: Vec<_> = all.into_iter().flatten().collect();
        directories.dedup();
        directories
    }

    /// Takes out what is not to be written now; true where there is any.
    pub(super) fn hold_back(
        &self,
        path: &CgroupPath,
        container: Option<&str>,
        actions: &mut Vec<Action>,
    ) -> bool {
        let on_v1 = !self.tree.hierarchies().is_on_v2(Controller::Cpu);
        let before = actions.len();
        actions.retain(|action| match action {
            Action::Write { setting, .. } if container.is_some() => {
                !holds_back(&self.tree, path, setting)
            }
            Action::Write { setting, .. } => !(on_v1 && matches!(setting, Setting::CpuShares(_))),
            _ => true,
        });
        actions.len() < before
    }

    /// What is refused here, the reconciler's pass tries again and reports.
    pub(super) fn write(&self, path: &CgroupPath, action: &Action) {
        let Action::Write { setting, .. } = action else {
            return;
        };
        let written = self.counters.counted(Operation::Update, || {
            self.backend.write(&self.tree, path, setting)?;
            Ok::<_, Error>(Outcome::Done)
        });
        match written {
            Ok(_) => tracing::debug!(cgroup = %path, %setting, "written to a new cgroup"),
            Err(error) => {
                tracing::debug!(cgroup = %path, %setting, %error, "not written to a new cgroup");
            }
        }
    }
}

/// The directories in a directory; none where it is gone.
pub(super) fn directories_in(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}
