//! Answers that hold for a while, so that a client's every request is not a request to the API server.

use std::{
    collections::HashMap,
    hash::Hash,
    time::{Duration, Instant},
};

/// How long an answer holds: what a right that was taken away still opens. The default of
/// `staging/src/k8s.io/apiserver/pkg/server/options/authentication.go` and `authorization.go` for servers that delegate.
pub(super) const HOLDS: Duration = Duration::from_secs(10);

/// Answers at most.
const MOST: usize = 256;

/// At most [`MOST`] answers, each for [`HOLDS`].
#[derive(Debug)]
pub(super) struct Recent<K, V>(HashMap<K, (Instant, V)>);

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash + Clone, V: Clone> Recent<K, V> {
    /// An answer that still holds.
    pub(super) fn get(&self, key: &K, now: Instant) -> Option<V> {
        let (at, answer) = self.0.get(key)?;
        holds(*at, now).then(|| answer.clone())
    }

    /// Keeps an answer; where there is no room, those that hold no longer go, then the oldest.
    pub(super) fn put(&mut self, key: K, answer: V, now: Instant) {
        if self.0.len() >= MOST && !self.0.contains_key(&key) {
            self.0.retain(|_, (at, _)| holds(*at, now));
            if self.0.len() >= MOST {
                let oldest = self.0.iter().min_by_key(|(_, (at, _))| *at);
                let oldest = oldest.map(|(key, _)| key.clone());
                oldest.and_then(|key| self.0.remove(&key));
            }
        }
        self.0.insert(key, (now, answer));
    }
}

fn holds(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < HOLDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_holds_for_its_time() {
        let start = Instant::now();
        let mut recent = Recent::default();
        recent.put("a", 1, start);
        assert_eq!(recent.get(&"a", start + HOLDS / 2), Some(1));
        assert_eq!(recent.get(&"a", start + HOLDS), None);
        assert_eq!(recent.get(&"b", start), None);
        recent.put("a", 2, start + HOLDS);
        assert_eq!(recent.get(&"a", start + HOLDS), Some(2));
    }

    #[test]
    fn there_are_never_more_than_the_bound_and_the_oldest_goes() {
        let start = Instant::now();
        let mut recent = Recent::default();
        for key in 0..3 * MOST {
            recent.put(key, key, start + Duration::from_micros(key as u64));
            assert!(recent.0.len() <= MOST);
        }
        let now = start + Duration::from_millis(1);
        assert_eq!(recent.get(&(2 * MOST - 1), now), None);
        assert_eq!(recent.get(&(2 * MOST), now), Some(2 * MOST));
        // Old ones make room before newer ones do.
        recent.put(0, 0, start + 2 * HOLDS);
        assert_eq!(recent.0.len(), 1);
    }
}
