//! The hard limits that were written here lately: whoever notices such a write finds that it is ours.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, PoisonError},
};

use podwarden_policy::{Bytes, limits::Limit};

/// Values that are remembered of each cgroup. Whoever looks is at most some milliseconds behind.
const KEPT: usize = 16;

/// See the module's text.
#[derive(Debug, Default)]
pub struct Ours(Mutex<HashMap<String, VecDeque<Limit<Bytes>>>>);

impl Ours {
    /// This is what a cgroup's file holds rightly, or will in a moment.
    pub(super) fn note(&self, rel: &str, limit: Limit<Bytes>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = all.entry(rel.to_owned()).or_default();
        if kept.back() == Some(&limit) {
            return;
        }
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(limit);
    }

    /// Another writes to the file as well: of what is remembered only the last is ours for certain.
    pub(super) fn contested(&self, rel: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = all.get_mut(rel) {
            let before = kept.len().saturating_sub(1);
            kept.drain(..before);
        }
    }

    /// Whether a cgroup's file held this by what was written here. Ask after the file was read.
    pub fn has(&self, rel: &str, limit: Limit<Bytes>) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(rel).is_some_and(|kept| kept.contains(&limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_ours_and_of_a_contested_file_only_the_last() {
        let ours = Ours::default();
        let at = |n| Limit::At(Bytes(n));
        assert!(!ours.has("a", at(1)));
        for n in 0..=KEPT as u64 {
            ours.note("a", at(n));
        }
        assert!(!ours.has("a", at(0)) && ours.has("a", at(1)) && !ours.has("b", at(1)));
        ours.contested("a");
        assert!(!ours.has("a", at(1)) && ours.has("a", at(KEPT as u64)));
        ours.contested("b");
        assert!(!ours.has("b", at(1)));
    }
}
