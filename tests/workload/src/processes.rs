//! Processes that come and go.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, UsageWho, getrusage, setrlimit};
use nix::sys::signal::{SigHandler, Signal, raise, signal as handle};
use nix::sys::time::TimeValLike as _;
use nix::sys::wait::wait;
use nix::unistd::{ForkResult, Pid, getpid, getppid};

use super::{Done, sleep_ms};

#[derive(Debug, Args)]
pub struct Storm {
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
                wait().context("wait")?;
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
pub struct Forkbomb {
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
    let parent = getpid();
    // SAFETY: the process has one thread, so the child's locks and allocator are as they were.
    let fork = unsafe { nix::unistd::fork() };
    if let Ok(ForkResult::Child) = fork {
        // With the workload all of its processes end.
        let code = match set_pdeathsig(Signal::SIGKILL) {
            Ok(()) if getppid() == parent => child(),
            // Also one that the workload did not live to see run.
            _ => 1,
        };
        // SAFETY: ends the child without the parent's exit handlers and buffered output.
        unsafe { libc::_exit(code) }
    }
    match fork.context("fork")? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => unreachable!("the child has ended"),
    }
}

fn end_by(signal: i32) {
    // A core dump would take longer than the process lives.
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    if let Ok(signal) = Signal::try_from(signal) {
        // SAFETY: no handler is installed; std ignores SIGPIPE, which is put back.
        let _ = unsafe { handle(signal, SigHandler::SigDfl) };
        let _ = raise(signal);
    }
}

/// User and system time of all children that were waited for, nanoseconds.
pub(super) fn children_cpu() -> Result<u64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("getrusage")?;
    let time = usage.user_time() + usage.system_time();
    Ok(time.num_nanoseconds().unsigned_abs())
}
