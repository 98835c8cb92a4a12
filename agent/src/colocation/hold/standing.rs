//! What best effort may use now, for other threads to read.

use std::sync::atomic::{AtomicU64, Ordering};

use podwarden_policy::{MilliCpu, colocation::strategies::Measured};

use crate::colocation::latest::Latest;

/// No limit.
const NONE: u64 = u64::MAX;

#[derive(Debug)]
pub struct Standing {
    wait: AtomicU64,
    suppress: AtomicU64,
    long_waits: AtomicU64,
    figures: Latest<Figures>,
}

/// What the limits are from.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// The formula's figures; `None` before there are any.
    pub suppress: Option<Measured>,
    /// What best effort used lately; `None` where its cgroup is not there.
    pub used: Option<MilliCpu>,
}

impl Default for Standing {
    fn default() -> Self {
        Self {
            wait: AtomicU64::new(NONE),
            suppress: AtomicU64::new(NONE),
            long_waits: AtomicU64::new(0),
            figures: Latest::default(),
        }
    }
}

impl Standing {
    /// What best effort may use: while a protected pod waits, and by the formula.
    pub(super) fn set(&self, wait: Option<MilliCpu>, suppress: Option<MilliCpu>) {
        for (at, limit) in [(&self.wait, wait), (&self.suppress, suppress)] {
            at.store(limit.map_or(NONE, |limit| limit.0), Ordering::Relaxed);
        }
    }

    /// What these are from.
    pub(super) fn set_figures(&self, figures: Figures) {
        self.figures.set(figures);
    }

    /// What the limits are from.
    pub fn figures(&self) -> Figures {
        self.figures.get()
    }

    /// A protected pod waited longer than its objective.
    pub(super) fn waited(&self) {
        self.long_waits.fetch_add(1, Ordering::Relaxed);
    }

    /// What it may use while a protected pod waits; `None` while none waits.
    pub fn wait(&self) -> Option<MilliCpu> {
        read(&self.wait)
    }

    /// What it may use by the formula; `None` without a limit.
    pub fn suppress(&self) -> Option<MilliCpu> {
        read(&self.suppress)
    }

    /// Waits beyond their objective so far.
    pub fn long_waits(&self) -> u64 {
        self.long_waits.load(Ordering::Relaxed)
    }
}

fn read(limit: &AtomicU64) -> Option<MilliCpu> {
    match limit.load(Ordering::Relaxed) {
        NONE => None,
        limit => Some(MilliCpu(limit)),
    }
}
