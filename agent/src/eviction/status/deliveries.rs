//! How many marks wait, and what became of the others.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::api::types::EvictionStatusStats;

/// Counted since the agent started.
#[derive(Debug, Default)]
pub struct DeliveryCounts {
    waiting: AtomicU64,
    delivered: AtomicU64,
    given_up: AtomicU64,
}

impl DeliveryCounts {
    /// So many wait now.
    pub(super) fn waits(&self, entries: usize) {
        self.waiting.store(entries as u64, Ordering::Relaxed);
    }

    /// One was told, or will never be.
    pub(super) fn over(&self, delivered: bool) {
        let counter = match delivered {
            true => &self.delivered,
            false => &self.given_up,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// As `/v1/node` shows it.
    pub fn stats(&self) -> EvictionStatusStats {
        EvictionStatusStats {
            waiting: self.waiting.load(Ordering::Relaxed),
            delivered: self.delivered.load(Ordering::Relaxed),
            given_up: self.given_up.load(Ordering::Relaxed),
        }
    }
}
