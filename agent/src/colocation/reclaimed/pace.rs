//! When the offer is published, apart from pauses between writes. Values only: time is an argument.

use std::time::{Duration, Instant};

/// Amounts by resource, CPU and memory of batch, then of mid.
pub(super) type Amounts = [u64; 4];

/// What an agent before this one published stays for so long, at least, where there are no figures.
const INHERITED: Duration = Duration::from_secs(50);

/// How long figures that are read each `interval` are waited for: the first are there after the second reading.
pub(super) fn patience(least: Duration, interval: Duration) -> Duration {
    least.max(3 * interval)
}

#[derive(Debug)]
pub(super) struct When {
    diff_percent: u32,
    update: Duration,
    begun: Instant,
}

impl When {
    /// Of an agent that began at `begun`.
    pub(super) const fn new(diff_percent: u32, update: Duration, begun: Instant) -> Self {
        Self {
            diff_percent,
            update,
            begun,
        }
    }

    /// True where `offer` is to be published now; `None` withdraws it. `written` is what the Node's status has, and
    /// since when; `None` inside for nothing. Figures are read each `interval`.
    pub(super) fn is_due(
        &self,
        written: Option<&(Option<Amounts>, Instant)>,
        offer: Option<Amounts>,
        interval: Duration,
        now: Instant,
    ) -> bool {
        match (written, offer) {
            // What an agent before this one published may be above the truth.
            (None, None) => {
                now.saturating_duration_since(self.begun) >= patience(INHERITED, interval)
            }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    const UPDATE: Duration = Duration::from_secs(300);
    const EACH: Duration = Duration::from_secs(1);
    const OFFER: Amounts = [1000, 1 << 30, 0, 0];

    #[test]
    fn an_offer_is_published_where_it_differs_or_is_old() {
        let start = Instant::now();
        let when = When::new(10, UPDATE, start);
        assert!(when.is_due(None, Some(OFFER), EACH, start));
        let due = |offer, at| when.is_due(Some(&(Some(OFFER), start)), Some(offer), EACH, at);
        let later = start + Duration::from_secs(10);
        assert!(!due([1100, 1 << 30, 0, 0], later));
        assert!(due([1101, 1 << 30, 0, 0], later));
        assert!(due([899, 1 << 30, 0, 0], later));
        assert!(due([1000, 1 << 30, 1, 0], later), "from zero");
        assert!(!due(OFFER, start + UPDATE - Duration::from_secs(1)));
        assert!(due(OFFER, start + UPDATE));
    }

    #[test]
    fn what_another_agent_published_stays_until_there_are_figures_and_for_a_while() {
        let start = Instant::now();
        let when = When::new(10, UPDATE, start);
        let second = Duration::from_secs(1);
        assert!(!when.is_due(None, None, EACH, start + INHERITED - second));
        let late = start + INHERITED;
        assert!(when.is_due(None, None, EACH, late));
        // The second reading comes later than that.
        let minute = Duration::from_secs(60);
        assert!(!when.is_due(None, None, minute, start + 3 * minute - second));
        assert!(when.is_due(None, None, minute, start + 3 * minute));
        let withdrawn = (None, late);
        assert!(!when.is_due(Some(&withdrawn), None, EACH, late + UPDATE));
        assert!(when.is_due(Some(&withdrawn), Some(OFFER), EACH, late));
    }

    #[test]
    fn it_is_withdrawn_once_and_offered_again() {
        let start = Instant::now();
        let when = When::new(10, UPDATE, start);
        assert!(when.is_due(Some(&(Some(OFFER), start)), None, EACH, start));
        let withdrawn = Some(&(None, start));
        assert!(!when.is_due(withdrawn, None, EACH, start + UPDATE * 2));
        assert!(when.is_due(withdrawn, Some(OFFER), EACH, start));
    }
}
