//! Degradations that parts outside the reconciler find, each for as long as it lasts.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use super::Published;

/// By what is degraded.
#[derive(Debug, Default)]
pub(super) struct Standing(Mutex<BTreeMap<&'static str, String>>);

impl Published {
    /// Says what is wrong with `what`, or that nothing is any more. The event comes once, when it begins.
    pub fn set_standing(&self, what: &'static str, problem: Option<String>) {
        let mut standing = self
            .standing
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match problem {
            Some(problem) => {
                if standing.insert(what, problem.clone()).is_none() {
                    tracing::warn!("{problem}");
                    self.degraded(problem);
                }
            }
            None => {
                if let Some(problem) = standing.remove(what) {
                    tracing::info!("no longer so: {problem}");
                }
            }
        }
    }

    /// What [`Published::set_standing`] has said and not taken back.
    pub fn standing(&self) -> Vec<String> {
        let standing = self
            .standing
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        standing.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_an_event_once_and_shown_until_it_ends() {
        let published = Published::default();
        let events = || published.events_after(0).0.len();
        published.set_standing("a", Some("taken".to_owned()));
        published.set_standing("a", Some("still taken".to_owned()));
        published.set_standing("b", None);
        assert_eq!(
            (events(), published.standing()),
            (1, vec!["still taken".to_owned()])
        );
        published.set_standing("a", None);
        assert_eq!(published.standing(), [""; 0]);
        published.set_standing("a", Some("taken".to_owned()));
        assert_eq!(events(), 2);
    }
}
