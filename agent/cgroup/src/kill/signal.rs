//! SIGKILL to one process.

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal},
};

/// What came of a signal.
pub(super) enum Signalled {
    Sent,
    /// It ended by itself after it was listed.
    Exited,
    /// It is in another pid namespace, or we lack the right.
    Refused,
}

/// Sends SIGKILL. The pidfd keeps the signal from a process that takes over the id after it was
/// opened; without one (before 5.3, or no file descriptor free) the plain id has to do.
pub(super) fn signal(pid: u32) -> Signalled {
    // 0 stands for a process outside our pid namespace.
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return Signalled::Refused;
    };
    let sent = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd_send_signal(&pidfd, Signal::KILL),
        Err(Errno::SRCH) => Err(Errno::SRCH),
        Err(_) => kill_process(pid, Signal::KILL),
    };
    match sent {
        Ok(()) => Signalled::Sent,
        Err(Errno::SRCH) => Signalled::Exited,
        Err(_) => Signalled::Refused,
    }
}
