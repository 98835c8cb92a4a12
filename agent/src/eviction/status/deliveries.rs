//! How many entries wait, and what became of the others.

use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{counter, gauge};

use crate::api::types::EvictionStatusStats;

/// Counted since the agent started.
#[derive(Debug, Default)]
pub struct DeliveryCounts {
    waiting: AtomicU64,
    delivered: AtomicU64,
    given_up: AtomicU64,
}

impl DeliveryCounts {
    /// So many entries wait now.
    pub(super) fn waits(&self, entries: usize) {
        gauge!("podwarden_eviction_status_waiting").set(entries as f64);
        self.waiting.store(entries as u64, Ordering::Relaxed);
    }

    /// The API server has one more, or never will.
    pub(super) fn over(&self, delivered: bool) {
        let (count, result) = match delivered {
            true => (&self.delivered, "delivered"),
            false => (&self.given_up, "given_up"),
        };
        counter!("podwarden_eviction_status_deliveries_total", "result" => result).increment(1);
        count.fetch_add(1, Ordering::Relaxed);
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
