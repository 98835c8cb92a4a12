//! The reactor's wait: descriptors and one timer.

use std::{os::fd::AsFd, time::Duration};

use nix::{
    errno::Errno,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
    },
    unistd,
};

/// Events taken at a time; what is left is there at the next wait.
pub(super) const EVENTS: usize = 16;

/// Room for what a wait finds.
pub(super) fn buffer() -> [EpollEvent; EVENTS] {
    [EpollEvent::empty(); EVENTS]
}

/// An epoll set with a timer in it.
#[derive(Debug)]
pub(super) struct Poll {
    epoll: Epoll,
    timer: TimerFd,
}

impl Poll {
    /// With a timer that is reported as `token`.
    pub(super) fn new(token: u64) -> nix::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let poll = Self {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            timer: TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?,
        };
        poll.add(&poll.timer, token)?;
        Ok(poll)
    }

    /// Reports `fd` as `token` while it is readable.
    pub(super) fn add(&self, fd: impl AsFd, token: u64) -> nix::Result<()> {
        self.epoll
            .add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token))
    }

    /// Reports `fd` as `token` once whenever it comes to have an exceptional condition (`POLLPRI`): those
    /// of files of the kernel's stay until they are read, and that of a removed cgroup for ever.
    pub(super) fn add_exceptional(&self, fd: impl AsFd, token: u64) -> nix::Result<()> {
        let flags = EpollFlags::EPOLLPRI | EpollFlags::EPOLLET;
        self.epoll.add(fd, EpollEvent::new(flags, token))
    }

    /// Stops reporting `fd`; nothing to do where it never was.
    pub(super) fn remove(&self, fd: impl AsFd) {
        let _ = self.epoll.delete(fd);
    }

    /// Waits; gives the tokens of what is ready, none when a signal came instead.
    pub(super) fn wait<'a>(
        &self,
        buffer: &'a mut [EpollEvent; EVENTS],
    ) -> nix::Result<impl Iterator<Item = u64> + use<'a>> {
        let ready = match self.epoll.wait(buffer, EpollTimeout::NONE) {
            Err(Errno::EINTR) => 0,
            ready => ready?,
        };
        Ok(buffer.iter().take(ready).map(EpollEvent::data))
    }

    /// Silences the timer.
    pub(super) fn drain_timer(&self) {
        drain(&self.timer);
    }

    /// Sets the timer; `None` stops it.
    pub(super) fn wake_after(&self, sleep: Option<Duration>) {
        // Fails only for values that are not times.
        let _ = match sleep {
            Some(sleep) => self.timer.set(
                Expiration::OneShot(sleep.into()),
                TimerSetTimeFlags::empty(),
            ),
            None => self.timer.unset(),
        };
    }
}

/// Empties an eventfd or timerfd; nothing to read is as good.
pub(super) fn drain(fd: impl AsFd) {
    let _ = unistd::read(fd, &mut [0; 8]);
}

#[cfg(test)]
mod tests {
    use nix::sys::eventfd::{EfdFlags, EventFd};

    use super::*;
    use crate::reactor::ring;

    const TIMER: u64 = 1;
    const BELL: u64 = 2;

    /// The tokens that are ready, waiting for at least one.
    fn ready(poll: &Poll) -> Vec<u64> {
        let mut tokens: Vec<_> = poll.wait(&mut buffer()).unwrap().collect();
        tokens.sort_unstable();
        tokens
    }

    #[test]
    fn wakes_for_what_was_added_until_it_is_drained_or_removed() {
        let poll = Poll::new(TIMER).unwrap();
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        poll.add(&bell, BELL).unwrap();
        ring(&bell);
        ring(&bell);
        assert_eq!(ready(&poll), [BELL]);
        assert_eq!(ready(&poll), [BELL], "still rung");
        drain(&bell);
        drain(&bell);
        poll.wake_after(Some(Duration::from_nanos(1)));
        assert_eq!(ready(&poll), [TIMER]);
        ring(&bell);
        assert_eq!(ready(&poll), [TIMER, BELL]);
        poll.remove(&bell);
        poll.remove(&bell);
        assert_eq!(ready(&poll), [TIMER]);
        poll.drain_timer();
        // Set to the past means at once, not never.
        poll.wake_after(Some(Duration::from_nanos(1)));
        assert_eq!(ready(&poll), [TIMER]);
    }
}
