//! The next request to the API server. Values only: no IO, no clock.
//!
//! As client-go's reflector does it (`tools/cache/reflector.go`): one list, then watches that each go
//! on where the last one ended; another list only after the server has dropped that version.
//!
//! - A list may come from the server's cache, and is never older than what is known already: after a
//!   cut, another server of the same cluster may be behind.
//! - Each failure in a row waits longer, see [`Backoff`].

use std::time::Duration;

use crate::base::backoff::Backoff;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// All pods of this node, of this version or a later one; of the latest where there is none.
    List(Option<String>),
    /// The changes after this version.
    Watch(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Follow {
    /// Of the last thing seen.
    version: Option<String>,
    listed: bool,
    backoff: Backoff,
}

impl Follow {
    /// Nothing is known: any version will do.
    pub(super) fn new() -> Self {
        Self {
            version: Some("0".to_owned()),
            listed: false,
            backoff: Backoff::default(),
        }
    }

    pub(super) fn next(&self) -> Next {
        match &self.version {
            Some(version) if self.listed => Next::Watch(version.clone()),
            version => Next::List(version.clone()),
        }
    }

    /// A whole list came.
    pub(super) fn listed(&mut self, version: String) {
        self.version = Some(version);
        self.listed = true;
    }

    /// The watch sent an object of this version.
    pub(super) fn saw(&mut self, version: String) {
        self.version = Some(version);
        self.backoff = Backoff::default();
    }

    /// The server no longer has the changes after our version, or does not have the version yet: all
    /// pods have to be listed.
    pub(super) fn lost_place(&mut self) {
        match self.listed {
            // The server answers: what the pauses grew for is over.
            true => self.backoff = Backoff::default(),
            // It has no list of this version.
            false => self.version = None,
        }
        self.listed = false;
    }

    /// How long to wait after a failure, or an answer without anything. `spread` is a random number from 0 to 1.
    pub(super) fn failed(&mut self, spread: f64) -> Duration {
        self.backoff.next(spread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn following(version: &str) -> Follow {
        let mut follow = Follow::new();
        follow.listed(version.to_owned());
        follow
    }

    #[test]
    fn one_list_and_then_watches_from_where_the_last_ended() {
        let mut follow = Follow::new();
        assert_eq!(follow.next(), Next::List(Some("0".to_owned())));
        follow.listed("7".to_owned());
        assert_eq!(follow.next(), Next::Watch("7".to_owned()));
        follow.saw("9".to_owned());
        follow.failed(0.0);
        assert_eq!(follow.next(), Next::Watch("9".to_owned()));
    }

    #[test]
    fn a_place_that_is_lost_is_listed_no_older_and_then_as_it_is() {
        let mut follow = following("9");
        follow.lost_place();
        assert_eq!(follow.next(), Next::List(Some("9".to_owned())));
        // A server that was restored from a backup does not have version 9.
        follow.lost_place();
        assert_eq!(follow.next(), Next::List(None));
        follow.listed("3".to_owned());
        assert_eq!(follow.next(), Next::Watch("3".to_owned()));
    }

    #[test]
    fn a_list_after_an_outage_does_not_wait_for_it_and_one_that_is_refused_waits_longer() {
        let mut follow = following("9");
        for _ in 0..8 {
            follow.failed(0.0);
        }
        follow.lost_place();
        assert_eq!(follow.failed(0.0).as_millis(), 800);
        follow.lost_place();
        assert_eq!(follow.failed(0.0).as_millis(), 1600);
    }

    #[test]
    fn pauses_grow_and_are_spread_and_begin_anew_after_something_came() {
        let mut follow = following("1");
        let pauses: Vec<_> = (0..8).map(|_| follow.failed(0.0).as_millis()).collect();
        assert_eq!(pauses, [800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]);
        assert_eq!(follow.failed(1.0).as_millis(), 60000);
        follow.saw("2".to_owned());
        assert_eq!(follow.failed(0.5).as_millis(), 1200);
    }
}
