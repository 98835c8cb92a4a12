//! When the offer is published. Values only: time is an argument.

use std::time::{Duration, Instant};

use crate::base::backoff::Backoff;

/// Shortest time between two writes.
const LEAST: Duration = Duration::from_secs(10);

/// Amounts by resource, in the order of [`super::publish::RESOURCES`].
pub(super) type Amounts = [u64; 4];

/// See the module's text.
#[derive(Debug)]
pub(super) struct Pace {
    /// What the Node's status has, and since when; `None` inside for nothing.
    said: Option<(Option<Amounts>, Instant)>,
    not_before: Option<Instant>,
    failures: Backoff,
    diff_percent: u32,
    update: Duration,
}

impl Pace {
    pub(super) fn new(diff_percent: u32, update: Duration) -> Self {
        Self {
            said: None,
            not_before: None,
            failures: Backoff::default(),
            diff_percent,
            update,
        }
    }

    /// True where `offer` is to be published now; `None` withdraws it.
    pub(super) fn is_due(&self, offer: Option<Amounts>, now: Instant) -> bool {
        if self.not_before.is_some_and(|at| now < at) {
            return false;
        }
        match (&self.said, offer) {
            // What an agent before this one published stays until there are figures.
            (None, None) => false,
            (None, Some(_)) | (Some((None, _)), Some(_)) => true,
            (Some((said, _)), None) => said.is_some(),
            (Some((Some(said), at)), Some(offer)) => {
                now.saturating_duration_since(*at) >= self.update || self.differs(said, &offer)
            }
        }
    }

    /// By more than the threshold, of what was said.
    fn differs(&self, said: &Amounts, offer: &Amounts) -> bool {
        said.iter().zip(offer).any(|(said, offer)| {
            let by = u128::from(said.abs_diff(*offer)) * 100;
            by > u128::from(*said) * u128::from(self.diff_percent)
        })
    }

    pub(super) fn said(&mut self, offer: Option<Amounts>, now: Instant) {
        self.said = Some((offer, now));
        self.not_before = Some(now + LEAST);
        self.failures = Backoff::default();
    }

    /// Not before `wait` where the server names a time.
    pub(super) fn failed(&mut self, wait: Option<Duration>, now: Instant, spread: f64) {
        let pause = self.failures.next(spread);
        self.not_before = Some(now + wait.unwrap_or_default().max(pause));
    }

    /// True where the Node's status has an offer of this agent.
    pub(super) fn offers(&self) -> bool {
        matches!(self.said, Some((Some(_), _)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UPDATE: Duration = Duration::from_secs(300);
    const OFFER: Amounts = [1000, 1 << 30, 0, 0];

    #[test]
    fn an_offer_is_published_where_it_differs_or_is_old() {
        let start = Instant::now();
        let later = start + LEAST;
        let mut pace = Pace::new(10, UPDATE);
        assert!(!pace.is_due(None, start), "what another published stays");
        assert!(pace.is_due(Some(OFFER), start));
        pace.said(Some(OFFER), start);
        assert!(pace.offers());
        assert!(!pace.is_due(Some([1100, 1 << 30, 0, 0]), later));
        assert!(pace.is_due(Some([1101, 1 << 30, 0, 0]), later));
        assert!(pace.is_due(Some([899, 1 << 30, 0, 0]), later));
        assert!(pace.is_due(Some([1000, 1 << 30, 1, 0]), later), "from zero");
        assert!(!pace.is_due(Some([0; 4]), start), "too soon");
        assert!(!pace.is_due(Some(OFFER), start + UPDATE - LEAST));
        assert!(pace.is_due(Some(OFFER), start + UPDATE));
    }

    #[test]
    fn it_is_withdrawn_once_and_offered_again() {
        let start = Instant::now();
        let mut pace = Pace::new(10, UPDATE);
        pace.said(Some(OFFER), start);
        assert!(pace.is_due(None, start + LEAST));
        pace.said(None, start + LEAST);
        assert!(!pace.offers());
        assert!(!pace.is_due(None, start + UPDATE * 2));
        assert!(pace.is_due(Some(OFFER), start + LEAST * 2));
    }

    #[test]
    fn what_fails_waits_ever_longer_and_as_long_as_the_server_says() {
        let start = Instant::now();
        let mut pace = Pace::new(10, UPDATE);
        pace.failed(None, start, 0.0);
        assert!(!pace.is_due(Some(OFFER), start));
        pace.failed(Some(Duration::from_secs(60)), start, 0.0);
        assert!(!pace.is_due(Some(OFFER), start + Duration::from_secs(59)));
        assert!(pace.is_due(Some(OFFER), start + Duration::from_secs(120)));
    }
}
