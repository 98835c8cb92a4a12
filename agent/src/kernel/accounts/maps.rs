//! The operations of [`super::fold`] on the kernel's maps.

use aya::maps::{Array, HashMap, MapData, MapError, PerCpuArray, PerCpuValues, Queue};
use podwarden_abi::{Account, CpuAccount, SharedAccount, Tracked};

use super::fold::{Maps, Record, Records};
use crate::{
    base::error::chain,
    kernel::{pins::Pins, wire::Wire},
};

/// `BPF_F_NO_PREALLOC` of include/uapi/linux/bpf.h: only entries that exist take memory.
pub(super) const NO_PREALLOC: u32 = 1;

pub(super) struct KernelMaps {
    pub(super) accounts: PerCpuArray<MapData, Wire<CpuAccount>>,
    pub(super) shared: Array<MapData, Wire<SharedAccount>>,
    pub(super) free: Queue<MapData, u32>,
    pub(super) tracked: HashMap<MapData, u64, Wire<Tracked>>,
    /// Where the records are kept for the next agent; `None` where nothing outlives this one.
    pub(super) records: Option<HashMap<MapData, u64, Wire<Record>>>,
    pub(super) cpu_count: usize,
    /// A record could not be kept: that is said once.
    pub(super) record_lost: bool,
}

impl Maps for KernelMaps {
    fn figures(&self, slot: u32) -> Option<Account> {
        let mut shared = self.shared.get(&slot, 0).ok()?;
        loop {
            let values = self.accounts.get(&slot, 0).ok()?;
            // A bucket that overflowed between the two reads would count in neither.
            let after = self.shared.get(&slot, 0).ok()?;
            if after.0.wait_carry != shared.0.wait_carry {
                shared = after;
                continue;
            }
            let mut sum = Account::default();
            sum.add_shared(&after.0);
            values.iter().for_each(|Wire(one)| sum.add_cpu(one));
            return Some(sum);
        }
    }

    fn write(&mut self, key: u64, record: &Record) {
        let Some(records) = &mut self.records else {
            return;
        };
        if let Err(error) = records.insert(key, Wire(*record), 0)
            && !self.record_lost
        {
            self.record_lost = true;
            tracing::warn!(
                error = chain(&error),
                "what cgroups that are gone have used is known to this agent alone: the next one counts less"
            );
        }
    }

    fn erase(&mut self, key: u64) {
        if let Some(records) = &mut self.records {
            // Not there is as good as erased.
            let _ = records.remove(&key);
        }
    }

    fn untrack(&mut self, id: u64) {
        let _ = self.tracked.remove(&id);
    }

    fn clear(&mut self, slot: u32) {
        let zero = PerCpuValues::try_from(vec![Wire(CpuAccount::default()); self.cpu_count]);
        let Ok(zero) = zero else { return };
        let cleared = self.accounts.set(slot, zero, 0);
        let cleared = cleared.and_then(|()| {
            let zero = Wire(SharedAccount::default());
            self.shared.set(slot, zero, 0)
        });
        if let Err(error) = cleared {
            tracing::warn!(error = chain(&error), slot, "an account was not cleared");
        }
    }

    fn free(&mut self, slot: u32) {
        if let Err(error) = self.free.push(slot, 0) {
            tracing::warn!(
                error = chain(&error),
                slot,
                "an account could not be given back"
            );
        }
    }
}

impl KernelMaps {
    /// The table of cgroups in scope.
    pub(super) fn table(&self) -> Vec<(u64, Tracked)> {
        let entries = self.tracked.iter().filter_map(Result::ok);
        entries.map(|(id, Wire(tracked))| (id, tracked)).collect()
    }

    /// The records that are pinned, which are kept there from now on.
    pub(super) fn keep_records(&mut self, pins: &Pins, max: u32) -> Result<Records, MapError> {
        let map = open_records(pins, max)?;
        let records = map.iter().collect::<Result<Vec<_>, _>>()?;
        self.records = Some(map);
        Ok(records.into_iter().map(|(key, Wire(r))| (key, r)).collect())
    }
}

/// The map of records, pinned: only the agent uses it, so it is not in the programs' object.
fn open_records(pins: &Pins, max: u32) -> Result<HashMap<MapData, u64, Wire<Record>>, MapError> {
    let path = pins.path("retired");
    if !path.exists() {
        let made = HashMap::<MapData, u64, Wire<Record>>::create(max, NO_PREALLOC)?;
        made.pin(&path).map_err(|error| MapError::PinError {
            name: Some("retired".to_owned()),
            error,
        })?;
    }
    HashMap::try_from(aya::maps::Map::HashMap(MapData::from_pin(&path)?))
}
