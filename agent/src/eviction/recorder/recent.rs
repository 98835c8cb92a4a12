//! The latest records with their curves, in memory.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use crate::api::types::EventRecord;

/// How many; each has at most some 20 KiB.
const KEPT: usize = 64;

#[derive(Debug, Default)]
pub struct RecentIncidents(Mutex<VecDeque<EventRecord>>);

impl RecentIncidents {
    /// Puts a record on it; the oldest falls off.
    pub fn put(&self, record: EventRecord) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.truncate(KEPT - 1);
        kept.push_front(record);
    }

    pub fn get(&self, id: u64) -> Option<EventRecord> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().find(|record| record.event.id == id).cloned()
    }
}
