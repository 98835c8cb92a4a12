//! Figures of one sampling pass, as they are published.

use std::{sync::OnceLock, time::Instant};

use bytes::Bytes;
use podwarden_policy::colocation::reclaimed::Inputs;
use serde::Serialize;

use super::rows;
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
    /// What the node's reclaimed resources are from; `None` where they are not computed.
    pub reclaimed: Option<Inputs>,
    listed: serde_json::Result<Bytes>,
    rows: OnceLock<serde_json::Result<String>>,
    series: OnceLock<String>,
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
            reclaimed: None,
            listed,
            rows: OnceLock::new(),
            series: OnceLock::new(),
        }
    }

    /// The same with what the node's reclaimed resources are from.
    #[must_use]
    pub fn with_reclaimed(self, reclaimed: Option<Inputs>) -> Self {
        Self { reclaimed, ..self }
    }

    /// What `GET /v1/pods` answers: a `PodList` in JSON.
    ///
    /// # Errors
    /// What was wrong when it was written.
    pub fn listed(&self) -> Result<Bytes, &serde_json::Error> {
        self.listed.as_ref().cloned()
    }

    /// The pods' part of `/metrics`, which `write` writes for the first scrape of this pass.
    pub(crate) fn series(&self, write: impl FnOnce(&Self) -> String) -> &str {
        self.series.get_or_init(|| write(self))
    }

    /// What `GET /v1/live` sends of the pods: a `rows::Pass` in JSON, written for the first reader of this pass.
    ///
    /// # Errors
    /// What was wrong when it was written.
    pub fn rows(&self) -> Result<&str, &serde_json::Error> {
        let rows = self.rows.get_or_init(|| rows::write(self));
        rows.as_deref()
    }
}

impl Default for Figures {
    fn default() -> Self {
        Self::new(NodeStats::default(), Vec::new())
    }
}
