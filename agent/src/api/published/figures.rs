//! Figures of one sampling pass, as they are published.

use std::time::Instant;

use bytes::Bytes;
use serde::Serialize;

use crate::api::types::{NodeStats, PodStats};

/// Figures of one sampling pass.
#[derive(Debug)]
pub struct Figures {
    /// The node and its tiers.
    pub node: NodeStats,
    /// Every pod, in the order `/v1/pods` lists them.
    pub pods: Vec<PodStats>,
    /// When they were read.
    pub read_at: Instant,
    listed: serde_json::Result<Bytes>,
}

impl Figures {
    /// Also writes the list of pods, so that no request waits for that: a thousand pods take
    /// milliseconds.
    pub fn new(node: NodeStats, pods: Vec<PodStats>) -> Self {
        /// `PodList`, borrowed.
        #[derive(Serialize)]
        struct List<'a> {
            pods: &'a [PodStats],
        }
        let listed = serde_json::to_vec(&List { pods: &pods }).map(Bytes::from);
        Self {
            node,
            pods,
            read_at: Instant::now(),
            listed,
        }
    }

    /// What `GET /v1/pods` answers: a `PodList` in JSON.
    ///
    /// # Errors
    /// What was wrong when it was written.
    pub fn listed(&self) -> Result<Bytes, &serde_json::Error> {
        self.listed.as_ref().cloned()
    }
}

impl Default for Figures {
    fn default() -> Self {
        Self::new(NodeStats::default(), Vec::new())
    }
}
