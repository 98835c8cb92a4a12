//! The clocks that figures are stamped with, and the kernel that they are from.

use anyhow::{Context as _, Result};
use nix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC`, nanoseconds.
pub(crate) fn monotonic() -> u64 {
    nanos(ClockId::CLOCK_MONOTONIC)
}

/// A clock of this kernel, nanoseconds.
///
/// # Panics
/// Never: the kernel has the clock, and the pointer is valid.
pub(crate) fn nanos(clock: ClockId) -> u64 {
    let now = clock_gettime(clock).expect("the kernel has this clock");
    now.tv_sec().unsigned_abs() * 1_000_000_000 + now.tv_nsec().unsigned_abs()
}

/// What `uname -r` prints.
pub(crate) fn kernel_release() -> String {
    let names = nix::sys::utsname::uname();
    names.map_or_else(
        |_| "unknown".to_owned(),
        |names| names.release().to_string_lossy().into_owned(),
    )
}

/// An RFC 3339 time as nanoseconds since 1970.
pub(crate) fn wall_nanos(time: &str) -> Result<i128> {
    let time: jiff::Timestamp = time.parse().with_context(|| format!("time {time:?}"))?;
    Ok(time.as_nanosecond())
}
