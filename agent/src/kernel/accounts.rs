//! The accounts that the kernel programs keep: reading them, handing them out, taking them back.

mod batch;
pub(crate) mod fold;
mod key;
mod maps;
mod shapes;

use std::{collections::VecDeque, mem::take};

use aya::{
    Ebpf, Pod,
    maps::{Array, MapData, MapError, PerCpuArray},
};
use podwarden_abi::{Account, Control, CpuState, DropCounter, MAX_ACCOUNT_DEPTH, NO_SLOT, Tracked};

use super::{
    loader::{self, LoadError},
    pins::Pins,
    wire::Wire,
};
use crate::api::types::DropStats;
pub use key::{FoldTarget, PodKey};

use batch::{Batches, Gathered};
use fold::{Maps as _, Record, Records};
use maps::KernelMaps;
use shapes::max_records;
pub(super) use shapes::{max_tracked, shapes};

/// `BPF_NOEXIST` of include/uapi/linux/bpf.h.
const NO_EXIST: u64 = 1;

// SAFETY: repr(C), integers only, every padding byte named (its size is asserted where it is declared).
unsafe impl Pod for Wire<Record> {}

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
    /// Free accounts that the kernel programs lack, see [`Accounts::free_more`].
    withheld: VecDeque<u32>,
    /// Accounts of an agent before this one are in the maps.
    continues: bool,
    control: Array<MapData, Wire<Control>>,
    cpus: PerCpuArray<MapData, Wire<CpuState>>,
    drops: PerCpuArray<MapData, u64>,
    state: Control,
    /// A cgroup that was there already found no account, or no room in the table.
    is_full: bool,
    /// `None` where each account is read by itself.
    batches: Option<Batches>,
    gathered: Gathered,
}

/// Free accounts that the kernel programs have when they are attached, enough for some twenty pods in the moment until the
/// agent works. A node has thousands, and each takes four system calls: the others follow then.
const FREE_AT_START: usize = 64;

impl Accounts {
    /// Takes the maps over, and what an agent before this one left in them.
    pub(super) fn new(ebpf: &mut Ebpf, max: u32, pins: Option<&Pins>) -> Result<Self, LoadError> {
        let cpu_count = aya::util::nr_cpus().map_err(|_| LoadError::Missing("count of CPUs"))?;
        let batches = Batches::of(ebpf, cpu_count)?;
        let mut maps = KernelMaps {
            accounts: loader::take(ebpf, "ACCOUNTS")?,
            shared: loader::take(ebpf, "SHARED")?,
            free: loader::take(ebpf, "FREE_SLOTS")?,
            tracked: loader::take(ebpf, "TRACKED")?,
            records: None,
            cpu_count,
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
        let withheld = (NO_SLOT + 1..max).filter(|slot| !settled.used.contains(slot));
        let mut this = Self {
            maps,
            records,
            inherited: settled.inherited,
            withheld: withheld.collect(),
            continues: pins.is_some(),
            control: loader::take(ebpf, "CONTROL")?,
            cpus: loader::take(ebpf, "CPUS")?,
            drops: loader::take(ebpf, "DROPS")?,
            state: Control::default(),
            is_full: false,
            batches: Some(batches),
            gathered: Gathered::default(),
        };
        this.free_more(FREE_AT_START);
        Ok(this)
    }

    /// Whether the kernel programs lack some of the free accounts.
    pub fn withholds(&self) -> bool {
        !self.withheld.is_empty()
    }

    /// Gives the kernel programs at most `most` of the free accounts that they lack.
    pub fn free_more(&mut self, most: usize) {
        for _ in 0..most {
            let Some(slot) = self.take_withheld() else {
                return;
            };
            self.maps.free(slot);
        }
    }

    /// One of them, with no figures.
    fn take_withheld(&mut self) -> Option<u32> {
        let slot = self.withheld.pop_front()?;
        if self.continues && self.maps.figures(slot) != Some(Account::default()) {
            self.maps.clear(slot);
        }
        Some(slot)
    }

    /// A free account; those that the kernel programs have are left to them while there are others.
    fn take_free(&mut self) -> Option<u32> {
        let withheld = self.take_withheld();
        withheld.or_else(|| self.maps.free.pop(0).ok())
    }

    /// Cgroups that an agent before this one knew, parents first; some are gone by now. Asked once.
    pub fn take_inherited(&mut self) -> Vec<(u64, Tracked)> {
        take(&mut self.inherited)
    }

    /// Tells the programs how deep kubepods is below the root of its hierarchy: cgroups deeper than
    /// [`MAX_ACCOUNT_DEPTH`] below it take no entry from now on, and count to their ancestor at that depth. Call it before
    /// the first [`Accounts::track`].
    pub fn begin_at(&mut self, level: u32) -> Result<(), AccountError> {
        let deepest = level.saturating_add(MAX_ACCOUNT_DEPTH);
        // A tree as deep as that is nested elsewhere: every cgroup has an entry.
        let fits = deepest <= Control::LEVELS_MASK;
        self.state.deepest_level = if fits { deepest } else { 0 };
        self.invalidate()
    }

    /// Puts a cgroup that exists already in scope, with an account of its own if one is free and
    /// it is not too deep, otherwise with its parent's. Returns what it counts to now; the kernel side, or an
    /// agent before this one, may have put it in scope already.
    ///
    /// Where the table is full it gets no entry: its processes are not accounted, and the agent knows it all the same.
    pub fn track(&mut self, id: u64, parent: Parent, depth: u16) -> Tracked {
        let own = u32::from(depth) <= MAX_ACCOUNT_DEPTH;
        if !own && self.state.deepest_level != 0 {
            return Tracked {
                slot: parent.slot,
                depth,
                own: 0,
                parent: parent.id,
            };
        }
        if let Ok(Wire(tracked)) = self.maps.tracked.get(&id, 0) {
            return tracked;
        }
        let fresh = if own { self.take_free() } else { None };
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

    /// Makes the CPUs forget which cgroups are out of scope: call it after putting one in scope.
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

    /// Reads the figures of `slots`, which are sorted, for [`Accounts::gathered`].
    pub fn gather(&mut self, slots: &[u32]) {
        let alone = |slot| self.maps.figures(slot);
        if let Some(batches) = &self.batches
            && let Err(error) = batches.gather(slots, &mut self.gathered, alone)
        {
            tracing::info!(%error, "each account takes system calls of its own");
            self.batches = None;
            self.gathered = Gathered::default();
        }
    }

    /// The figures of an account as of the last [`Accounts::gather`]; as of now where that has not read it.
    pub fn gathered(&self, slot: u32) -> Option<Account> {
        let gathered = self.gathered.get(slot).copied();
        gathered.or_else(|| self.read(slot))
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
        if let Some(slot) = own {
            self.gathered.forget(slot);
        }
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
