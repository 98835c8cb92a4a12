//! Processes that come and go.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use rustix::process::{Pid, Signal, WaitOptions, set_parent_process_death_signal, wait};

use super::{Done, sleep_ms};

#[derive(Debug, Args)]
pub(crate) struct Storm {
    /// How many processes.
    #[arg(long)]
    count: u64,
    /// How long each is busy, microseconds.
    #[arg(long, default_value_t = 1000)]
    busy_us: u64,
    /// How many at a time.
    #[arg(long, default_value_t = 1)]
    parallel: u64,
    /// Their exit codes, in turn.
    #[arg(long, value_delimiter = ',', default_value = "0")]
    codes: Vec<i32>,
    /// Signals that they send to themselves instead, in turn.
    #[arg(long, value_delimiter = ',')]
    signals: Vec<i32>,
    /// Stays this long after the last has ended, milliseconds.
    #[arg(long, default_value_t = 0)]
    hold_ms: u64,
}

impl Storm {
    pub(crate) fn run(&self) -> Result<()> {
        let (mut started, mut ended) = (0, 0);
        while ended < self.count {
            if started < self.count && started - ended < self.parallel.max(1) {
                fork(|| self.live(started))?;
                started += 1;
            } else {
                wait(WaitOptions::empty()).context("wait")?;
                ended += 1;
            }
        }
        Done {
            count: ended,
            children_cpu_ns: children_cpu()?,
        }
        .print()?;
        sleep_ms(self.hold_ms);
        Ok(())
    }

    /// The life of one process.
    fn live(&self, number: u64) -> i32 {
        let end = Instant::now() + Duration::from_micros(self.busy_us);
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        let turn = usize::try_from(number).unwrap_or(0);
        if let Some(&signal) = self.signals.get(turn % self.signals.len().max(1)) {
            end_by(signal);
        }
        self.codes
            .get(turn % self.codes.len().max(1))
            .copied()
            .unwrap_or(0)
    }
}

#[derive(Debug, Args)]
pub(crate) struct Forkbomb {
    /// At most this many processes in all.
    #[arg(long, default_value_t = 50)]
    max: u64,
    /// How long each stays, milliseconds.
    #[arg(long, default_value_t = 600_000)]
    for_ms: u64,
    /// Every process forks on and on and leaves after five forks, so that the set of processes changes
    /// all the time; something else has to limit it.
    #[arg(long)]
    restless: bool,
}

impl Forkbomb {
    pub(crate) fn run(&self) -> Result<()> {
        if self.restless {
            restless();
        }
        for _ in 1..self.max {
            // A pids limit may stop it; those that are there stay.
            if fork(|| {
                sleep_ms(self.for_ms);
                0
            })
            .is_err()
            {
                break;
            }
        }
        sleep_ms(self.for_ms);
        Ok(())
    }
}

/// See [`Forkbomb`].
fn restless() -> ! {
    // SAFETY: the process has one thread; only system calls follow.
    unsafe {
        // No zombies: they would count against the limit.
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        let mut forks = 0;
        loop {
            match libc::fork() {
                0 => forks = 0,
                -1 => {
                    libc::usleep(200);
                }
                _ => forks += 1,
            }
            if forks == 5 {
                libc::_exit(0);
            }
        }
    }
}

/// Runs `child` in a new process, which ends with the code that it returns.
pub(super) fn fork(child: impl FnOnce() -> i32) -> Result<Pid> {
    // SAFETY: the process has one thread, so the child's locks and allocator are as they were.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // With the workload all of its processes end.
        let code = match set_parent_process_death_signal(Some(Signal::KILL)) {
            Ok(()) => child(),
            Err(_) => 1,
        };
        // SAFETY: ends the child without the parent's exit handlers and buffered output.
        unsafe { libc::_exit(code) }
    }
    match Pid::from_raw(pid) {
        Some(pid) if !pid.as_raw_nonzero().get().is_negative() => Ok(pid),
        _ => Err(std::io::Error::last_os_error()).context("fork"),
    }
}

fn end_by(signal: i32) {
    // A core dump would take longer than the process lives.
    // SAFETY: passes a valid resource and a valid pointer that the call does not keep.
    unsafe {
        libc::setrlimit(
            libc::RLIMIT_CORE,
            &libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            },
        )
    };
    // SAFETY: every argument is a plain number; std ignores SIGPIPE, which is put back.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    if let Some(signal) = Signal::from_named_raw(signal) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
    }
}

/// User and system time of all children that were waited for, nanoseconds.
pub(super) fn children_cpu() -> Result<u64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is valid for writes of an rusage.
    if unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) } != 0 {
        return Err(std::io::Error::last_os_error()).context("getrusage");
    }
    // SAFETY: all zeroes are a valid rusage, and the call has filled it.
    let usage = unsafe { usage.assume_init() };
    let nanos = |t: libc::timeval| {
        t.tv_sec.unsigned_abs() * 1_000_000_000 + t.tv_usec.unsigned_abs() * 1000
    };
    Ok(nanos(usage.ru_utime) + nanos(usage.ru_stime))
}
