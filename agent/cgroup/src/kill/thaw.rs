//! The end of a freeze (cgroup v1).

use std::os::fd::{AsFd as _, OwnedFd};

use super::walk::freezer_states;
use crate::io;

pub(super) const THAWED: &[u8] = b"THAWED";

/// Thaws a v1 cgroup and all below it when dropped: a nested cgroup that was frozen by itself (a
/// paused container) would keep its killed processes alive.
pub(super) struct Thaw<'a> {
    pub(super) state: &'a OwnedFd,
    pub(super) directory: &'a OwnedFd,
}

impl Drop for Thaw<'_> {
    fn drop(&mut self) {
        // A failure means that the cgroup is gone, and with it everything frozen in it.
        let _ = io::write_fd(self.state, THAWED);
        let _ = freezer_states(self.directory.as_fd(), &mut |state| {
            let _ = io::write_fd(state, THAWED);
        });
    }
}
