//! What the reactor waits for: descriptors and one timer.

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
