//! How a thread of its own waits: for files, a time, or a bell that others ring.

use std::{os::fd::BorrowedFd, time::Duration};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::{EfdFlags, EventFd},
};

/// A bell: write(2) rings it, read(2) silences it, neither waits.
pub(crate) fn bell() -> nix::Result<EventFd> {
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    EventFd::from_flags(flags)
}

/// Waits until one of `fds` can be read, or for `timeout`, of which a part of a millisecond does not count; without one for
/// as long as it takes. It may end before that, by a signal.
pub(crate) fn wait<'a>(fds: impl IntoIterator<Item = BorrowedFd<'a>>, timeout: Option<Duration>) {
    let timeout = timeout.map_or(PollTimeout::NONE, |timeout| {
        PollTimeout::try_from(timeout).unwrap_or(PollTimeout::ZERO)
    });
    let fds = fds.into_iter();
    let mut ready: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    let _ = poll(&mut ready, timeout);
}
