//! Armed levels in the kernel; the reactor's, so nothing here allocates.

use aya::{
    Ebpf,
    maps::{Array, HashMap, MapData, MapError},
};
use podwarden_abi::{Level, LevelState};

use super::{
    loader::{LoadError, take},
    wire::Wire,
};

/// The table of levels.
pub struct Levels {
    levels: HashMap<MapData, u64, Wire<Level>>,
    counters: HashMap<MapData, u64, u64>,
    armed: Array<MapData, u64>,
    /// What `armed` holds. A bit stays when its level is gone: the programs then look up a cgroup in vain.
    bits: u64,
    page_size: u64,
}

impl Levels {
    pub(super) fn new(ebpf: &mut Ebpf) -> Result<Self, LoadError> {
        Ok(Self {
            levels: take(ebpf, "LEVELS")?,
            counters: take(ebpf, "COUNTERS")?,
            armed: take(ebpf, "ARMED")?,
            bits: 0,
            page_size: rustix::param::page_size() as u64,
        })
    }

    /// Arms `bytes` on the memory cgroup `id` (its id in the memory controller's hierarchy). The first
    /// program that sees usage there reports it once; arm again for the next report. An error when the table is full.
    pub fn arm(&mut self, id: u64, bytes: u64) -> Result<(), MapError> {
        let counter = self.levels.get(&id, 0).map_or(0, |Wire(l)| l.counter);
        let level = Level {
            level_pages: bytes.div_ceil(self.page_size),
            state: LevelState::Armed as u64,
            counter,
        };
        self.levels.insert(id, Wire(level), 0)?;
        let bits = self.bits | Level::bit(id);
        if bits != self.bits {
            self.armed.set(0, bits, 0)?;
            self.bits = bits;
        }
        Ok(())
    }

    /// Takes the level off `id`; nothing to do when there is none.
    pub fn disarm(&mut self, id: u64) {
        if let Ok(Wire(level)) = self.levels.get(&id, 0) {
            // Its address may be another counter's soon.
            let _ = self.counters.remove(&level.counter);
            let _ = self.levels.remove(&id);
        }
    }
}
