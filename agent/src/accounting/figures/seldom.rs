//! Figures that the kernel has in a file of each cgroup alone: they are read less often than the rest, and no file is kept
//! open.

use std::time::{Duration, Instant};

/// Whether the pass under way reads such files, which are read at most every `SECONDS`.
#[derive(Debug, Default)]
pub(super) struct Seldom<const SECONDS: u64> {
    read: Option<Instant>,
    is_due: bool,
}

impl<const SECONDS: u64> Seldom<SECONDS> {
    /// A pass begins.
    pub(super) fn begin(&mut self, now: Instant) {
        let interval = Duration::from_secs(SECONDS);
        self.is_due = self.read.is_none_or(|read| now >= read + interval);
        if self.is_due {
            self.read = Some(now);
        }
    }

    /// The pass under way reads them.
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_when_they_are_due() {
        let mut seldom = Seldom::<2>::default();
        let start = Instant::now();
        for (second, is_due) in [true, false, true, false, true].into_iter().enumerate() {
            seldom.begin(start + Duration::from_secs(second as u64));
            assert_eq!(seldom.is_due(), is_due, "second {second}");
        }
    }
}
