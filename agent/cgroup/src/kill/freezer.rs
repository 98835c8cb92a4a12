//! A freeze that a kill makes, and its end (cgroup v1).

use std::{
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    sync::Arc,
};

use rustix::{fs::fstat, io::Errno};

use super::{
    record::{FreezeRecord, Noted},
    walk::{FREEZER_STATE, freezer_states},
};
use crate::{CgroupPath, Controller, Error, Result, Tree, io};

const FROZEN: &[u8] = b"FROZEN";
pub(super) const THAWED: &[u8] = b"THAWED";

/// The cgroup of the victim's name in the freezer's hierarchy.
#[derive(Debug)]
pub(super) struct Freezer {
    state: OwnedFd,
    pub(super) directory: OwnedFd,
    id: u64,
    record: Option<Arc<FreezeRecord>>,
}

impl Freezer {
    pub(super) fn open(tree: &Tree, cgroup: &CgroupPath) -> Result<Self> {
        let path = tree.path(Controller::Freezer, cgroup)?;
        let directory = io::open_dir(&path)?;
        let id = fstat(&directory).map_err(|e| Error::os("look at", path.as_path(), e))?;
        Ok(Self {
            state: io::open_write(&path.join(FREEZER_STATE))?,
            directory,
            id: id.st_ino,
            record: None,
        })
    }

    pub(super) fn with_record(self, record: Arc<FreezeRecord>) -> Self {
        Self {
            record: Some(record),
            ..self
        }
    }

    /// Everything in it runs once this is dropped, frozen or not: a paused container is frozen by itself.
    pub(super) fn thawed_at_the_end(&self) -> Freeze<'_> {
        Freeze {
            freezer: self,
            noted: None,
        }
    }
}

/// Thaws a v1 cgroup and all below it when dropped: a nested cgroup that was frozen by itself (a
/// paused container) would keep its killed processes alive.
pub(super) struct Freeze<'a> {
    freezer: &'a Freezer,
    /// Dropped, and so crossed out, once the cgroup is thawed.
    noted: Option<Noted<'a>>,
}

impl Freeze<'_> {
    /// Freezes it, noted first. What cannot be noted is not frozen.
    pub(super) fn begin(&mut self) -> std::result::Result<(), Errno> {
        if let Some(record) = &self.freezer.record {
            self.noted = record.note(self.freezer.id).ok().flatten();
            if self.noted.is_none() {
                return Ok(());
            }
        }
        io::write_fd(&self.freezer.state, FROZEN)
    }
}

impl Drop for Freeze<'_> {
    fn drop(&mut self) {
        // A failure means that the cgroup is gone, and with it everything frozen in it.
        let _ = io::write_fd(&self.freezer.state, THAWED);
        let _ = freezer_states(self.freezer.directory.as_fd(), &mut |state| {
            let _ = io::write_fd(state, THAWED);
        });
    }
}

/// Thaws one cgroup, not those below it, if it is frozen by itself. True when it was.
pub(super) fn thaw(directory: &Path) -> Result<bool> {
    let state = directory.join("freezer.self_freezing");
    let frozen = io::parse_u64(io::read_text(&state)?.as_bytes()) == Some(1);
    if frozen {
        let state = directory.join(FREEZER_STATE);
        io::write_fd(io::open_write(&state)?, THAWED)
            .map_err(|e| Error::os("thaw", directory, e))?;
    }
    Ok(frozen)
}
