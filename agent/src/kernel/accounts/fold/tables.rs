//! The maps in memory, for tests.

use std::collections::BTreeMap;

use super::*;

/// The maps, and how long the agent may still write to them.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) accounts: BTreeMap<u32, Account>,
    pub(crate) tracked: BTreeMap<u64, Tracked>,
    pub(crate) records: Records,
    /// Ends with the agent.
    pub(crate) free: Vec<u32>,
    /// Operations until the agent dies; none after it has.
    pub(crate) left: Option<u32>,
}

impl Tables {
    fn lives(&mut self) -> bool {
        match &mut self.left {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }
}

impl Maps for Tables {
    fn figures(&self, slot: u32) -> Option<Account> {
        Some(self.accounts.get(&slot).copied().unwrap_or_default())
    }
    fn write(&mut self, key: u64, record: &Record) {
        if self.lives() {
            self.records.insert(key, *record);
        }
    }
    fn erase(&mut self, key: u64) {
        if self.lives() {
            self.records.remove(&key);
        }
    }
    fn untrack(&mut self, id: u64) {
        if self.lives() {
            self.tracked.remove(&id);
        }
    }
    fn clear(&mut self, slot: u32) {
        if self.lives() {
            self.accounts.remove(&slot);
        }
    }
    fn free(&mut self, slot: u32) {
        if self.lives() {
            self.free.push(slot);
        }
    }
}
