//! The accounts that the kernel programs keep: reading them, handing them out, taking them back.

use aya::{
    Ebpf, Pod,
    maps::{Array, HashMap, MapData, MapError, PerCpuArray, PerCpuValues, Queue},
};
use podwarden_abi::{Account, Control, CpuState, DropCounter, Level, NO_SLOT, Tracked};

use super::loader::{LoadError, take};
use crate::api::DropStats;

/// `BPF_NOEXIST` of include/uapi/linux/bpf.h.
const NO_EXIST: u64 = 1;

/// A type of the boundary, as aya wants it.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Wire<T>(pub(super) T);

macro_rules! wire {
    ($($t:ty),*) => { $(
        // SAFETY: repr(C), integers only, every padding byte named (sizes asserted in podwarden-abi).
        unsafe impl Pod for Wire<$t> {}
    )* };
}
wire!(Account, Control, CpuState, Level, Tracked);

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

/// The figures and who counts to what.
pub struct Accounts {
    accounts: PerCpuArray<MapData, Wire<Account>>,
    free: Queue<MapData, u32>,
    tracked: HashMap<MapData, u64, Wire<Tracked>>,
    control: Array<MapData, Wire<Control>>,
    cpus: PerCpuArray<MapData, Wire<CpuState>>,
    drops: PerCpuArray<MapData, u64>,
    state: Control,
    cpu_count: usize,
}

impl Accounts {
    pub(super) fn new(ebpf: &mut Ebpf, max: u32) -> Result<Self, LoadError> {
        let map = |name| {
            move |e| LoadError::Map {
                name,
                source: Box::new(e),
            }
        };
        let mut free: Queue<MapData, u32> = take(ebpf, "FREE_SLOTS")?;
        for slot in NO_SLOT + 1..max {
            free.push(slot, 0).map_err(map("FREE_SLOTS"))?;
        }
        let cpu_count = aya::util::nr_cpus().map_err(|_| LoadError::Missing("count of CPUs"))?;
        Ok(Self {
            accounts: take(ebpf, "ACCOUNTS")?,
            free,
            tracked: take(ebpf, "TRACKED")?,
            control: take(ebpf, "CONTROL")?,
            cpus: take(ebpf, "CPUS")?,
            drops: take(ebpf, "DROPS")?,
            state: Control::default(),
            cpu_count,
        })
    }

    /// Puts a cgroup that exists already in scope, with an account of its own if one is free and
    /// `own` is set, otherwise with its parent's. Returns what it counts to now; the kernel side may
    /// have been faster.
    ///
    /// # Errors
    /// When the table is full or refuses.
    pub fn track(
        &mut self,
        id: u64,
        depth: u32,
        parent_slot: u32,
        own: bool,
    ) -> Result<Tracked, AccountError> {
        if let Ok(Wire(tracked)) = self.tracked.get(&id, 0) {
            return Ok(tracked);
        }
        let fresh = if own { self.free.pop(0).ok() } else { None };
        let tracked = Tracked {
            slot: fresh.unwrap_or(parent_slot),
            depth,
        };
        match self.tracked.insert(id, Wire(tracked), NO_EXIST) {
            Ok(()) => Ok(tracked),
            Err(e) => {
                if let Some(slot) = fresh {
                    self.free
                        .push(slot, 0)
                        .map_err(failed("giving back", "FREE_SLOTS"))?;
                }
                self.tracked
                    .get(&id, 0)
                    .map(|Wire(t)| t)
                    .map_err(|_| failed("inserting", "TRACKED")(e))
            }
        }
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
        let entries = self.tracked.iter().filter_map(Result::ok);
        entries.map(|(id, Wire(tracked))| (id, tracked)).collect()
    }

    /// The figures of an account, all CPUs added up.
    ///
    /// # Errors
    /// When the map refuses.
    pub fn read(&self, slot: u32) -> Result<Account, AccountError> {
        let values = self
            .accounts
            .get(&slot, 0)
            .map_err(failed("reading", "ACCOUNTS"))?;
        let mut sum = Account::default();
        for Wire(one) in values.iter() {
            add(&mut sum, one);
        }
        Ok(sum)
    }

    /// Takes a cgroup out of scope and, where the account was its own, frees that. No task may be in
    /// the cgroup any more.
    ///
    /// # Errors
    /// When a map refuses.
    pub fn forget(&mut self, id: u64, own: Option<u32>) -> Result<(), AccountError> {
        // Not there is as good as removed.
        let _ = self.tracked.remove(&id);
        let Some(slot) = own else { return Ok(()) };
        let zero = PerCpuValues::try_from(vec![Wire(Account::default()); self.cpu_count]);
        if let Ok(zero) = zero {
            self.accounts
                .set(slot, zero, 0)
                .map_err(failed("clearing", "ACCOUNTS"))?;
        }
        self.free
            .push(slot, 0)
            .map_err(failed("giving back", "FREE_SLOTS"))
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
        })
    }
}

/// `to += of`.
pub fn add(to: &mut Account, of: &Account) {
    to.cpu_ns += of.cpu_ns;
    to.wait_ns += of.wait_ns;
    to.switches += of.switches;
    to.direct_stall_ns += of.direct_stall_ns;
    to.memcg_stall_ns += of.memcg_stall_ns;
    to.exits += of.exits;
    to.exits_failed += of.exits_failed;
    to.exits_signaled += of.exits_signaled;
    to.exits_oom += of.exits_oom;
    for (to, of) in to.wait_hist.iter_mut().zip(of.wait_hist) {
        *to += of;
    }
}
