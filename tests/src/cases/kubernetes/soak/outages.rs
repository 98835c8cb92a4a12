//! The API server and the kubelet are killed at random moments and come back.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::kubernetes::Cluster;

/// One of so many steps kills each of them.
const SELDOM: u32 = 200;
/// They are away for less than this.
const LONGEST: u64 = 20_000;

/// Which of them is away, and until when.
#[derive(Debug, Default)]
pub(super) struct Outages {
    server: Option<Instant>,
    kubelet: Option<Instant>,
    server_killed: usize,
    kubelet_killed: usize,
}

impl Outages {
    pub(super) fn step(&mut self, cluster: &Cluster, random: &mut fastrand::Rng) -> Result<()> {
        let now = Instant::now();
        if self.server.is_some_and(|until| until <= now) {
            self.server = None;
            cluster.start_apiserver()?;
        }
        if self.kubelet.is_some_and(|until| until <= now) {
            self.kubelet = None;
            cluster.start_kubelet()?;
        }
        if self.server.is_none() && random.u32(0..SELDOM) == 0 {
            cluster.kill_apiserver();
            self.server = Some(now + Duration::from_millis(random.u64(0..LONGEST)));
            self.server_killed += 1;
        }
        if self.kubelet.is_none() && random.u32(0..SELDOM) == 0 {
            cluster.kill_kubelet();
            self.kubelet = Some(now + Duration::from_millis(random.u64(0..LONGEST)));
            self.kubelet_killed += 1;
        }
        Ok(())
    }

    /// Both come back.
    pub(super) fn end(&mut self, cluster: &Cluster) -> Result<()> {
        let kubelet = match self.kubelet.take() {
            Some(_) => cluster.start_kubelet(),
            None => Ok(()),
        };
        if self.server.take().is_some() {
            cluster.start_apiserver()?;
        }
        kubelet
    }

    pub(super) fn has_server(&self) -> bool {
        self.server.is_none()
    }

    pub(super) fn server_killed(&self) -> usize {
        self.server_killed
    }

    pub(super) fn kubelet_killed(&self) -> usize {
        self.kubelet_killed
    }
}
