//! How many operations on cgroups there were, what became of them and how long they took.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use metrics::{counter, gauge, histogram};
use podwarden_cgroup::Error;

use crate::api::types::{CgroupWrites, ReconcileStats};

podwarden_policy::names! {
    /// What is done to a cgroup.
    pub enum Operation {
        Create = "create",
        /// A value is written.
        Update = "update",
        /// It is removed.
        Delete = "delete",
        /// Page cache of it is dropped.
        Reclaim = "reclaim",
    }
}

podwarden_policy::names! {
    /// What became of it.
    pub enum Outcome {
        /// Carried out.
        Done = "done",
        /// Refused, or read back as something else.
        Failed = "failed",
        /// There was nothing to do, or not yet: a cgroup that is there already, or still in use, or without
        /// page cache that could be dropped.
        Unchanged = "unchanged",
    }
}

/// What is counted for one operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// By [`Outcome`].
    outcomes: [u64; Outcome::ALL.len()],
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
    pub fn count(&mut self, operation: Operation, outcome: Outcome) {
        self.operations[operation as usize].outcomes[outcome as usize] += 1;
    }

    /// Counts values of ours that another process had changed and that were written again.
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

/// The tally of the whole process: every write to a cgroup is counted here.
#[derive(Debug, Default)]
pub struct Counters(Mutex<Tally>);

impl Counters {
    /// As it is now.
    pub fn now(&self) -> Tally {
        self.lock().clone()
    }

    pub fn count(&self, operation: Operation, outcome: Outcome, took: Duration) {
        let (name, result) = (operation.as_str(), outcome.as_str());
        counter!("podwarden_cgroup_operations_total", "operation" => name, "result" => result)
            .increment(1);
        histogram!("podwarden_cgroup_operation_duration_seconds", "operation" => name).record(took);
        self.lock().count(operation, outcome);
    }

    /// Carries one operation out and counts it.
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
        counter!("podwarden_cgroup_corrections_total").increment(writes);
        self.lock().count_corrected(writes);
    }

    /// As [`Tally::count_pass`].
    pub fn count_pass(&self, pass: ReconcileStats) {
        counter!("podwarden_reconciles_total").increment(1);
        let took = Duration::from_nanos(pass.duration_nano_seconds);
        gauge!("podwarden_last_reconcile_duration_seconds").set(took);
        self.lock().count_pass(pass);
    }

    fn lock(&self) -> MutexGuard<'_, Tally> {
        // A panic between two counts leaves both right.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What came of a list of actions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Performed {
    /// Carried out.
    pub done: u32,
    /// Refused by the kernel; said in the log.
    pub failed: u32,
    /// Nothing to do: a cgroup to be made that is there.
    pub unchanged: u32,
    /// Not yet: a cgroup to be removed that is still in use.
    pub postponed: u32,
    /// Not carried out because of observe mode.
    pub withheld: u32,
    /// Indices of the actions whose value the kernel refused. A value that it took and that another process
    /// overwrote at once has failed too and is not among these.
    pub refused: Vec<usize>,
}

impl Performed {
    /// True when trying the same again later may do more.
    pub fn is_incomplete(&self) -> bool {
        self.failed + self.postponed > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_and_outcomes_are_counted_apart() {
        let mut tally = Tally::default();
        tally.count(Operation::Create, Outcome::Done);
        tally.count(Operation::Create, Outcome::Unchanged);
        tally.count(Operation::Update, Outcome::Failed);
        tally.count(Operation::Delete, Outcome::Failed);
        let writes = tally.writes();
        assert_eq!((writes.created, writes.updated, writes.removed), (1, 0, 0));
        assert_eq!(writes.failed, 2);
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
