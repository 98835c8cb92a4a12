//! The threads that block: memory of processes, largest first, and page cache.

use std::{
    collections::BinaryHeap,
    sync::{Arc, Condvar, Mutex, PoisonError, mpsc::Receiver},
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

/// The sweeper's life: gives back the page cache of victims in which no process is left.
pub(super) fn sweep(victims: &Receiver<Handed>, progress: &Arc<Progress>) {
    while let Ok(Handed { files, number, .. }) = victims.recv() {
        if let Err(error) = files.kill.reclaim_cache()
            && !error.is_gone()
        {
            tracing::debug!(%error, "the page cache of an evicted pod stays until the kernel needs it");
        }
        progress.swept(number);
    }
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
