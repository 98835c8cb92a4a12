//! The configuration as far as it is seen from outside, or changes while the agent runs.

use std::{sync::Arc, time::Duration};

use super::Published;
use crate::config::{Live, PodSeries};

/// The file that the configuration is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigState {
    /// The hash of the last file that is wholly in force.
    pub hash: String,
    /// The file as it is now can be used.
    pub is_valid: bool,
    /// Its keys that take effect at the next start.
    pub pending: Vec<String>,
}

impl Published {
    /// Sets what can change while the agent runs.
    pub fn set_live(&self, live: Live) {
        self.live.store(Some(Arc::new(live)));
    }

    /// Which series pods have on `/metrics`; all of them in a recording.
    pub(in crate::api) fn pod_series(&self) -> PodSeries {
        let live = self.live.load();
        live.as_ref()
            .map_or(PodSeries::Full, |live| live.pod_series)
    }

    /// The time between two sampling passes while a client reads figures.
    pub fn sampling_interval(&self) -> Duration {
        let live = self.live.load();
        let interval = live.as_ref().map(|live| live.sampling_interval);
        interval.unwrap_or(Duration::from_secs(1))
    }

    pub fn set_config_state(&self, state: ConfigState) {
        self.config_state.store(Some(Arc::new(state)));
    }

    /// How the configuration's file is; `None` without one.
    pub fn config_state(&self) -> Option<Arc<ConfigState>> {
        self.config_state.load_full()
    }
}
