//! How a thread of its own waits: for files, a time, or a bell that others ring.

use std::{os::fd::BorrowedFd, time::Duration};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::{EfdFlags, EventFd},
};

/// A bell: neither [`ring`] nor [`silence`] waits.
pub(crate) fn bell() -> nix::Result<EventFd> {
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    EventFd::from_flags(flags)
}

/// A full eventfd is rung already.
pub(crate) fn ring(bell: &EventFd) {
    let _ = bell.write(1);
}

/// Nothing to read is as good.
pub(crate) fn silence(bell: &EventFd) {
    let _ = bell.read();
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
