//! When figures were last asked for, and which.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

/// Another request is to be expected for so long after one.
const READER_STAYS: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Demand {
    epoch: Instant,
    /// Any of them.
    figures: Moment,
    /// The list of pods as a whole.
    list: Moment,
    notify: Notify,
}

/// Milliseconds since the epoch; 0 before the first.
type Moment = AtomicU64;

impl Demand {
    /// Figures are asked for.
    pub(super) fn figures(&self) {
        self.figures.store(self.now(), Ordering::Relaxed);
        self.notify.notify_one();
    }

    /// The list of pods is asked for; [`Demand::figures`] besides.
    pub(super) fn list(&self) {
        self.list.store(self.now(), Ordering::Relaxed);
    }

    /// Figures were asked for less than [`READER_STAYS`] ago.
    pub(super) fn is_for_figures(&self) -> bool {
        self.is_lately(&self.figures)
    }

    /// The list was.
    pub(super) fn is_for_list(&self) -> bool {
        self.is_lately(&self.list)
    }

    /// Completes when figures are asked for.
    pub(super) async fn notified(&self) {
        self.notify.notified().await;
    }

    fn now(&self) -> u64 {
        let now = u64::try_from(self.epoch.elapsed().as_millis());
        now.unwrap_or(u64::MAX).max(1)
    }

    fn is_lately(&self, moment: &Moment) -> bool {
        match moment.load(Ordering::Relaxed) {
            0 => false,
            ms => self.epoch.elapsed() < Duration::from_millis(ms) + READER_STAYS,
        }
    }
}

impl Default for Demand {
    fn default() -> Self {
        Self {
            epoch: Instant::now(),
            figures: Moment::new(0),
            list: Moment::new(0),
            notify: Notify::new(),
        }
    }
}
