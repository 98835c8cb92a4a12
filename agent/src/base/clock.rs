//! `CLOCK_MONOTONIC`, which the kernel programs stamp with, and wall-clock text for the API.

use std::time::Duration;

use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC`, nanoseconds.
pub fn monotonic() -> u64 {
    // Every Linux has this clock.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| nanos(time.into()))
}

/// A duration in nanoseconds; the longest ones, of over 500 years, as `u64::MAX`.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// This moment, RFC 3339 in UTC with microseconds.
pub fn now_text() -> String {
    text(Timestamp::now())
}

/// The wall-clock time of a `CLOCK_MONOTONIC` stamp, by both clocks' values now; after a clock step it is
/// what the new wall clock would have said then.
pub fn text_of(monotonic_ns: u64) -> String {
    let ago = monotonic().saturating_sub(monotonic_ns);
    let ago = jiff::SignedDuration::from_nanos(i64::try_from(ago).unwrap_or(i64::MAX));
    text(Timestamp::now().checked_sub(ago).unwrap_or(Timestamp::MIN))
}

fn text(time: Timestamp) -> String {
    format!("{time:.6}")
}

/// Now, by the clock of the runtime's timers: a test may stop it and move it on.
pub fn of_timers() -> std::time::Instant {
    tokio::time::Instant::now().into_std()
}

/// Completes at `due` by that clock, never without one.
pub async fn until(due: Option<std::time::Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_of_now_reads_as_now() {
        let (before, at, after) = (now_text(), text_of(monotonic()), now_text());
        // RFC 3339 in UTC sorts as text; one clock may be read a little before the other.
        assert!(at[..19] >= before[..19] && at[..19] <= after[..19]);
        assert!(at.ends_with('Z') && at.len() == "2026-01-01T00:00:00.000000Z".len());
    }
}
