//! Objectives of run-queue waits in the kernel, and its records of waits that were longer. Nothing here allocates
//! after the start.

use std::{
    os::fd::{AsFd, AsRawFd as _, BorrowedFd},
    time::Duration,
};

use aya::{
    Ebpf,
    maps::{Array, MapData, MapError, RingBuf},
};
use podwarden_abi::{LongWait, Objective};

use super::{
    events,
    loader::{LoadError, ring, take},
    wire::Wire,
};
use crate::base::clock::nanos;

pub struct Waits {
    objectives: Array<MapData, Wire<Objective>>,
    ring: RingBuf<MapData>,
}

impl Waits {
    pub(super) fn new(ebpf: &mut Ebpf) -> Result<Self, LoadError> {
        Ok(Self {
            objectives: take(ebpf, "OBJECTIVES")?,
            ring: ring(ebpf, "WAITS")?,
        })
    }

    /// From now on a wait of `objective` or longer of a task that counts to the account `slot` makes a record, one in
    /// each window of [`Objective::WINDOW_NS`]. `None` for none. An error when there is no such account.
    pub fn set(&mut self, slot: u32, objective: Option<Duration>) -> Result<(), MapError> {
        let objective = Objective {
            wait_ns: objective.map_or(0, nanos),
            reported_ns: 0,
        };
        self.objectives.set(slot, Wire(objective), 0)
    }

    pub fn next(&mut self) -> Option<LongWait> {
        loop {
            let record = self.ring.next()?;
            if let Ok(wait) = events::record(&record) {
                return Some(wait);
            }
        }
    }
}

/// Readable while there are records.
impl AsFd for Waits {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring owns the descriptor, which stays open for as long as it is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}
