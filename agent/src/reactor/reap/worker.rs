//! The threads that block: memory of processes, largest first, and page cache.

use std::{
    collections::BinaryHeap,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use super::{
    Handed, Progress,
    release::{Released, release},
};

/// How often one process is tried.
const TRIES: u32 = 3;

/// Processes whose memory is to be freed. Shared by the lead and the workers, never by the reactor.
#[derive(Debug, Default)]
pub(super) struct WorkList {
    work: Mutex<Work>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Work {
    /// Resident pages, process.
    heap: BinaryHeap<(u64, u32)>,
    closed: bool,
}

impl WorkList {
    /// Adds processes with their resident pages.
    pub(super) fn add(&self, processes: impl IntoIterator<Item = (u64, u32)>) {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        work.heap.extend(processes);
        self.more.notify_all();
    }

    /// The largest; waits for one. `None` when the work is over.
    fn take(&self) -> Option<u32> {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if work.closed {
                return None;
            }
            if let Some((_, pid)) = work.heap.pop() {
                return Some(pid);
            }
            work = self.more.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The work is over.
    pub(super) fn close(&self) {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        work.closed = true;
        self.more.notify_all();
    }
}

/// A worker's life.
pub(super) fn run(work: &WorkList) {
    while let Some(pid) = work.take() {
        for _ in 0..TRIES {
            if release(pid) != Released::Again {
                break;
            }
        }
    }
}

/// Between two tries at the page cache of one victim; doubled each time.
const SWEEP_AGAIN: Duration = Duration::from_millis(20);

/// Tries in all: pages that the last process was about to use, or that wait to be written, go a little later.
const SWEEPS: u32 = 6;

/// Page cache that is not worth another try, bytes.
const SWEPT: u64 = 1 << 20;

/// A victim whose page cache is to be tried again.
struct Unswept {
    victim: Handed,
    tries: u32,
    due: Instant,
}

/// The sweeper's life: gives back the page cache of victims in which no process is left.
pub(super) fn sweep(victims: &Receiver<Handed>, progress: &Arc<Progress>) {
    let mut waiting: Vec<Unswept> = Vec::new();
    loop {
        let now = Instant::now();
        let (due, later): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|u| u.due <= now);
        waiting = later;
        for unswept in due {
            waiting.extend(sweep_again(unswept));
        }
        let next = waiting.iter().map(|unswept| unswept.due).min();
        let victim = match next {
            None => victims.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(due) => victims.recv_timeout(due.saturating_duration_since(Instant::now())),
        };
        match victim {
            Ok(victim) => {
                let number = victim.number;
                let first = Unswept {
                    victim,
                    tries: 0,
                    due: Instant::now(),
                };
                waiting.extend(sweep_again(first));
                progress.swept(number);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Tries once; the victim where more may come later.
fn sweep_again(unswept: Unswept) -> Option<Unswept> {
    let files = &unswept.victim.files;
    if let Err(error) = files.kill.reclaim_cache() {
        if !error.is_gone() {
            tracing::debug!(%error, "the page cache of an evicted pod stays until the kernel needs it");
        }
        return None;
    }
    let left = files.memory.page_cache().map_or(0, |cache| cache.all);
    let tries = unswept.tries + 1;
    (left > SWEPT && tries < SWEEPS).then(|| Unswept {
        due: Instant::now() + SWEEP_AGAIN * (1 << tries),
        tries,
        ..unswept
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_goes_first_and_nothing_after_the_end() {
        let list = WorkList::default();
        list.add([(5, 1), (7, 2), (6, 3)]);
        assert_eq!([list.take(), list.take()], [Some(2), Some(3)]);
        list.close();
        assert_eq!(list.take(), None, "who is left dies by itself");
    }
}
