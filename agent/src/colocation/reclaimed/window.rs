//! Usage over a time: CPU from a counter, memory as the mean of what was read. Values only.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use podwarden_policy::{Bytes, MilliCpu, colocation::reclaimed::Amounts};

/// So many readings make a window.
const PARTS: u32 = 10;

/// What a reading gave.
#[derive(Debug, Clone, Copy)]
struct Reading {
    at: Instant,
    /// A counter, nanoseconds.
    cpu_ns: u64,
    /// Bytes.
    memory: u64,
}

/// Some readings of one pod or of the node, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Window(VecDeque<Reading>);

impl Window {
    /// Adds a reading; those of more than `span` ago go, except for the one that the span begins with.
    pub(super) fn add(&mut self, at: Instant, cpu_ns: u64, memory: u64, span: Duration) {
        let reading = Reading { at, cpu_ns, memory };
        let readings = &mut self.0;
        // A counter that went back belongs to another cgroup.
        if readings.back().is_some_and(|last| last.cpu_ns > cpu_ns) {
            readings.clear();
        }
        let before_last = readings.len().checked_sub(2).and_then(|i| readings.get(i));
        if before_last.is_some_and(|r| at.saturating_duration_since(r.at) < span / PARTS) {
            readings.pop_back();
        }
        readings.push_back(reading);
        while readings
            .get(1)
            .is_some_and(|second| at.saturating_duration_since(second.at) >= span)
        {
            readings.pop_front();
        }
    }

    /// The mean; `None` before there are two readings.
    pub(super) fn mean(&self) -> Option<Amounts> {
        let (first, last) = (self.0.front()?, self.0.back()?);
        let elapsed = last.at.saturating_duration_since(first.at).as_nanos();
        let used = u128::from(last.cpu_ns.saturating_sub(first.cpu_ns)) * 1000;
        let milli = used.checked_div(elapsed)?;
        let memory: u128 = self.0.iter().map(|r| u128::from(r.memory)).sum();
        let memory = memory / self.0.len() as u128;
        let narrow = |amount: u128| u64::try_from(amount).unwrap_or(u64::MAX);
        Some(Amounts::new(MilliCpu(narrow(milli)), Bytes(narrow(memory))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Duration = Duration::from_secs(300);

    #[test]
    fn the_mean_is_of_the_span_and_needs_two_readings() {
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        let mut window = Window::default();
        window.add(at(0), 0, 100, SPAN);
        assert_eq!(window.mean(), None);
        // Half a CPU for 300 s, then one.
        for s in 1..=300 {
            window.add(at(s), s * 500_000_000, 100, SPAN);
        }
        assert_eq!(window.mean(), Some(Amounts::new(MilliCpu(500), Bytes(100))));
        for s in 301..=620 {
            window.add(at(s), (s - 150) * 1_000_000_000, 200, SPAN);
        }
        let mean = window.mean().unwrap();
        assert_eq!(mean, Amounts::new(MilliCpu(1000), Bytes(200)));
        assert!(window.0.len() <= 12, "{}", window.0.len());
    }

    #[test]
    fn a_counter_that_goes_back_begins_anew() {
        let start = Instant::now();
        let mut window = Window::default();
        window.add(start, 5_000_000_000, 1, SPAN);
        window.add(start + Duration::from_secs(1), 6_000_000_000, 1, SPAN);
        window.add(start + Duration::from_secs(2), 0, 1, SPAN);
        assert_eq!(window.mean(), None);
    }
}
