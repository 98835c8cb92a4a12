//! The figures of many accounts in few system calls.
//!
//! An account that is read by itself takes three calls, and a node of a thousand pods has thousands of accounts.
//! `BPF_MAP_LOOKUP_BATCH` reads neighbours in one call (Linux 5.6; 5.13 for arrays with a value for each CPU).

use std::{
    io,
    ops::Range,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
};

use aya::{Ebpf, maps::Map};
use aya_obj::generated::bpf_cmd;
use podwarden_abi::{Account, CpuAccount, NO_SLOT, SharedAccount};

use crate::kernel::{
    loader::LoadError,
    sys::{self, empty},
};

/// Accounts between two that are wanted: so many are read with them rather than begin another call.
const GAP: u32 = 8;

/// What one call reads of a map, bytes.
const AT_ONCE: usize = 64 << 10;

/// Not in the last gathering.
const ABSENT: u32 = u32::MAX;

/// The figures of accounts as of one moment.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// By slot: where in `figures` it is.
    places: Vec<u32>,
    figures: Vec<Account>,
    /// By slot: what the buckets of its CPUs have had no room for, added up, as of the last gathering; `None` where it has
    /// been cleared since.
    carried: Vec<Option<u64>>,
    keys: Vec<u32>,
    cpus: Vec<CpuAccount>,
    shared: Vec<SharedAccount>,
}

/// The two maps.
#[derive(Debug)]
pub(super) struct Batches {
    accounts: OwnedFd,
    shared: OwnedFd,
    cpus: usize,
}

impl Batches {
    /// Of maps that are still in the object.
    pub(super) fn of(ebpf: &Ebpf, cpus: usize) -> Result<Self, LoadError> {
        let map = |name| match ebpf.map(name) {
            Some(Map::PerCpuArray(map) | Map::Array(map)) => Ok(map),
            _ => Err(LoadError::Missing(name)),
        };
        let descriptor = |name: &'static str| {
            let fd = map(name)?.fd().as_fd().try_clone_to_owned();
            fd.map_err(|source| LoadError::Map {
                name,
                source: Box::new(aya::maps::MapError::IoError(source)),
            })
        };
        Ok(Self {
            accounts: descriptor("ACCOUNTS")?,
            shared: descriptor("SHARED")?,
            cpus,
        })
    }

    /// Reads the accounts `slots`, which are sorted. Those that changed in a way that one reading cannot show are handed to
    /// `alone`, which reads one by itself. An error where the kernel has no such call; `into` has no figures then.
    pub(super) fn gather(
        &self,
        slots: &[u32],
        into: &mut Gathered,
        alone: impl Fn(u32) -> Option<Account>,
    ) -> io::Result<()> {
        into.clear(slots.last().map_or(0, |last| *last as usize + 1));
        let most = AT_ONCE / size_of::<CpuAccount>() / self.cpus.max(1);
        for run in runs(slots, u32::try_from(most).unwrap_or(1).max(1)) {
            let count = run.len();
            let (keys, cpus, shared) = (&mut into.keys, &mut into.cpus, &mut into.shared);
            keys.resize(count, 0);
            cpus.resize(count * self.cpus, CpuAccount::default());
            shared.resize(count, SharedAccount::default());
            // A bucket that overflows between the two readings shows in the second.
            // SAFETY: `cpus` has room for a value of each CPU of each key, whose size is a multiple of 8 bytes.
            unsafe { lookup(&self.accounts, run.start, keys, cpus.as_mut_ptr().cast())? };
            // SAFETY: `shared` has room for a value of each key.
            unsafe { lookup(&self.shared, run.start, keys, shared.as_mut_ptr().cast())? };
            into.add(slots, &run, self.cpus, &alone);
        }
        Ok(())
    }
}

impl Gathered {
    /// The account's figures; `None` where it was not read.
    pub(super) fn get(&self, slot: u32) -> Option<&Account> {
        let place = *self.places.get(slot as usize)?;
        self.figures.get(place as usize)
    }

    /// The account was cleared.
    pub(super) fn forget(&mut self, slot: u32) {
        if let Some(carried) = self.carried.get_mut(slot as usize) {
            *carried = None;
        }
        if let Some(place) = self.places.get_mut(slot as usize) {
            *place = ABSENT;
        }
    }

    fn clear(&mut self, slots: usize) {
        self.figures.clear();
        self.places.clear();
        self.places.resize(slots, ABSENT);
        if self.carried.len() < slots {
            self.carried.resize(slots, None);
        }
    }

    /// Adds the accounts of a run that has been read.
    fn add(
        &mut self,
        slots: &[u32],
        run: &Range<u32>,
        cpus: usize,
        alone: impl Fn(u32) -> Option<Account>,
    ) {
        let wanted = slots.partition_point(|slot| *slot < run.start);
        let wanted = slots[wanted..].iter().take_while(|slot| **slot < run.end);
        for slot in wanted {
            let at = (slot - run.start) as usize;
            let shared = &self.shared[at];
            let carries = shared
                .wait_carry
                .iter()
                .fold(0, |a: u64, b| a.wrapping_add(*b));
            let before = self.carried[*slot as usize].replace(carries);
            let account = if before == Some(carries) {
                let mut sum = Account::default();
                sum.add_shared(shared);
                for one in &self.cpus[at * cpus..(at + 1) * cpus] {
                    sum.add_cpu(one);
                }
                Some(sum)
            } else {
                alone(*slot)
            };
            if let Some(account) = account {
                // No more than there are slots.
                self.places[*slot as usize] = u32::try_from(self.figures.len()).unwrap_or(ABSENT);
                self.figures.push(account);
            }
        }
    }
}

/// Runs of slots that one call each reads, at most `most` long.
fn runs(slots: &[u32], most: u32) -> Vec<Range<u32>> {
    let mut runs: Vec<Range<u32>> = Vec::new();
    for slot in slots.iter().copied().filter(|slot| *slot != NO_SLOT) {
        match runs.last_mut() {
            Some(run) if slot < run.end => {}
            Some(run) if slot - run.end <= GAP && slot - run.start < most => run.end = slot + 1,
            _ => runs.push(slot..slot + 1),
        }
    }
    runs
}

/// Reads the entries of an array from `first` on, one for each of `keys`.
///
/// # Safety
/// `values` must have room for as many values, each as large as the kernel has them.
unsafe fn lookup(map: &OwnedFd, first: u32, keys: &mut [u32], values: *mut u8) -> io::Result<()> {
    // For an array this is the key before the first one (`generic_map_lookup_batch` of kernel/bpf/syscall.c).
    let before = first.wrapping_sub(1);
    let mut last = 0_u32;
    let mut attr = empty();
    attr.batch.in_batch = (&raw const before).addr() as u64;
    attr.batch.out_batch = (&raw mut last).addr() as u64;
    attr.batch.keys = keys.as_mut_ptr().addr() as u64;
    attr.batch.values = values.addr() as u64;
    attr.batch.count = u32::try_from(keys.len()).unwrap_or(u32::MAX);
    attr.batch.map_fd = map.as_raw_fd().cast_unsigned();
    sys::command(bpf_cmd::BPF_MAP_LOOKUP_BATCH, &mut attr)?;
    // SAFETY: the kernel has written how many it read.
    let read = unsafe { attr.batch.count } as usize;
    if read != keys.len() || keys.first() != Some(&first) {
        return Err(io::Error::other("the kernel read other entries"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_read_in_one_call() {
        let of = |slots: &[u32], most| -> Vec<(u32, u32)> {
            let runs = runs(slots, most).into_iter();
            runs.map(|run| (run.start, run.end)).collect()
        };
        assert_eq!(of(&[], 100), []);
        assert_eq!(of(&[NO_SLOT], 100), []);
        assert_eq!(of(&[NO_SLOT, 1, 2, 2, 3], 100), [(1, 4)]);
        assert_eq!(of(&[1, 2 + GAP], 100), [(1, 3 + GAP)]);
        assert_eq!(of(&[1, 3 + GAP], 100), [(1, 2), (3 + GAP, 4 + GAP)]);
        assert_eq!(of(&[1, 2, 3, 4, 5], 2), [(1, 3), (3, 5), (5, 6)]);
        assert_eq!(of(&[7, 8], 1), [(7, 8), (8, 9)]);
    }

    fn read(slots: &[u32], carries: u64, into: &mut Gathered) -> Vec<u32> {
        into.clear(slots.last().map_or(0, |last| *last as usize + 1));
        let asked = std::cell::RefCell::new(Vec::new());
        for run in runs(slots, 100) {
            let count = run.len();
            into.shared = vec![SharedAccount::default(); count];
            into.cpus = vec![CpuAccount::default(); 2 * count];
            for (at, slot) in run.clone().enumerate() {
                into.shared[at].exits = u64::from(slot);
                into.shared[at].wait_carry[3] = carries;
                into.cpus[2 * at].cpu_ns = 10 * u64::from(slot);
                into.cpus[2 * at + 1].cpu_ns = 1;
            }
            into.add(slots, &run, 2, |slot| {
                asked.borrow_mut().push(slot);
                Some(Account::default())
            });
        }
        asked.into_inner()
    }

    #[test]
    fn an_account_whose_bucket_overflowed_is_read_alone() {
        let mut gathered = Gathered::default();
        let slots = [2, 3, 5, 40];
        assert_eq!(read(&slots, 0, &mut gathered), slots, "before the first");
        assert_eq!(read(&slots, 0, &mut gathered), [0_u32; 0]);
        let account = gathered.get(5).unwrap();
        assert_eq!((account.cpu_ns, account.exits), (51, 5));
        assert_eq!(gathered.get(40).unwrap().cpu_ns, 401);
        for absent in [0, 1, 4, 41, 1000] {
            assert_eq!(gathered.get(absent), None, "{absent}");
        }
        assert_eq!(read(&slots, 65_536, &mut gathered), slots);
        assert_eq!(read(&slots, 65_536, &mut gathered), [0_u32; 0]);
        gathered.forget(3);
        assert_eq!(gathered.get(3), None);
        assert_eq!(read(&slots, 65_536, &mut gathered), [3]);
        gathered = Gathered::default();
        assert_eq!(gathered.get(5), None);
        assert_eq!(read(&slots, 65_536, &mut gathered), slots);
    }
}
