//! The one function through which every value of a cgroup goes.

use podwarden_cgroup::{CgroupPath, CpuQuota, Error, Tree};
use podwarden_policy::{Bytes, settings::Setting};

/// Writes a value to its file and reads it back.
///
/// # Errors
/// What the kernel refuses; [`Error::NotKept`] when the file holds something else afterwards.
pub fn setting(tree: &Tree, path: &CgroupPath, setting: &Setting) -> Result<(), Error> {
    match *setting {
        Setting::CpuShares(shares) => tree.set_cpu_shares(path, shares.as_u64()),
        Setting::CpuMax(max) => tree.set_cpu_quota(path, CpuQuota::of(max)),
        Setting::MemoryLimit(limit) => {
            tree.set_memory_limit(path, limit.bound().map(Bytes::as_u64))
        }
        Setting::MemoryMin(bytes) => tree.set_memory_min(path, bytes.as_u64()),
        Setting::MemoryLow(bytes) => tree.set_memory_low(path, bytes.as_u64()),
        Setting::PidsLimit(limit) => tree.set_pids_limit(path, limit.bound()),
        Setting::HugetlbLimit { page_size, limit } => {
            tree.set_hugetlb_limit(path, page_size.as_u64(), limit.bound().map(Bytes::as_u64))
        }
    }
}
