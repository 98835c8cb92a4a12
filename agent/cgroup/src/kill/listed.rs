//! SIGKILL to the processes that a cgroup lists, each only while the cgroup still lists it.
//!
//! An id says nothing for long: between the list and the signal its process may end and another one, of any pod or
//! of none, may take the id over. So a few ids at a time are opened as pidfds, and the cgroup is listed again:
//! what it lists then and has a pidfd is a process of its own. The signal goes to the pidfd, which stays with that
//! process. The list is `cgroup.procs` and not `/proc/PID/cgroup`, which takes `cgroup_mutex` up to Linux 6.7
//! (`proc_cgroup_show`, `kernel/cgroup/cgroup.c`).

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal},
};

use super::walk;

/// Processes between two lists; each takes a file descriptor.
const BATCH: usize = 64;

/// What came of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signalled {
    Sent,
    /// It ended by itself after it was listed.
    Exited,
    /// It is in another pid namespace, or we lack the right or a file descriptor.
    Refused,
}

/// Who is signalled, and who hears of it.
pub(super) trait Recipients {
    /// Signal the plain id where there is no pidfd: before Linux 5.3, or without a free file descriptor.
    const BY_ID: bool;

    /// Whether a listed process is signalled.
    fn wants(&self, pid: u32) -> bool;

    /// What came of it. Not called for a process that the cgroup does not list any more.
    fn signalled(&mut self, pid: u32, signalled: Signalled);
}

/// Sends SIGKILL to the processes of one cgroup, not to those below it. Allocates nothing.
pub(super) fn signal_listed<R: Recipients>(
    cgroup: BorrowedFd<'_>,
    recipients: &mut R,
) -> Result<(), Errno> {
    let mut batch = Batch::default();
    let mut listed = Ok(());
    walk::own_processes(cgroup, &mut |pid| {
        if recipients.wants(pid) && listed.is_ok() {
            batch.open(pid);
            if batch.is_full() {
                listed = batch.signal(cgroup, recipients);
            }
        }
    })?;
    listed?;
    batch.signal(cgroup, recipients)
}

/// A listed process.
struct Listed {
    pid: u32,
    pidfd: Result<OwnedFd, Errno>,
    /// The cgroup lists it still.
    confirmed: bool,
}

struct Batch {
    listed: [Option<Listed>; BATCH],
    len: usize,
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            listed: [const { None }; BATCH],
            len: 0,
        }
    }
}

impl Batch {
    fn is_full(&self) -> bool {
        self.len == BATCH
    }

    /// Takes a listed process.
    fn open(&mut self, pid: u32) {
        let pidfd = match pid_of(pid) {
            Some(pid) => pidfd_open(pid, PidfdFlags::empty()),
            // 0 stands for a process outside our pid namespace.
            None => Err(Errno::PERM),
        };
        let listed = Listed {
            pid,
            pidfd,
            confirmed: false,
        };
        if let Some(place) = self.listed.get_mut(self.len) {
            *place = Some(listed);
            self.len += 1;
        }
    }

    /// Lists the cgroup again, signals what is listed still, and begins anew.
    fn signal<R: Recipients>(
        &mut self,
        cgroup: BorrowedFd<'_>,
        recipients: &mut R,
    ) -> Result<(), Errno> {
        if self.len == 0 {
            return Ok(());
        }
        let listed = &mut self.listed[..self.len];
        walk::own_processes(cgroup, &mut |pid| {
            let known = listed.iter_mut().flatten().filter(|l| l.pid == pid);
            known.for_each(|listed| listed.confirmed = true);
        })?;
        self.len = 0;
        for listed in self.listed.iter_mut().map_while(Option::take) {
            if listed.confirmed {
                recipients.signalled(listed.pid, listed.signal(R::BY_ID));
            }
        }
        Ok(())
    }
}

impl Listed {
    fn signal(&self, by_id: bool) -> Signalled {
        let sent = match (&self.pidfd, pid_of(self.pid)) {
            (Ok(pidfd), _) => pidfd_send_signal(pidfd, Signal::KILL),
            (Err(Errno::SRCH), _) => Err(Errno::SRCH),
            (Err(_), Some(pid)) if by_id => kill_process(pid, Signal::KILL),
            (Err(error), _) => Err(*error),
        };
        match sent {
            Ok(()) => Signalled::Sent,
            Err(Errno::SRCH) => Signalled::Exited,
            Err(_) => Signalled::Refused,
        }
    }
}

fn pid_of(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}
