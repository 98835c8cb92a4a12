//! Names and formats of cgroup v1 (`Documentation/admin-guide/cgroup-v1` of the kernel).

pub(super) const CPU_SHARES: &str = "cpu.shares";
pub(super) const CPU_QUOTA: &str = "cpu.cfs_quota_us";
pub(super) const CPU_PERIOD: &str = "cpu.cfs_period_us";
pub(super) const MEMORY_LIMIT: &str = "memory.limit_in_bytes";
/// After `hugetlb.<size>` and, for reservations, `.rsvd`.
pub(super) const HUGETLB_LIMIT: &str = ".limit_in_bytes";

/// Written to a limit to lift it.
pub(super) const NO_LIMIT: &str = "-1";

/// A memory limit from here on means none. The kernel shows no limit as `LONG_MAX` rounded down to
/// whole pages (`PAGE_COUNTER_MAX`, `include/linux/page_counter.h`), which depends on the page
/// size; 4 EiB is far below that and far above any machine.
pub(crate) const MEMORY_UNLIMITED: u64 = 1 << 62;
