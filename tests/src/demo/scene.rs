//! The demo's pods: what a node has that shares latency-critical and best-effort work.

use std::time::Duration;

use anyhow::{Result, ensure};
use workload::stamps::Stamps;

use crate::harness::{Node, Options, Pod, PodSpec, Workload, eventually};

/// What the hog fills per second, MiB.
pub(super) const RATE: u64 = 200;
/// The hog starts this long after the others.
pub(super) const QUIET: Duration = Duration::from_secs(4);
/// Processes of the batch job, of which every fourth fails.
const BATCH: u64 = 100;

/// A node of 1 GiB that evicts with 256 MiB left.
pub(super) fn options() -> Options {
    Options {
        mode: "enforce",
        memory: "1Gi".to_owned(),
        eviction_hard: Some("256Mi".to_owned()),
        ..Options::default()
    }
}

/// The pods with what runs in them.
pub(super) struct Scene {
    /// web, cache, batch and hog.
    pub(super) pods: Vec<Pod>,
    /// How many processes ended in each once all have been stopped.
    pub(super) ended: Vec<u64>,
    /// What the hog itself says.
    pub(super) stamps: Stamps,
    running: Vec<Workload>,
}

impl Scene {
    /// Starts them.
    pub(super) fn start(node: &Node) -> Result<Self> {
        let pods = node.pods(vec![
            PodSpec::guaranteed("web", "128Mi").in_namespace("shop"),
            PodSpec::burstable("cache", "192Mi").in_namespace("shop"),
            PodSpec::best_effort("batch").in_namespace("jobs"),
            PodSpec::best_effort("hog").in_namespace("jobs"),
        ])?;
        let path = |name: &str| node.sandbox.dir().join(name).display().to_string();
        let (file, stamp_file) = (path("cache"), path("stamps"));
        let stamps = Stamps::create(stamp_file.as_ref())?;
        let (rate, after) = (RATE.to_string(), QUIET.as_millis().to_string());
        let batch = BATCH.to_string();
        let plan: &[(usize, &[&str])] = &[
            (0, &["burn", "--threads", "2", "--duty", "35"]),
            (0, &["pingpong", "--rounds", "100000000"]),
            (
                1,
                &["cache", "--mib", "160", "--pause-ms", "50", "--file", &file],
            ),
            (
                2,
                &[
                    "storm",
                    "--count",
                    &batch,
                    "--busy-us",
                    "2000",
                    "--codes",
                    "0,0,0,1",
                    "--hold-ms",
                    "600000",
                ],
            ),
            (2, &["anon", "--mib", "64"]),
            (
                3,
                &[
                    "fill",
                    "--mib",
                    "2048",
                    "--rate",
                    &rate,
                    "--after-ms",
                    &after,
                    "--stamps",
                    &stamp_file,
                ],
            ),
        ];
        let running = plan
            .iter()
            .map(|(pod, args)| pods[*pod].start(args))
            .collect::<Result<Vec<_>>>()?;
        // web: burn, and both sides of pingpong; batch: its processes, their parent, and anon.
        Ok(Self {
            pods,
            ended: vec![3, 1, BATCH + 2, 1],
            stamps,
            running,
        })
    }

    /// The pod that should be evicted.
    pub(super) fn hog(&self) -> &Pod {
        &self.pods[3]
    }

    /// Waits for the end of the batch job's processes; on a busy machine a BestEffort pod gets little.
    pub(super) fn wait_for_batch(&self, node: &Node, limit: Duration) -> Result<()> {
        let pod = &self.pods[2];
        eventually(limit, || {
            let ended = node.agent.pod(pod.uid())?.exits.total;
            ensure!(
                ended >= BATCH,
                "{} has ended {ended} of {BATCH} processes",
                pod.spec.name
            );
            Ok(())
        })
    }

    /// Ends what still runs.
    pub(super) fn stop(&mut self) {
        self.running.iter_mut().for_each(Workload::kill);
    }
}
