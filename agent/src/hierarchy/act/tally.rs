//! How many operations on cgroups there were, what became of them and how long they took.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use podwarden_cgroup::Error;

use crate::{
    api::types::{CgroupWrites, ReconcileStats},
    base::clock::nanos,
};

/// What is done to a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// It is made.
    Create,
    /// A value is written.
    Update,
    /// It is removed.
    Delete,
    /// Page cache of it is dropped.
    Reclaim,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Create, Self::Update, Self::Delete, Self::Reclaim];

    /// The label's value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Reclaim => "reclaim",
        }
    }
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Carried out.
    Done,
    /// Refused, or read back as something else.
    Failed,
    /// There was nothing to do, or not yet: a cgroup that is there already, or still in use, or without
    /// page cache that could be dropped.
    Unchanged,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Done, Self::Failed, Self::Unchanged];

    /// The label's value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Unchanged => "unchanged",
        }
    }
}

/// Buckets of [`Durations`]: up to 2 us, 4 us and so on to 1 s, and everything longer.
const BUCKETS: usize = 20;

/// How long operations took: bucket `i` counts those of `[2^i, 2^(i+1))` microseconds, bucket 0
/// also everything shorter, the last also everything longer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Durations {
    /// The counts.
    pub buckets: [u64; BUCKETS],
    /// The sum, nanoseconds.
    pub sum_nanos: u64,
}

impl Durations {
    fn add(&mut self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = micros.checked_ilog2().unwrap_or(0) as usize;
        self.buckets[bucket.min(BUCKETS - 1)] += 1;
        self.sum_nanos = self.sum_nanos.saturating_add(nanos(took));
    }
}

/// What is counted for one operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// By [`Outcome`].
    outcomes: [u64; Outcome::ALL.len()],
    /// Of all of them.
    pub durations: Durations,
}

impl Counts {
    /// How many had this outcome.
    pub fn of(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize]
    }
}

/// Everything since the agent started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    operations: [Counts; Operation::ALL.len()],
    corrected: u64,
    reconciles: u64,
    last: Option<ReconcileStats>,
}

impl Tally {
    /// Counts one operation.
    pub fn count(&mut self, operation: Operation, outcome: Outcome, took: Duration) {
        let counts = &mut self.operations[operation as usize];
        counts.outcomes[outcome as usize] += 1;
        counts.durations.add(took);
    }

    /// Counts values of ours that somebody else had changed and that were written again.
    pub fn count_corrected(&mut self, writes: u64) {
        self.corrected += writes;
    }

    /// Counts a pass over the whole tree.
    pub fn count_pass(&mut self, pass: ReconcileStats) {
        self.reconciles += 1;
        self.last = Some(pass);
    }

    /// What is counted for an operation.
    pub fn of(&self, operation: Operation) -> &Counts {
        &self.operations[operation as usize]
    }

    /// Passes over the whole tree.
    pub fn reconciles(&self) -> u64 {
        self.reconciles
    }

    /// The last pass; `None` before the first.
    pub fn last(&self) -> Option<&ReconcileStats> {
        self.last.as_ref()
    }

    /// As the API shows it.
    pub fn writes(&self) -> CgroupWrites {
        let done = |operation| self.of(operation).of(Outcome::Done);
        CgroupWrites {
            created: done(Operation::Create),
            updated: done(Operation::Update),
            removed: done(Operation::Delete),
            failed: Operation::ALL
                .iter()
                .map(|o| self.of(*o).of(Outcome::Failed))
                .sum(),
            corrected: self.corrected,
        }
    }
}

/// The tally of the whole process: whoever writes to a cgroup counts here.
#[derive(Debug, Default)]
pub struct Counters(Mutex<Tally>);

impl Counters {
    /// As it is now.
    pub fn now(&self) -> Tally {
        self.lock().clone()
    }

    /// Counts one operation.
    pub fn count(&self, operation: Operation, outcome: Outcome, took: Duration) {
        self.lock().count(operation, outcome, took);
    }

    /// Carries one operation out and counts it.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn counted(
        &self,
        operation: Operation,
        carry_out: impl FnOnce() -> Result<Outcome, Error>,
    ) -> Result<Outcome, Error> {
        let start = Instant::now();
        let result = carry_out();
        let outcome = *result.as_ref().unwrap_or(&Outcome::Failed);
        self.count(operation, outcome, start.elapsed());
        result
    }

    /// As [`Tally::count_corrected`].
    pub fn count_corrected(&self, writes: u64) {
        self.lock().count_corrected(writes);
    }

    /// As [`Tally::count_pass`].
    pub fn count_pass(&self, pass: ReconcileStats) {
        self.lock().count_pass(pass);
    }

    fn lock(&self) -> MutexGuard<'_, Tally> {
        // Counts are right whoever panicked between two of them.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_sorted_into_powers_of_two() {
        let mut durations = Durations::default();
        for (micros, bucket) in [(0, 0), (1, 0), (2, 1), (3, 1), (1000, 9), (1 << 30, 19)] {
            let before = durations.buckets[bucket];
            durations.add(Duration::from_micros(micros));
            assert_eq!(durations.buckets[bucket], before + 1, "{micros} us");
        }
        assert_eq!(durations.sum_nanos, (6 + 1000 + (1 << 30)) * 1000);
    }

    #[test]
    fn operations_and_outcomes_are_counted_apart() {
        let mut tally = Tally::default();
        let took = Duration::from_micros(5);
        tally.count(Operation::Create, Outcome::Done, took);
        tally.count(Operation::Create, Outcome::Unchanged, took);
        tally.count(Operation::Update, Outcome::Failed, took);
        tally.count(Operation::Delete, Outcome::Failed, took);
        let writes = tally.writes();
        assert_eq!((writes.created, writes.updated, writes.removed), (1, 0, 0));
        assert_eq!(writes.failed, 2);
        for operation in Operation::ALL {
            let counts = tally.of(operation);
            let outcomes: u64 = Outcome::ALL.iter().map(|o| counts.of(*o)).sum();
            let timed: u64 = counts.durations.buckets.iter().sum();
            assert_eq!(outcomes, timed);
        }
    }
    #[test]
    fn what_is_carried_out_is_counted_by_what_came_of_it() {
        let counters = Counters::default();
        let one = |result: Result<Outcome, Error>| counters.counted(Operation::Reclaim, || result);
        assert_eq!(one(Ok(Outcome::Unchanged)).unwrap(), Outcome::Unchanged);
        one(Ok(Outcome::Done)).unwrap();
        one(Err(Error::NoHierarchy)).unwrap_err();
        let tally = counters.now();
        let counts = Outcome::ALL.map(|outcome| tally.of(Operation::Reclaim).of(outcome));
        assert_eq!(counts, [1, 1, 1]);
        assert_eq!((tally.writes().updated, tally.writes().failed), (0, 1));
    }
}
