//! A kill on v2: the processes that are listed by signals, what they forked by `cgroup.kill`.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::{fs::OFlags, io::Errno};

use super::{
    KillHandle, Killed,
    listed::{Recipients, Signalled, signal_listed},
    spared::Spared,
    walk,
};
use crate::{Result, io};

/// The processes that a pass has found.
struct Pass<'a> {
    processes: u32,
    refused: bool,
    found: &'a mut dyn FnMut(u32),
}

impl Recipients for Pass<'_> {
    /// What has no pidfd is left to `cgroup.kill`, which needs no id.
    const BY_ID: bool = false;

    fn wants(&self, _: u32) -> bool {
        true
    }

    fn signalled(&mut self, pid: u32, signalled: Signalled) {
        self.processes += 1;
        self.refused |= signalled == Signalled::Refused;
        (self.found)(pid);
    }
}

impl KillHandle {
    /// Signals, then writes `file`.
    pub(super) fn kill_by_kernel(
        &self,
        file: &OwnedFd,
        spared: Option<&Spared>,
        found: &mut dyn FnMut(u32),
    ) -> Result<Killed> {
        // Failing at the list must not save the victim.
        let (processes, _) = self.signal_all(spared, found);
        let complete = self.write_kill(file, spared)?;
        Ok(killed(processes, complete))
    }

    /// Signals, and writes `file` only where a signal was refused or the list could not be read.
    pub(super) fn signal_first(
        &self,
        file: &OwnedFd,
        spared: Option<&Spared>,
        found: &mut dyn FnMut(u32),
    ) -> Result<Killed> {
        let (processes, signalled) = self.signal_all(spared, found);
        let complete = match signalled {
            true => true,
            false => self.write_kill(file, spared)?,
        };
        Ok(killed(processes, complete))
    }

    /// How many processes were listed, and whether all were and none was refused.
    fn signal_all(&self, spared: Option<&Spared>, found: &mut dyn FnMut(u32)) -> (u32, bool) {
        let mut pass = Pass {
            processes: 0,
            refused: false,
            found,
        };
        let mut visit = |cgroup: BorrowedFd<'_>| signal_listed(cgroup, &mut pass);
        let whole = walk::each(self.directory.as_fd(), spared, &mut visit);
        (pass.processes, whole == Ok(true) && !pass.refused)
    }

    /// Has the kernel kill what is in the cgroup, but for what is spared; false when a process may be left. Waits for
    /// `cgroup_mutex`.
    pub(super) fn write_kill(&self, file: &OwnedFd, spared: Option<&Spared>) -> Result<bool> {
        if spared.is_none() {
            let written = io::write_fd(file, b"1");
            return written.map(|()| true).map_err(|e| self.error("kill", e));
        }
        walk::children(self.directory.as_fd(), spared, &mut |child| {
            let file = walk::open(child, "cgroup.kill", OFlags::WRONLY)?;
            io::write_fd(&file, b"1")
        })
        .map_err(|e| self.error("kill", e))?;
        // Where the pod's cgroup is a leaf to the kernel it may hold processes itself.
        let mut own = Pass {
            processes: 0,
            refused: false,
            found: &mut |_| {},
        };
        signal_listed(self.directory.as_fd(), &mut own)
            .map_err(|e: Errno| self.error("list the processes of", e))?;
        Ok(!own.refused)
    }
}

fn killed(processes: u32, complete: bool) -> Killed {
    Killed {
        processes,
        passes: 1,
        complete,
        ..Killed::default()
    }
}
