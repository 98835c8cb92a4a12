//! The process that puts CPU quotas back when the agent is killed.

use std::path::Path;

use crate::hierarchy::converge::guard::{Guard, Place};

/// Puts back what is in the file `found` after a kill of the agent: a process of its own.
pub(super) fn guard(cgroup_root: &str, found: &Path) -> Option<Guard> {
    let place = Place {
        cgroup_root: cgroup_root.to_owned(),
        found: None,
        frozen: None,
        quotas: Some(found.to_owned()),
        resctrl: None,
        systemd: false,
    };
    let guard = match Guard::start(&place) {
        Ok(guard) => guard,
        Err(error) => {
            tracing::warn!(%error, "after a kill only the next agent restores CPU quotas: no process to be had");
            return None;
        }
    };
    if let Err(error) = guard.leave() {
        tracing::warn!(%error, "what ends the agent's cgroup ends the guard of CPU quotas, too");
    }
    Some(guard)
}
