//! Present degradations, one sentence each: logged when they begin and end,
//! and shown in between.

use std::collections::BTreeSet;

use crate::api::published::Published;

#[derive(Debug, Default)]
pub(super) struct Notices(BTreeSet<String>);

impl Notices {
    /// Replaces what is so by what is so now.
    pub(super) fn update(&mut self, now: BTreeSet<String>, published: &Published) {
        for message in now.difference(&self.0) {
            tracing::warn!("{message}");
            published.degraded(message.clone());
        }
        for message in self.0.difference(&now) {
            tracing::info!("no longer so: {message}");
        }
        self.0 = now;
    }

    /// All of them, in alphabetical order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &String> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_said_once_for_as_long_as_it_lasts() {
        let published = Published::default();
        let mut notices = Notices::default();
        let events = || published.events_after(0).0.len();
        let set = |words: &[&str]| words.iter().map(ToString::to_string).collect();
        for _ in 0..3 {
            notices.update(set(&["a", "b"]), &published);
        }
        assert_eq!(events(), 2);
        notices.update(set(&["b"]), &published);
        assert_eq!(notices.iter().collect::<Vec<_>>(), ["b"]);
        notices.update(set(&["a", "b"]), &published);
        assert_eq!(events(), 3);
    }
}
