//! When the kernel's records are read, and how many at once.

use std::time::{Duration, Instant};

/// After a wake-up a CPU's programs stay silent for 20 ms (`ebpf/src/telemetry.rs`); coming back
/// later than that finds what they left.
pub(super) const COME_BACK: Duration = Duration::from_millis(25);

/// Records of one reading, some milliseconds of work: the reconciler's other parts have their turn in between.
pub(super) const AT_ONCE: usize = 1024;

/// When to read again without being woken, after a reading at `now` that found `records`. What
/// was due later stays due: a wake-up may find what another reading took already, and its CPU is silent
/// from then on all the same.
pub(super) fn come_back(due: Option<Instant>, records: usize, now: Instant) -> Option<Instant> {
    match records {
        0 => due.filter(|due| *due > now),
        AT_ONCE.. => Some(now),
        _ => Some(now + COME_BACK),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_that_finds_nothing_puts_no_reading_off() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let due = come_back(None, 1, start);
        assert_eq!(due, Some(after(25)));
        assert_eq!(come_back(due, 0, after(1)), due);
        assert_eq!(come_back(due, 7, after(20)), Some(after(45)));
        assert_eq!(come_back(due, 0, after(25)), None);
        assert_eq!(come_back(None, 0, start), None);
    }

    #[test]
    fn what_one_reading_leaves_is_read_at_once() {
        let now = Instant::now();
        let later = Some(now + COME_BACK);
        assert_eq!(come_back(None, AT_ONCE, now), Some(now));
        assert_eq!(come_back(later, AT_ONCE, now), Some(now));
        assert_eq!(come_back(None, AT_ONCE - 1, now), later);
    }
}
