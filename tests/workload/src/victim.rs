//! What the benchmark's daemons are to kill: one process or several that hold memory, wait for the
//! word, and then fill more at a rate, each noting every page in shared memory.

use std::ffi::CStr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::{Pid, setpgid};

use super::memory::{MIB, PAGE, Region};
use super::stamps::{Stamp, Stamps};
use super::{pin, processes, sleep_ms};
use crate::clock::monotonic;

/// What the first process is called; daemons are told to prefer it.
pub(super) const NAME: &CStr = c"podwarden-fill";
/// What the others are called.
const OTHERS: &CStr = c"podwarden-work";
/// How the names of all of them begin, and of nothing else.
pub const NAMES: [&str; 2] = ["podwarden-fill", "podwarden-work"];

#[derive(Debug, Args)]
pub struct Victim {
    /// How many processes. As in a container, they end with the first.
    #[arg(long, default_value_t = 1)]
    processes: usize,
    /// Held before it waits, MiB, all processes together.
    #[arg(long)]
    hold_mib: usize,
    /// Filled after that, MiB, all together.
    #[arg(long)]
    fill_mib: usize,
    /// MiB per second, all together; 0 is as fast as it can.
    #[arg(long, default_value_t = 0)]
    rate: u64,
    /// Size of a process's step, KiB.
    #[arg(long, default_value_t = 64)]
    step_kib: usize,
    /// The stamp files: this with a number after it, from 0.
    #[arg(long)]
    stamps: PathBuf,
}

impl Victim {
    pub(super) fn run(&self) -> Result<()> {
        // A group of its own: a daemon that kills groups must not find the benchmark in it.
        setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
        for number in 1..self.processes {
            processes::fork(|| {
                let named = nix::sys::prctl::set_name(OTHERS).map_err(anyhow::Error::from);
                i32::from(named.and_then(|()| self.live(number)).is_err())
            })?;
        }
        self.live(0)
    }

    /// The life of one process.
    fn live(&self, number: usize) -> Result<()> {
        let mut path = self.stamps.clone().into_os_string();
        path.push(number.to_string());
        let stamps = Stamps::open(path.as_ref())?;
        let share = |mib: usize| mib * MIB / self.processes.max(1);
        let (held, total) = (share(self.hold_mib), share(self.hold_mib + self.fill_mib));
        let region = Region::map(total)?;
        hold(&region, held)?;
        stamps.touched(held as u64);
        stamps.push(stamp(held));
        stamps.set_ready();
        while !stamps.may_go() {
            sleep_ms(1);
        }
        let start = Instant::now();
        let rate = self.rate as f64 * MIB as f64 / self.processes.max(1) as f64;
        for from in (held..total).step_by(self.step_kib.max(4) * 1024) {
            if self.rate > 0 {
                let due = Duration::from_secs_f64((from - held) as f64 / rate);
                std::thread::sleep(due.saturating_sub(start.elapsed()));
            }
            let to = (from + self.step_kib.max(4) * 1024).min(total);
            region.touch_noting(from..to, |bytes| stamps.touched(bytes));
            stamps.push(stamp(to));
        }
        sleep_ms(600_000);
        Ok(())
    }
}

/// Takes so many bytes, a part on each CPU. A CPU sets freed pages aside, hundreds of MiB of them (`count` in
/// `/proc/zoneinfo`), which no figure of free memory has: they are used up then, so that what the victim
/// fills comes out of those figures.
fn hold(region: &Region, held: usize) -> Result<()> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    let cpus: Vec<_> = (0..CpuSet::count())
        .filter(|cpu| allowed.is_set(*cpu) == Ok(true))
        .collect();
    let part = held.div_ceil(cpus.len().max(1)).next_multiple_of(PAGE);
    for (cpu, from) in cpus.into_iter().zip((0..held).step_by(part.max(PAGE))) {
        pin(Some(cpu))?;
        region.touch(from..held.min(from + part));
    }
    Ok(sched_setaffinity(Pid::from_raw(0), &allowed)?)
}

fn stamp(bytes: usize) -> Stamp {
    Stamp {
        nanos: monotonic(),
        bytes: bytes as u64,
    }
}
