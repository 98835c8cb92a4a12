//! Answers that hold for a while, so that a client's every request is not a request to the API server.

use std::{
    collections::HashMap,
    hash::Hash,
    time::{Duration, Instant},
};

/// Answers at most.
const MOST: usize = 256;

/// At most [`MOST`] answers, each with the time at which it ends.
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
        let (end, answer) = self.0.get(key)?;
        (now < *end).then(|| answer.clone())
    }

    /// Keeps an answer for this time; where there is no room, those that hold no longer go, then the one that ends
    /// first.
    pub(super) fn put(&mut self, key: K, answer: V, holds: Duration, now: Instant) {
        if self.0.len() >= MOST && !self.0.contains_key(&key) {
            self.0.retain(|_, (end, _)| now < *end);
            if self.0.len() >= MOST {
                let first = self.0.iter().min_by_key(|(_, (end, _))| *end);
                let first = first.map(|(key, _)| key.clone());
                first.and_then(|key| self.0.remove(&key));
            }
        }
        self.0.insert(key, (now + holds, answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDS: Duration = Duration::from_secs(10);

    #[test]
    fn an_answer_holds_for_its_time() {
        let start = Instant::now();
        let mut recent = Recent::default();
        recent.put("a", 1, HOLDS, start);
        recent.put("b", 2, 3 * HOLDS, start);
        assert_eq!(recent.get(&"a", start + HOLDS / 2), Some(1));
        assert_eq!(recent.get(&"a", start + HOLDS), None);
        assert_eq!(recent.get(&"b", start + 2 * HOLDS), Some(2));
        assert_eq!(recent.get(&"b", start + 3 * HOLDS), None);
        assert_eq!(recent.get(&"c", start), None);
        recent.put("a", 3, HOLDS, start + HOLDS);
        assert_eq!(recent.get(&"a", start + HOLDS), Some(3));
    }

    #[test]
    fn there_are_never_more_than_the_bound_and_what_ends_first_goes() {
        let start = Instant::now();
        let mut recent = Recent::default();
        // Refused tokens, which anyone can send, make no known one go.
        recent.put(usize::MAX, 0, 12 * HOLDS, start);
        for key in 0..3 * MOST {
            recent.put(key, key, HOLDS, start + Duration::from_micros(key as u64));
            assert!(recent.0.len() <= MOST);
        }
        let now = start + Duration::from_millis(1);
        assert_eq!(recent.get(&usize::MAX, now), Some(0));
        assert_eq!(recent.get(&(2 * MOST), now), None);
        assert_eq!(recent.get(&(2 * MOST + 1), now), Some(2 * MOST + 1));
        // Old ones make room before newer ones do.
        recent.put(0, 0, HOLDS, start + 2 * HOLDS);
        assert_eq!(recent.0.len(), 2);
    }
}
