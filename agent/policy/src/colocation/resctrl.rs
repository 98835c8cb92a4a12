//! Masks of the last-level cache and percentages of memory bandwidth, as the kernel's `resctrl` file system takes
//! them (`Documentation/filesystems/resctrl.rst`; koordinator `pkg/koordlet/util/system/resctrl.go` and
//! `pkg/koordlet/qosmanager/plugins/resctrl/resctrl_reconcile.go`).

/// Why a mask or a percentage cannot be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ResctrlError {
    /// The root's mask has to be a run of ones from the lowest bit.
    #[error("the cache mask {0:#x} of the root group is not a run of ones from the lowest bit")]
    Mask(u64),
    /// The range is empty or leaves 0 to 100.
    #[error("a range of {start} % to {end} % of the cache is not within 0 to 100, or is empty")]
    Range {
        /// The first percent.
        start: i32,
        /// The percent behind the last.
        end: i32,
    },
}

/// The ways from `start` % to `end` % of the cache, both rounded up to whole ways; `root` is `cbm_mask` of the
/// root group. A range that rounds to no way gets the one that it begins in, because the kernel refuses an empty
/// mask (`min_cbm_bits`).
pub fn l3_mask(root: u64, start: i32, end: i32) -> Result<u64, ResctrlError> {
    if root == 0 || root & root.wrapping_add(1) != 0 {
        return Err(ResctrlError::Mask(root));
    }
    let range = || Some((u64::try_from(start).ok()?, u64::try_from(end).ok()?));
    let Some((from, to)) = range().filter(|(from, to)| from < to && *to <= 100) else {
        return Err(ResctrlError::Range { start, end });
    };
    let ways = u64::from(root.count_ones());
    let first = (ways * from).div_ceil(100).min(ways - 1);
    let behind = (ways * to).div_ceil(100).max(first + 1);
    let below = |way: u64| if way >= 64 { u64::MAX } else { (1 << way) - 1 };
    Ok(below(behind) & !below(first))
}

/// Whose processors these are, which decides the unit of memory bandwidth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vendor {
    /// Percent, in steps of ten (`bandwidth_gran`).
    Intel,
    /// Eighths of a GB/s for each core complex; [`AMD_UNLIMITED`] is no limit.
    Amd,
}

/// No limit of memory bandwidth on AMD (`bw_max` of `arch/x86/kernel/cpu/resctrl/core.c`).
pub const AMD_UNLIMITED: u32 = 2048;
/// 80 % of 25 GB/s in eighths.
const AMD_CCD_EIGHTHS: u32 = 160;

/// The value of the `MB:` line for each cache; `None` leaves the line as it is: nothing is configured, or a
/// value outside 1 to 100.
pub fn memory_bandwidth(vendor: Vendor, percent: Option<i32>) -> Option<u32> {
    let percent = u32::try_from(percent?).ok()?;
    let percent = Some(percent).filter(|p| (1..=100).contains(p))?;
    Some(match vendor {
        Vendor::Intel => percent.div_ceil(10) * 10,
        Vendor::Amd if percent == 100 => AMD_UNLIMITED,
        Vendor::Amd => AMD_CCD_EIGHTHS * percent / 100,
    })
}
