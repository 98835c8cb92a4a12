//! The clocks that figures are stamped with.

use anyhow::{Context as _, Result};
use rustix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC`, nanoseconds.
pub(crate) fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// An RFC 3339 time as nanoseconds since 1970.
pub(crate) fn wall_nanos(time: &str) -> Result<i128> {
    let time: jiff::Timestamp = time.parse().with_context(|| format!("time {time:?}"))?;
    Ok(time.as_nanosecond())
}
