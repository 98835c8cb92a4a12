//! CPU time.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use nix::time::ClockId;

use crate::clock;

/// One turn of work and rest.
const PERIOD: Duration = Duration::from_millis(10);

#[derive(Debug, Args)]
pub struct Burn {
    /// Ends after this much time, milliseconds.
    #[arg(long, default_value_t = 600_000)]
    for_ms: u64,
    /// Ends once every thread has used this much CPU time with this work, milliseconds.
    #[arg(long)]
    cpu_ms: Option<u64>,
    /// Share of the time that it works, in percent.
    #[arg(long, default_value_t = 100)]
    duty: u32,
    /// Threads.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Its work is to write through so much memory of each thread, MiB, in place of computing.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    stream_mib: Option<u16>,
    /// Runs on this CPU only.
    #[arg(long)]
    pin: Option<usize>,
    /// Stays this long afterwards, asleep, milliseconds.
    #[arg(long, default_value_t = 0)]
    hold_ms: u64,
}

impl Burn {
    pub(crate) fn run(&self) -> Result<()> {
        super::pin(self.pin)?;
        let end = Instant::now() + Duration::from_millis(self.for_ms);
        thread::scope(|scope| {
            for _ in 1..self.threads {
                scope.spawn(|| self.work(end));
            }
            self.work(end);
        });
        super::sleep_ms(self.hold_ms);
        Ok(())
    }

    fn work(&self, end: Instant) {
        let busy = PERIOD * self.duty.min(100) / 100;
        // What the thread used before, when its process began in another cgroup, is no part of it.
        let until = self
            .cpu_ms
            .map(|ms| thread_cpu() + Duration::from_millis(ms));
        let mut stream = self.stream_mib.map(Stream::new);
        loop {
            let turn = Instant::now();
            while turn.elapsed() < busy {
                match &mut stream {
                    Some(stream) => stream.step(),
                    None => std::hint::spin_loop(),
                }
                if until.is_some_and(|until| thread_cpu() >= until) {
                    return;
                }
            }
            if Instant::now() >= end {
                return;
            }
            thread::sleep(PERIOD - busy);
        }
    }
}

/// Memory that is written again and again from one end to the other.
struct Stream {
    memory: Vec<u8>,
    at: usize,
}

impl Stream {
    /// Written at a time: some microseconds of work.
    const STEP: usize = 64 << 10;

    fn new(mib: u16) -> Self {
        Self {
            memory: vec![0; usize::from(mib) << 20],
            at: 0,
        }
    }

    fn step(&mut self) {
        let part = &mut self.memory[self.at..][..Self::STEP];
        part.fill(part[0].wrapping_add(1));
        std::hint::black_box(part);
        self.at = (self.at + Self::STEP) % self.memory.len();
    }
}

/// CPU time of the calling thread.
pub(crate) fn thread_cpu() -> Duration {
    Duration::from_nanos(clock::nanos(ClockId::CLOCK_THREAD_CPUTIME_ID))
}
