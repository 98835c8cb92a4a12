//! The records of one pass, found by the id of a cgroup.
//!
//! The kernel visits cgroups in the same order each time, so a cgroup's record is where it was in the pass before,
//! until a cgroup comes or goes: a table by id is made only for a pass in which a record has moved.

use std::path::Path;

use foldhash::HashMap;

use super::{CgroupRecord, Found, WalkError, Walker};

#[derive(Debug, Default)]
pub struct Gathered {
    records: Vec<CgroupRecord>,
    /// Index in `records` by id, once it is needed.
    by_id: HashMap<u64, u32>,
    is_indexed: bool,
}

impl Gathered {
    pub fn clear(&mut self) {
        self.records.clear();
        self.by_id.clear();
        self.is_indexed = false;
    }

    /// Takes the place of the last pass's records.
    pub fn walk(&mut self, walker: &Walker, root: &Path) -> Result<Found, WalkError> {
        self.clear();
        walker.pass(root, |record| self.records.push(*record))
    }

    /// True before the first pass, and after one that failed.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The record of the cgroup `id`. `place` is where it was in the pass before, and is brought up to date.
    pub fn find(&mut self, id: u64, place: &mut u32) -> Option<&CgroupRecord> {
        let there = self.records.get(*place as usize);
        if there.is_none_or(|record| record.id != id) {
            *place = *self.index().get(&id)?;
        }
        self.records.get(*place as usize)
    }

    fn index(&mut self) -> &HashMap<u64, u32> {
        if !self.is_indexed {
            // No more than the map has places, which u32 counts.
            let ids = self.records.iter().map(|record| record.id).zip(0..);
            self.by_id.extend(ids);
            self.is_indexed = true;
        }
        &self.by_id
    }

    #[cfg(test)]
    pub(crate) fn of(records: Vec<CgroupRecord>) -> Self {
        Self {
            records,
            ..Self::default()
        }
    }
}
