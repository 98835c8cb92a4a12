//! What the API says in words. The command line has these words; it is above the API in the order of imports and
//! hands them down.

use std::sync::atomic::Ordering;

use tokio::sync::watch;

use super::Published;
use crate::{api::types::Event, hierarchy::recorded::Recorded};

/// Words for what the API serves, so that the page and the terminal say the same.
#[derive(Debug, Clone, Copy)]
pub struct Presenter {
    /// An event without its time and its pod.
    pub sentence: fn(&Event) -> String,
    /// Why the cgroup of the pod of this uid holds what it holds, in JSON; the error is one sentence.
    pub explain: fn(&Recorded, &str) -> Result<Vec<u8>, String>,
}

impl Published {
    /// What is published is a recording: the node's figures are shown as they are.
    pub fn set_recorded(&self) {
        self.recorded.store(true, Ordering::Relaxed);
    }

    /// See [`Published::set_recorded`].
    pub fn is_recorded(&self) -> bool {
        self.recorded.load(Ordering::Relaxed)
    }

    /// Changes with each sampling pass.
    pub fn passes(&self) -> watch::Receiver<()> {
        self.passes.subscribe()
    }

    /// How the API puts things in words; only the first call counts.
    pub fn set_presenter(&self, presenter: Presenter) {
        let _ = self.presenter.set(presenter);
    }

    /// See [`Published::set_presenter`].
    pub fn presenter(&self) -> Option<&Presenter> {
        self.presenter.get()
    }
}
