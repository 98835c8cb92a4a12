//! The accounts that the kernel programs keep: reading them, handing them out, taking them back.

pub(crate) mod fold;
mod key;
mod maps;

use std::mem::take;

use aya::{
    Ebpf, Pod,
    maps::{Array, MapData, MapError, MapType, PerCpuArray},
};
use podwarden_abi::{
    Account, Control, CpuAccount, CpuState, DropCounter, ENDED_ENTRIES, Level, NO_SLOT, Objective,
    SharedAccount, Tracked, WalkPlan,
};

use super::{
    loader::{self, LoadError},
    pins::{Pins, Shape},
};
use crate::api::types::DropStats;
pub use key::{FoldTarget, PodKey};

use fold::{Maps as _, Record, Records};
use maps::KernelMaps;

/// `BPF_NOEXIST` of include/uapi/linux/bpf.h.
const NO_EXIST: u64 = 1;

/// A type of the boundary, as aya wants it.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Wire<T>(pub(super) T);

macro_rules! wire {
    ($($t:ty),*) => { $(
        // SAFETY: repr(C), integers only, every padding byte named (sizes asserted where they are declared).
        unsafe impl Pod for Wire<$t> {}
    )* };
}
wire!(
    CpuAccount,
    SharedAccount,
    Control,
    CpuState,
    Level,
    Objective,
    Tracked,
    WalkPlan,
    Record
);

/// A map operation failed.
#[derive(Debug, thiserror::Error)]
#[error("{operation} in map {map} of the kernel programs")]
pub struct AccountError {
    operation: &'static str,
    map: &'static str,
    #[source]
    source: Box<MapError>,
}

fn failed(operation: &'static str, map: &'static str) -> impl FnOnce(MapError) -> AccountError {
    move |e| AccountError {
        operation,
        map,
        source: Box::new(e),
    }
}

/// The figures, and which cgroup counts to which account.
pub struct Accounts {
    maps: KernelMaps,
    records: Records,
    inherited: Vec<(u64, Tracked)>,
    control: Array<MapData, Wire<Control>>,
    cpus: PerCpuArray<MapData, Wire<CpuState>>,
    drops: PerCpuArray<MapData, u64>,
    state: Control,
    /// A cgroup that was there already found no account, or no room in the table.
    is_full: bool,
}

/// Cgroups in scope for one that has an account.
const TRACKED_PER_ACCOUNT: u32 = 4;

/// Entries of the table of cgroups in scope.
pub(super) fn max_tracked(max_accounts: u32) -> u32 {
    max_accounts.saturating_mul(TRACKED_PER_ACCOUNT)
}

/// Entries of the map of records: one for each cgroup in scope, and the constant ones.
fn max_records(max_accounts: u32) -> u32 {
    max_tracked(max_accounts).saturating_add(8)
}

/// The shapes of the maps that may outlive the agent.
pub(super) fn shapes(max_accounts: u32) -> [(&'static str, Shape); 5] {
    let shape = |kind: MapType, key: usize, value: usize, entries, flags| Shape {
        kind: kind as u32,
        key: key as u32,
        value: value as u32,
        entries,
        flags,
    };
    let accounts = shape(
        MapType::PerCpuArray,
        4,
        size_of::<CpuAccount>(),
        max_accounts,
        0,
    );
    let shared = shape(
        MapType::Array,
        4,
        size_of::<SharedAccount>(),
        max_accounts,
        0,
    );
    let tracked = shape(
        MapType::Hash,
        8,
        size_of::<Tracked>(),
        max_tracked(max_accounts),
        0,
    );
    let ended = shape(MapType::LruHash, 16, 1, ENDED_ENTRIES as u32, 0);
    let records = max_records(max_accounts);
    let retired = shape(
        MapType::Hash,
        8,
        size_of::<Record>(),
        records,
        maps::NO_PREALLOC,
    );
    [
        ("accounts", accounts),
        ("shared", shared),
        ("tracked", tracked),
        ("ended", ended),
        ("retired", retired),
    ]
}

impl Accounts {
    /// Takes the maps over, and what an agent before this one left in them.
    pub(super) fn new(ebpf: &mut Ebpf, max: u32, pins: Option<&Pins>) -> Result<Self, LoadError> {
        let map = |name| {
            move |e| LoadError::Map {
                name,
                source: Box::new(e),
            }
        };
        let mut maps = KernelMaps {
            accounts: loader::take(ebpf, "ACCOUNTS")?,
            shared: loader::take(ebpf, "SHARED")?,
            free: loader::take(ebpf, "FREE_SLOTS")?,
            tracked: loader::take(ebpf, "TRACKED")?,
            records: None,
            cpu_count: aya::util::nr_cpus().map_err(|_| LoadError::Missing("count of CPUs"))?,
            record_lost: false,
        };
        let mut records = match pins {
            Some(pins) => maps
                .keep_records(pins, max_records(max))
                .map_err(|e| LoadError::Pins(pins.refused(e)))?,
            None => Records::new(),
        };
        let table = maps.table();
        let settled = fold::settle(&mut records, &mut maps, table, max);
        if settled.wrong != 0 {
            tracing::warn!(
                entries = settled.wrong,
                "the table that the last agent left contradicts itself: these cgroups begin anew"
            );
        }
        for slot in (NO_SLOT + 1..max).filter(|slot| !settled.used.contains(slot)) {
            if pins.is_some() && maps.figures(slot) != Some(Account::default()) {
                maps.clear(slot);
            }
            maps.free.push(slot, 0).map_err(map("FREE_SLOTS"))?;
        }
        Ok(Self {
            maps,
            records,
            inherited: settled.inherited,
            control: loader::take(ebpf, "CONTROL")?,
            cpus: loader::take(ebpf, "CPUS")?,
            drops: loader::take(ebpf, "DROPS")?,
            state: Control::default(),
            is_full: false,
        })
    }

    /// Cgroups that an agent before this one knew, parents first; some are gone by now. Asked once.
    pub fn take_inherited(&mut self) -> Vec<(u64, Tracked)> {
        take(&mut self.inherited)
    }

    /// Puts a cgroup that exists already in scope, with an account of its own if one is free and
    /// `own` is set, otherwise with its parent's. Returns what it counts to now; the kernel side, or an
    /// agent before this one, may have put it in scope already.
    ///
    /// Where the table is full it gets no entry: its processes are not accounted, and the agent knows it all the same.
    pub fn track(&mut self, id: u64, parent: Parent, depth: u16, own: bool) -> Tracked {
        if let Ok(Wire(tracked)) = self.maps.tracked.get(&id, 0) {
            return tracked;
        }
        let fresh = if own {
            self.maps.free.pop(0).ok()
        } else {
            None
        };
        self.is_full |= own && fresh.is_none();
        let tracked = Tracked {
            slot: fresh.unwrap_or(parent.slot),
            depth,
            own: u16::from(fresh.is_some()),
            parent: parent.id,
        };
        match self.maps.tracked.insert(id, Wire(tracked), NO_EXIST) {
            Ok(()) => tracked,
            Err(_) => {
                if let Some(slot) = fresh {
                    self.maps.free(slot);
                }
                // The kernel side was faster, or there is no room.
                if let Ok(Wire(tracked)) = self.maps.tracked.get(&id, 0) {
                    return tracked;
                }
                self.is_full = true;
                Tracked {
                    slot: parent.slot,
                    own: 0,
                    ..tracked
                }
            }
        }
    }

    /// Whether [`Accounts::track`] has found no account or no room since the start.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Tells whether levels are armed; otherwise as [`Accounts::invalidate`].
    ///
    /// # Errors
    /// When the map refuses.
    pub fn announce(&mut self, levels_armed: bool) -> Result<(), AccountError> {
        self.state.levels = u32::from(levels_armed);
        self.invalidate()
    }

    /// Makes the CPUs forget which cgroups are out of scope: call it after putting one in scope.
    ///
    /// # Errors
    /// When the map refuses.
    pub fn invalidate(&mut self) -> Result<(), AccountError> {
        self.state.generation = self.state.generation.wrapping_add(1);
        self.control
            .set(0, Wire(self.state), 0)
            .map_err(failed("writing", "CONTROL"))
    }

    /// Every cgroup in scope. One that comes or goes meanwhile may be missing.
    pub fn table(&self) -> Vec<(u64, Tracked)> {
        self.maps.table()
    }

    /// The figures of an account, all CPUs added up; `None` where they cannot be read.
    pub fn read(&self, slot: u32) -> Option<Account> {
        self.maps.figures(slot)
    }

    /// What cgroups that are gone left to `target`.
    pub fn folded(&self, target: FoldTarget) -> Account {
        let record = self.records.get(&target.key());
        record.map(|record| record.sum).unwrap_or_default()
    }

    /// Takes a cgroup out of scope, frees the account that it had to itself, and adds what it and those
    /// before it counted to `target`. No task may be in the cgroup any more.
    pub fn fold(&mut self, id: u64, own: Option<u32>, target: FoldTarget) {
        fold::fold(&mut self.records, &mut self.maps, id, own, target.key());
    }

    /// Notes for the next agent which pod the cgroup `id` is.
    pub fn note_pod(&mut self, id: u64, pod: PodKey) {
        if self.maps.records.is_none() {
            return;
        }
        let record = self.records.entry(id).or_default();
        if pod.note_in(record) {
            self.maps.write(id, record);
        }
    }

    /// The pod of the cgroup `id`, as an agent noted it.
    pub fn pod_of(&self, id: u64) -> Option<PodKey> {
        PodKey::of(self.records.get(&id)?)
    }

    /// CPUs whose running task is in scope, as far as has been seen.
    ///
    /// # Errors
    /// When the map refuses.
    pub fn busy_cpus(&self) -> Result<Vec<u32>, AccountError> {
        let states = self.cpus.get(&0, 0).map_err(failed("reading", "CPUS"))?;
        Ok(states
            .iter()
            .enumerate()
            .filter(|(_, Wire(s))| CpuState::slot(s.current) != NO_SLOT)
            .filter_map(|(cpu, _)| u32::try_from(cpu).ok())
            .collect())
    }

    /// What was lost since the start.
    ///
    /// # Errors
    /// When the map refuses.
    pub fn drops(&self) -> Result<DropStats, AccountError> {
        let sum = |what: DropCounter| {
            self.drops
                .get(&(what as u32), 0)
                .map(|v| v.iter().sum())
                .map_err(failed("reading", "DROPS"))
        };
        Ok(DropStats {
            decisions: sum(DropCounter::Decisions)?,
            telemetry: sum(DropCounter::Telemetry)?,
            accounts: sum(DropCounter::Accounts)?,
            stalls: sum(DropCounter::Stalls)?,
            untraced_switches: sum(DropCounter::Untraced)?,
            waits: sum(DropCounter::Waits)?,
        })
    }
}

/// A cgroup and what it counts to.
#[derive(Debug, Clone, Copy)]
pub struct Parent {
    /// Its kernel id.
    pub id: u64,
    /// Its account.
    pub slot: u32,
}

/// `to += of`.
pub fn add(to: &mut Account, of: &Account) {
    to.accumulate(of);
}
