//! The one function through which every value of a cgroup goes.

use podwarden_cgroup::{CpuQuota, Error, Tree};
use podwarden_policy::{Bytes, settings::Setting};

/// Writes a value to its file and reads it back.
///
/// # Errors
/// What the kernel refuses; [`Error::NotKept`] when the file holds something else afterwards.
pub fn setting(tree: &Tree, rel: &str, setting: &Setting) -> Result<(), Error> {
    match *setting {
        Setting::CpuShares(shares) => tree.set_cpu_shares(rel, shares.as_u64()),
        Setting::CpuMax(max) => tree.set_cpu_quota(rel, CpuQuota::of(max)),
        Setting::MemoryLimit(limit) => tree.set_memory_limit(rel, limit.bound().map(Bytes::as_u64)),
        Setting::MemoryMin(bytes) => tree.set_memory_min(rel, bytes.as_u64()),
        Setting::MemoryLow(bytes) => tree.set_memory_low(rel, bytes.as_u64()),
        Setting::PidsLimit(limit) => tree.set_pids_limit(rel, limit.bound()),
        Setting::HugetlbLimit { page_size, limit } => {
            tree.set_hugetlb_limit(rel, page_size.as_u64(), limit.bound().map(Bytes::as_u64))
        }
    }
}
