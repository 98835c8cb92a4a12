//! The reactor's recent readings, for the flight recorder: a ring that it overwrites without waiting
//! and that others read when something has happened. Costs nothing without a reader.
//!
//! Every slot carries the number of its reading, which is 0 while it is written: a reader that finds
//! the same number before and after it has read the slot has read one reading, whole.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::{plan::ScopeName, watch::Look};

/// Readings kept. Usage of three scopes and a victim every millisecond: one second.
const SLOTS: u64 = 4096;

/// In place of a working set that was not read.
const UNKNOWN: u64 = u64::MAX;

/// Whose usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A cgroup with a level.
    Scope(ScopeName),
    /// A pod, by [`super::plan::Victim::token`].
    Pod(u64),
}

impl Subject {
    /// Scopes count down from the greatest number; tokens, which count up from 1, will not reach them.
    fn number(self) -> u64 {
        match self {
            Self::Pod(token) => token,
            Self::Scope(scope) => u64::MAX - scope as u64,
        }
    }

    fn of(number: u64) -> Self {
        let scope = usize::try_from(u64::MAX - number).ok();
        let scope = scope.and_then(|index| ScopeName::ALL.get(index));
        scope.map_or(Self::Pod(number), |scope| Self::Scope(*scope))
    }
}

/// Usage at one moment. Time is `CLOCK_MONOTONIC` nanoseconds, sizes bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    pub subject: Subject,
    pub at: u64,
    /// Memory charged.
    pub usage: u64,
    /// Usage minus inactive file pages, where that was read.
    pub working_set: Option<u64>,
}

#[derive(Debug, Default)]
struct Slot {
    /// Number of the reading, from 1; 0 while it is written.
    number: AtomicU64,
    subject: AtomicU64,
    at: AtomicU64,
    usage: AtomicU64,
    working_set: AtomicU64,
}

/// See the module's text. One writer, any number of readers.
#[derive(Debug)]
pub struct Trace {
    slots: Box<[Slot]>,
    written: AtomicU64,
}

impl Default for Trace {
    fn default() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            written: AtomicU64::new(0),
        }
    }
}

impl Trace {
    fn slot(&self, index: u64) -> Option<&Slot> {
        self.slots.get(usize::try_from(index % SLOTS).ok()?)
    }

    /// Notes a reading over the oldest. For the reactor's thread alone; allocates nothing, waits for
    /// nothing.
    fn note(&self, reading: Reading) {
        let index = self.written.load(Ordering::Relaxed);
        let Some(slot) = self.slot(index) else { return };
        slot.number.store(0, Ordering::Relaxed);
        // A reader that sees any of what follows sees the 0 as well.
        fence(Ordering::Release);
        slot.subject
            .store(reading.subject.number(), Ordering::Relaxed);
        slot.at.store(reading.at, Ordering::Relaxed);
        slot.usage.store(reading.usage, Ordering::Relaxed);
        let working_set = reading.working_set.unwrap_or(UNKNOWN);
        slot.working_set.store(working_set, Ordering::Relaxed);
        slot.number.store(index + 1, Ordering::Release);
        self.written.store(index + 1, Ordering::Release);
    }

    /// Notes a look at a scope.
    pub(super) fn scope(&self, scope: ScopeName, look: Look) {
        self.note(Reading {
            subject: Subject::Scope(scope),
            at: look.at,
            usage: look.usage,
            working_set: Some(look.working_set),
        });
    }

    /// Notes what a pod uses.
    pub(super) fn pod(&self, token: u64, at: u64, usage: u64, working_set: Option<u64>) {
        self.note(Reading {
            subject: Subject::Pod(token),
            at,
            usage,
            working_set,
        });
    }

    /// What is there, the oldest first, without what was overwritten meanwhile.
    pub fn read(&self) -> Vec<Reading> {
        let written = self.written.load(Ordering::Acquire);
        let kept = written.saturating_sub(SLOTS)..written;
        kept.filter_map(|index| {
            let slot = self.slot(index)?;
            let before = slot.number.load(Ordering::Acquire);
            let reading = Reading {
                subject: Subject::of(slot.subject.load(Ordering::Relaxed)),
                at: slot.at.load(Ordering::Relaxed),
                usage: slot.usage.load(Ordering::Relaxed),
                working_set: Some(slot.working_set.load(Ordering::Relaxed))
                    .filter(|size| *size != UNKNOWN),
            };
            fence(Ordering::Acquire);
            let after = slot.number.load(Ordering::Relaxed);
            (before == index + 1 && after == before).then_some(reading)
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicBool};

    use super::*;

    fn reading(number: u64) -> Reading {
        Reading {
            subject: Subject::Pod(number),
            at: number,
            usage: number,
            working_set: Some(number),
        }
    }

    #[test]
    fn the_latest_are_kept_in_order() {
        let trace = Trace::default();
        assert_eq!(trace.read(), []);
        for number in 1..=SLOTS + 10 {
            trace.note(reading(number));
        }
        let read = trace.read();
        let expected: Vec<_> = (11..=SLOTS + 10).map(reading).collect();
        assert_eq!(read, expected);
    }

    #[test]
    fn subjects_come_back_as_they_went_in() {
        let trace = Trace::default();
        let scopes = ScopeName::ALL.iter().map(|scope| Subject::Scope(*scope));
        for subject in scopes.chain([Subject::Pod(1)]) {
            let reading = Reading {
                subject,
                at: 1,
                usage: 2,
                working_set: None,
            };
            trace.note(reading);
            assert_eq!(trace.read().last(), Some(&reading));
        }
    }

    #[test]
    fn a_reader_never_sees_half_a_reading() {
        let trace = Arc::new(Trace::default());
        let stop = Arc::new(AtomicBool::new(false));
        let (writes, stopped) = (Arc::clone(&trace), Arc::clone(&stop));
        let writer = std::thread::spawn(move || {
            let mut number = 0;
            while !stopped.load(Ordering::Relaxed) {
                number += 1;
                writes.note(reading(number));
            }
            number
        });
        let mut last = 0;
        for _ in 0..200 {
            for read in trace.read() {
                assert_eq!(read, reading(read.at));
                last = last.max(read.at);
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(writer.join().unwrap() >= last);
    }
}
