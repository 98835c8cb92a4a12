//! The clocks that figures are stamped with.

use nix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC`, nanoseconds.
pub fn monotonic() -> u64 {
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
