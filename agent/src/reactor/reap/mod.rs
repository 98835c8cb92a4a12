//! Frees the memory of what was killed, and looks that no process of it lives on.
//!
//! ```text
//!  reactor ──(queue)──> lead ──(largest first)──> workers: process_mrelease(2)
//!                         ├──(at once)────────────────> cgroup.kill: what was forked meanwhile
//!                         └──(once none is left)────> sweeper: page cache
//! ```
//!
//! A killed process frees its memory itself, when it gets to run: with a BestEffort pod's CPU shares
//! on a busy node that takes seconds. `process_mrelease` frees it from outside, in the caller's time
//! (measured on two CPUs with six hogs: 1 GiB in 37 ms instead of 10 s). It may block, so it runs on
//! threads of its own, which are there before they are needed. The reactor hands victims over by a
//! wait-free queue and reads the outcome from numbers ([`Progress`]); what the threads
//! here share among themselves does not touch it.
//!
//! The victim's CPU shares stay as they are: they count inside its tier, whose own shares would have
//! to be raised for every pod in it.

mod lead;
mod release;
mod worker;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread::{Builder, JoinHandle, Thread},
};

use super::{plan::VictimFiles, room::touch_queue};
use crate::kernel::realtime;
use lead::Lead;
pub(super) use release::is_supported;
use worker::WorkList;

/// Victims that can wait for the lead. The reactor mostly waits for a victim's memory before it kills the next one,
/// so one is usual.
const QUEUE: usize = 64;

/// Killed processes that the lead has not taken yet. More of them are all small, and it finds those
/// that are listed by itself.
const FOUND: usize = 4096;

/// Evictions whose progress is kept: more than [`super::dying`] looks after at a time.
const PLACES: usize = 256;

/// More threads than this wait for the kernel's locks on its lists of pages.
const MOST_WORKERS: usize = 4;

/// A victim that was just killed.
#[derive(Debug)]
struct Handed {
    files: Arc<VictimFiles>,
    /// The eviction's number.
    number: u64,
    /// Which of the processes found are its own.
    attempt: u64,
}

/// A process that was just killed.
#[derive(Debug, Clone, Copy)]
struct Found {
    attempt: u64,
    pid: u32,
}

/// How far the last victims are, each in the place of its eviction's number.
#[derive(Debug)]
pub(super) struct Progress {
    /// No process of this one is left.
    emptied: [AtomicU64; PLACES],
    /// Nor is there page cache that the kernel would give back.
    swept: [AtomicU64; PLACES],
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            emptied: [const { AtomicU64::new(0) }; PLACES],
            swept: [const { AtomicU64::new(0) }; PLACES],
        }
    }
}

impl Progress {
    /// True once no process of eviction `number` is left: all that was theirs is free.
    pub(super) fn is_empty(&self, number: u64) -> bool {
        is_noted(&self.emptied, number)
    }

    /// True once its page cache was given back too, as far as it could be at once.
    pub(super) fn is_swept(&self, number: u64) -> bool {
        is_noted(&self.swept, number)
    }

    fn emptied(&self, number: u64) {
        note(&self.emptied, number);
    }

    fn swept(&self, number: u64) {
        note(&self.swept, number);
    }
}

fn place(number: u64) -> usize {
    usize::try_from(number % PLACES as u64).unwrap_or(0)
}

fn is_noted(places: &[AtomicU64; PLACES], number: u64) -> bool {
    places[place(number)].load(Ordering::Acquire) == number
}

/// A later eviction in the same place counts for more.
fn note(places: &[AtomicU64; PLACES], number: u64) {
    places[place(number)].fetch_max(number, Ordering::AcqRel);
}

/// The reactor's end.
#[derive(Debug)]
pub(super) struct Reaper {
    queue: rtrb::Producer<Handed>,
    found: rtrb::Producer<Found>,
    attempts: u64,
    lead: Thread,
    progress: Arc<Progress>,
}

impl Reaper {
    /// Begins to kill a victim.
    pub(super) fn attempt(&mut self) -> Attempt<'_> {
        self.attempts += 1;
        Attempt { reaper: self }
    }

    /// What came of it.
    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }
}

/// A victim that is being killed. Nothing here blocks or allocates.
#[derive(Debug)]
pub(super) struct Attempt<'a> {
    reaper: &'a mut Reaper,
}

impl Attempt<'_> {
    /// One of its processes: the kernel may not list it any more when the lead looks.
    pub(super) fn found(&mut self, pid: u32) {
        let attempt = self.reaper.attempts;
        // Full: see `FOUND`.
        let _ = self.reaper.found.push(Found { attempt, pid });
    }

    /// It is killed: has its memory freed. With the queue full it dies by itself, and what it forked is killed from here.
    pub(super) fn hand_over(self, files: &Arc<VictimFiles>, number: u64) {
        let handed = Handed {
            files: Arc::clone(files),
            number,
            attempt: self.reaper.attempts,
        };
        if self.reaper.queue.push(handed).is_err() {
            let _ = files.kill.kill_forked();
        }
        self.reaper.lead.unpark();
    }
}

/// The threads; dropping it ends them.
#[derive(Debug)]
pub(super) struct Threads {
    stop: Arc<AtomicBool>,
    work: Arc<WorkList>,
    lead: Option<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.work.close();
        // The sweeper ends when its channel does; it may wait for a disk, and nothing waits for it.
        if let Some(lead) = self.lead.take() {
            lead.thread().unpark();
            let _ = lead.join();
        }
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

/// Starts the threads. With `urgent` they come before ordinary work (nice -20, where that is
/// allowed): what they do is as much as the victim would have done, and it is the node's way out of
/// pressure. They do not wait for a disk then either, but for the sweeper, which is there to have pages written.
pub(super) fn start(urgent: bool) -> std::io::Result<(Reaper, Threads)> {
    let (mut producer, queue) = rtrb::RingBuffer::new(QUEUE);
    let (mut finder, found) = rtrb::RingBuffer::new(FOUND);
    touch_queue(&mut producer);
    touch_queue(&mut finder);
    let progress = Arc::new(Progress::default());
    let work = Arc::new(WorkList::default());
    let stop = Arc::new(AtomicBool::new(false));
    let mut threads = Threads {
        stop: Arc::clone(&stop),
        work: Arc::clone(&work),
        lead: None,
        workers: Vec::new(),
    };
    if is_supported() {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..cpus.clamp(1, MOST_WORKERS) {
            let work = Arc::clone(&work);
            threads.workers.push(
                Builder::new()
                    .name("reaper".to_owned())
                    .spawn(move || prioritised(urgent, || worker::run(&work)))?,
            );
        }
    }
    let (sweep, swept) = mpsc::channel();
    let sweeping = Arc::clone(&progress);
    Builder::new()
        .name("sweeper".to_owned())
        .spawn(move || worker::sweep(&swept, &sweeping))?;
    let lead = Lead::new(queue, found, work, sweep, Arc::clone(&progress), stop);
    let lead = Builder::new()
        .name("reaper-lead".to_owned())
        .spawn(move || prioritised(urgent, || lead.run()))?;
    let reaper = Reaper {
        queue: producer,
        found: finder,
        attempts: 0,
        lead: lead.thread().clone(),
        progress,
    };
    threads.lead = Some(lead);
    Ok((reaper, threads))
}

fn prioritised(urgent: bool, run: impl FnOnce()) {
    if urgent {
        // SAFETY: plain numbers; 0 is the calling thread. Refused, the thread is an ordinary one.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
        realtime::prepare_helper();
    }
    run();
}

/// The other end of a [`Reaper`] without threads, for tests of the reactor.
#[cfg(test)]
pub(super) struct Idle {
    queue: rtrb::Consumer<Handed>,
    _found: rtrb::Consumer<Found>,
    progress: Arc<Progress>,
}

#[cfg(test)]
impl Idle {
    pub(super) fn empty(&self, number: u64) {
        self.progress.emptied(number);
    }

    /// What the lead does of what it is handed.
    pub(super) fn kill_forked(&mut self) {
        while let Ok(handed) = self.queue.pop() {
            handed.files.kill.kill_forked().unwrap();
        }
    }

    pub(super) fn swept(&self, number: u64) {
        self.progress.swept(number);
    }
}

#[cfg(test)]
pub(super) fn idle() -> (Reaper, Idle) {
    let (producer, queue) = rtrb::RingBuffer::new(QUEUE);
    let (finder, found) = rtrb::RingBuffer::new(FOUND);
    let progress = Arc::new(Progress::default());
    let reaper = Reaper {
        queue: producer,
        found: finder,
        attempts: 0,
        lead: std::thread::current(),
        progress: Arc::clone(&progress),
    };
    let idle = Idle {
        queue,
        _found: found,
        progress,
    };
    (reaper, idle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_one_victim_says_nothing_of_another() {
        let progress = Progress::default();
        progress.emptied(2);
        progress.swept(2);
        assert!(progress.is_empty(2) && progress.is_swept(2));
        assert!(!progress.is_empty(1) && !progress.is_swept(1));
        assert!(!progress.is_empty(3) && !progress.is_swept(3));
        progress.emptied(2 + PLACES as u64);
        progress.emptied(2);
        assert!(progress.is_empty(2 + PLACES as u64) && !progress.is_empty(2));
    }
}
