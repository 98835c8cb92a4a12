//! Figures of one sampling pass, as they are published.

use std::{
    io,
    sync::{Arc, OnceLock},
    time::Instant,
};

use bytes::Bytes;
use podwarden_policy::colocation::{reclaimed::Inputs, strategies::Strategies};
use serde::Serialize;

use super::{compressed::Compressed, rows};
use crate::api::types::{NodeStats, PodStats};

/// What a pod or container takes in a list, bytes: 800, with waits and latencies 1,100. With room for all of it a list of
/// megabytes is not copied each time that it has doubled.
const LISTED: usize = 1280;

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
    pub reclaimed: Option<Arc<Inputs>>,
    /// What the CPU strategies go by; `None` where all are off.
    pub cpu_strategies: Option<Arc<Strategies>>,
    listed: OnceLock<serde_json::Result<Bytes>>,
    rows: OnceLock<serde_json::Result<String>>,
    series: OnceLock<io::Result<Compressed>>,
}

impl Figures {
    /// Figures that were read now.
    pub fn new(node: NodeStats, pods: Vec<PodStats>) -> Self {
        Self {
            node,
            pods,
            read_at: Instant::now(),
            reclaimed: None,
            cpu_strategies: None,
            listed: OnceLock::new(),
            rows: OnceLock::new(),
            series: OnceLock::new(),
        }
    }

    /// The same with what the node's reclaimed resources are from.
    #[must_use]
    pub fn with_reclaimed(self, reclaimed: Option<Arc<Inputs>>) -> Self {
        Self { reclaimed, ..self }
    }

    /// The same with what the CPU strategies go by.
    #[must_use]
    pub fn with_cpu_strategies(self, strategies: Option<Strategies>) -> Self {
        Self {
            cpu_strategies: strategies.map(Arc::new),
            ..self
        }
    }

    /// What `GET /v1/pods` answers: a `PodList` in JSON, written at the first call. A thousand pods take milliseconds:
    /// the sampler calls it where there is a reader, so that no request waits for that.
    pub fn listed(&self) -> Result<Bytes, &serde_json::Error> {
        /// `PodList`, borrowed.
        #[derive(Serialize)]
        struct List<'a> {
            pods: &'a [PodStats],
        }
        let listed = self.listed.get_or_init(|| {
            let list = List { pods: &self.pods };
            let places: usize = self.pods.iter().map(|pod| 1 + pod.containers.len()).sum();
            let mut text = Vec::with_capacity(places * LISTED);
            serde_json::to_writer(&mut text, &list)?;
            Ok(Bytes::from(text))
        });
        listed.as_ref().cloned()
    }

    /// The pods' part of `/metrics`, which `write` writes for the first scrape of this pass that takes it compressed.
    pub(crate) fn series(
        &self,
        write: impl FnOnce(&Self) -> io::Result<Compressed>,
    ) -> Result<&Compressed, &io::Error> {
        self.series.get_or_init(|| write(self)).as_ref()
    }

    /// What `GET /v1/live` sends of the pods: a `rows::Pass` in JSON, written for the first reader of this pass.
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
