//! The reactor's wait: descriptors and one timer.

use std::{mem::MaybeUninit, time::Duration};

use rustix::{
    event::epoll::{self, Event, EventData, EventFlags},
    fd::{AsFd, OwnedFd},
    io::{Errno, Result},
    time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    },
};

/// Events taken at a time; what is left is there at the next wait.
pub(super) const EVENTS: usize = 16;

/// An epoll set with a timer in it.
#[derive(Debug)]
pub(super) struct Poll {
    epoll: OwnedFd,
    timer: OwnedFd,
}

impl Poll {
    /// With a timer that is reported as `token`.
    pub(super) fn new(token: u64) -> Result<Self> {
        let poll = Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            timer: timerfd_create(
                TimerfdClockId::Monotonic,
                TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
            )?,
        };
        poll.add(&poll.timer, token)?;
        Ok(poll)
    }

    /// Reports `fd` as `token` while it is readable.
    pub(super) fn add(&self, fd: impl AsFd, token: u64) -> Result<()> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token), EventFlags::IN)
    }

    /// Reports `fd` as `token` once whenever it comes to have an exceptional condition (`POLLPRI`): those
    /// of files of the kernel's stay until they are read, and that of a removed cgroup for ever.
    pub(super) fn add_exceptional(&self, fd: impl AsFd, token: u64) -> Result<()> {
        let flags = EventFlags::PRI | EventFlags::ET;
        epoll::add(&self.epoll, fd, EventData::new_u64(token), flags)
    }

    /// Stops reporting `fd`; nothing to do where it never was.
    pub(super) fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits; none when a signal came instead.
    pub(super) fn wait<'a>(
        &self,
        buffer: &'a mut [MaybeUninit<Event>; EVENTS],
    ) -> Result<&'a [Event]> {
        match epoll::wait(&self.epoll, buffer, None) {
            Ok((ready, _)) => Ok(ready),
            Err(Errno::INTR) => Ok(&[]),
            Err(error) => Err(error),
        }
    }

    /// Silences the timer.
    pub(super) fn drain_timer(&self) {
        drain(&self.timer);
    }

    /// Sets the timer; `None` stops it.
    pub(super) fn wake_after(&self, sleep: Option<Duration>) {
        let at = sleep.unwrap_or_default();
        let never = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let once = Itimerspec {
            it_interval: never,
            it_value: Timespec {
                tv_sec: i64::try_from(at.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: at.subsec_nanos().into(),
            },
        };
        // Fails only for values that are not times.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }
}

/// Empties an eventfd or timerfd; nothing to read is as good.
pub(super) fn drain(fd: impl AsFd) {
    let _ = rustix::io::read(fd, &mut [0; 8]);
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::reactor::ring;

    const TIMER: u64 = 1;
    const BELL: u64 = 2;

    /// The tokens that are ready, waiting for at least one.
    fn ready(poll: &Poll) -> Vec<u64> {
        let mut buffer = [const { MaybeUninit::uninit() }; EVENTS];
        let ready = poll.wait(&mut buffer).unwrap().iter();
        let mut tokens: Vec<_> = ready.map(|event| event.data.u64()).collect();
        tokens.sort_unstable();
        tokens
    }

    #[test]
    fn wakes_for_what_was_added_until_it_is_drained_or_removed() {
        let poll = Poll::new(TIMER).unwrap();
        let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
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
