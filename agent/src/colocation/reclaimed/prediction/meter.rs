//! From readings of a counter to samples of a model. Values only: time is an argument.

use std::time::{Duration, Instant};

use podwarden_policy::colocation::predict::Model;

/// A sample is of so much time at least; what is read more often is one sample.
const SAMPLE: Duration = Duration::from_millis(9_500);

/// The readings that are no sample yet.
#[derive(Debug, Clone, Copy)]
struct Open {
    since: Instant,
    /// The counter then, and at the last reading; nanoseconds.
    first_ns: u64,
    last_ns: u64,
    /// The most that was read since, bytes.
    memory: u64,
}

/// One pod, all prod pods, or the system.
#[derive(Debug, Clone, Default)]
pub(super) struct Meter {
    model: Model,
    open: Option<Open>,
    /// The clock of the model at the last reading, or of the agent before.
    seen: u64,
}

impl Meter {
    /// Goes on with what was learnt.
    pub(super) fn new(model: Model) -> Self {
        Self {
            seen: model.last().unwrap_or(0),
            model,
            open: None,
        }
    }

    pub(super) const fn model(&self) -> &Model {
        &self.model
    }

    pub(super) const fn seen(&self) -> u64 {
        self.seen
    }

    /// Takes a reading and returns the CPU time since the one before, nanoseconds; 0 for the first, and where the
    /// counter went back, which is then another cgroup's.
    pub(super) fn read(&mut self, now: Instant, cpu_ns: u64, memory: u64, clock: u64) -> u64 {
        self.seen = clock;
        let begun = Open {
            since: now,
            first_ns: cpu_ns,
            last_ns: cpu_ns,
            memory,
        };
        let Some(open) = self.open.as_mut().filter(|open| open.last_ns <= cpu_ns) else {
            self.open = Some(begun);
            return 0;
        };
        let used = cpu_ns - open.last_ns;
        open.last_ns = cpu_ns;
        open.memory = open.memory.max(memory);
        let elapsed = now.saturating_duration_since(open.since);
        if elapsed >= SAMPLE {
            let used = u128::from(cpu_ns - open.first_ns) * 1_000_000;
            // SAMPLE is not zero.
            let microcores = used / elapsed.as_nanos();
            let microcores = u64::try_from(microcores).unwrap_or(u64::MAX);
            self.model.train(microcores, open.memory, clock);
            self.open = Some(begun);
        }
        used
    }
}
