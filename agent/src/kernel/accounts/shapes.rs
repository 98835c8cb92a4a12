//! How large the maps are, and which may outlive the agent.

use aya::maps::MapType;
use podwarden_abi::{CpuAccount, ENDED_ENTRIES, SharedAccount, Tracked};

use super::{fold::Record, maps::NO_PREALLOC};
use crate::kernel::pins::Shape;

/// Entries for one account: room for pods that find none, and for cgroups inside containers where
/// [`podwarden_abi::Control::deepest_level`] is not known.
const TRACKED_PER_ACCOUNT: u32 = 4;

/// Entries of the table of cgroups in scope.
pub(in crate::kernel) fn max_tracked(max_accounts: u32) -> u32 {
    max_accounts.saturating_mul(TRACKED_PER_ACCOUNT)
}

/// Entries of the map of records: one for each cgroup in scope, and the constant ones.
pub(super) fn max_records(max_accounts: u32) -> u32 {
    max_tracked(max_accounts).saturating_add(8)
}

/// The shapes of the maps that may outlive the agent.
pub(in crate::kernel) fn shapes(max_accounts: u32) -> [(&'static str, Shape); 5] {
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
    let retired = shape(MapType::Hash, 8, size_of::<Record>(), records, NO_PREALLOC);
    [
        ("accounts", accounts),
        ("shared", shared),
        ("tracked", tracked),
        ("ended", ended),
        ("retired", retired),
    ]
}
