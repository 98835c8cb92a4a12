//! How many accounts there are, and what the maps take of the kernel's memory.
//!
//! An account takes 64 bytes on each possible CPU, which is what grows on large machines. So their number follows the
//! pods that the node may have, and is larger only where that is cheap.

use podwarden_abi::{
    CgroupRecord, CpuAccount, CpuState, DropCounter, ENDED_ENTRIES, Level, Objective, PendingBio,
    SharedAccount, Tracked, WalkPlace, walk_places,
};

use super::accounts::max_tracked;

/// Cgroups of a pod: its own, its sandbox, three containers, and one that is gone and not settled yet.
const PER_POD: u32 = 6;

/// kubepods, the tiers, and cgroups beside the pods.
const BESIDE_PODS: u32 = 64;

/// Enough for 1,000 pods of three containers.
const PLENTY: u32 = 4096;

/// [`PLENTY`] may cost so much, bytes on all CPUs.
const CHEAP: u64 = 16 << 20;

/// Bios that devices may be doing at the same time.
const BIOS: u32 = 4096;

/// A map that forgets what was used longest ago gives each CPU so many free entries ahead (`LOCAL_FREE_TARGET` of
/// kernel/bpf/bpf_lru_list.c).
const AHEAD: u32 = 128;

/// Bios that are remembered, on so many possible CPUs.
pub(super) fn bios(cpus: u32) -> u32 {
    AHEAD.saturating_mul(cpus).saturating_add(BIOS)
}

/// Accounts for a node of so many pods and possible CPUs.
pub fn accounts(max_pods: u32, cpus: u32) -> u32 {
    let needed = max_pods.saturating_mul(PER_POD).saturating_add(BESIDE_PODS);
    let each = size_of::<CpuAccount>() as u64 * u64::from(cpus.max(1));
    let cheap = u32::try_from(CHEAP / each).unwrap_or(u32::MAX);
    needed.max(PLENTY.min(cheap))
}

/// What the maps of the programs take, bytes, with a telemetry ring of `telemetry` bytes.
///
/// The kernel's own sums (`*_map_mem_usage` of kernel/bpf/arraymap.c, hashtab.c, queue_stack_maps.c and ringbuf.c)
/// without what a task's storage takes, 80 bytes a task in scope, and without the records of cgroups that are gone,
/// which take memory as they are made.
pub fn memory(accounts: u32, cpus: u32, telemetry: u32) -> u64 {
    let bios = bios(cpus);
    let (accounts, cpus) = (u64::from(accounts), u64::from(cpus));
    let size = |bytes: usize| (bytes as u64).next_multiple_of(8);
    let per_cpu = |bytes: usize, entries: u64| entries * (size(bytes) * cpus + 8);
    // An entry's head, key and value; one more for each CPU; and a bucket's head and lock.
    let hash = |key: usize, value: usize, entries: u64| {
        (entries + cpus) * (48 + size(key) + size(value))
            + entries.next_power_of_two() * 16
            + 32 * cpus
    };
    let ring = |bytes: u64| bytes + (12 << 10);
    let tracked = u64::from(max_tracked(u32::try_from(accounts).unwrap_or(u32::MAX)));
    let pages = [
        per_cpu(size_of::<CpuAccount>(), accounts),
        accounts * size(size_of::<SharedAccount>()),
        accounts * size(size_of::<Objective>()),
        (accounts * size_of::<CgroupRecord>() as u64).next_multiple_of(4096),
        u64::from(walk_places(u32::try_from(accounts).unwrap_or(u32::MAX)))
            * size(size_of::<WalkPlace>()),
        (accounts + 1) * 4,
        hash(8, size_of::<Tracked>(), tracked),
        per_cpu(size_of::<CpuState>(), 1),
        per_cpu(8, u64::from(DropCounter::COUNT)),
        2 * hash(8, size_of::<Level>(), 64),
        hash(8, 8, 8192),
        hash(4, 8, 1024),
        hash(16, 1, ENDED_ENTRIES as u64),
        hash(8, size_of::<PendingBio>(), u64::from(bios)),
        // Decisions and long waits.
        2 * ring(64 << 10),
        ring(u64::from(telemetry)),
        // Lines for the agent's log.
        ring(256 << 10),
    ];
    pages.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn large_machines_take_at_most_48_mib() {
        for (pods, cpus) in [(250, 384), (250, 256), (110, 384), (500, 128), (1000, 64)] {
            let accounts = accounts(pods, cpus);
            let memory = memory(accounts, cpus, 1 << 20);
            assert!(
                memory <= 48 * MIB,
                "{pods} pods, {cpus} CPUs: {} MiB",
                memory / MIB
            );
            assert!(accounts >= pods * PER_POD);
        }
        // What it is made of: the accounts.
        let large = memory(accounts(250, 384), 384, 1 << 20);
        assert!(large > 36 * MIB, "{large}");
    }

    #[test]
    fn small_machines_have_room_for_a_thousand_pods() {
        for cpus in [1, 2, 8, 64] {
            assert_eq!(accounts(110, cpus), PLENTY);
        }
        assert!(memory(accounts(110, 2), 2, 1 << 20) < 10 * MIB);
        assert!(accounts(110, 128) < PLENTY && accounts(110, 0) == PLENTY);
    }
}
