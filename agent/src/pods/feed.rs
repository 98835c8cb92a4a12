//! Runs the sources, and applies their updates to the mux.
//!
//! ```text
//!  source task ─updates─> feed task (mux) ──> watch<PodSet> ──> the reconciler
//!                                        └──> watch<SourceStats> ──> /readyz, /v1/node
//! ```

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::sync::{mpsc, watch};

use super::{
    Apiserver, DirError, ManifestDir, Manifests, PodSet, Since, Source, SourceError, SourcedPod,
    Watcher, apiserver,
    checkpoint::Checkpoint,
    http::poll,
    mux::{Mux, Op, PodEvent},
    url::Url,
};
use crate::{
    api::types::SourceStats,
    base::{clock, error::chain},
    config::Config,
};

/// Changes within this time of one another are written to the checkpoint once.
const SETTLE: Duration = Duration::from_secs(1);

/// Updates that may wait for the mux; with more of them a source waits.
const QUEUED: usize = 64;

/// What a source sends.
#[derive(Debug)]
pub(super) enum SourceUpdate {
    /// About its pods.
    Pods(PodEvent),
    /// It cannot do its work, for this reason.
    Trouble(String),
    /// It works again.
    Well,
}

/// The end of the channel that one source holds.
#[derive(Debug, Clone)]
pub(super) struct SourceHandle {
    source: Source,
    updates: mpsc::Sender<(Source, SourceUpdate)>,
}

impl SourceHandle {
    /// False once the receiver is gone.
    pub(super) async fn send(&self, update: SourceUpdate) -> bool {
        self.updates.send((self.source, update)).await.is_ok()
    }

    /// Runs `source` until it ends, or the receiver is gone.
    pub(super) async fn while_open<T>(&self, source: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            () = self.updates.closed() => None,
            ended = source => Some(ended),
        }
    }
}

/// What the sources give the agent.
#[derive(Debug, Clone)]
pub struct Feed {
    pub pods: watch::Receiver<Arc<PodSet>>,
    /// The state of each source, in the order of their precedence.
    pub sources: watch::Receiver<Arc<Vec<SourceStats>>>,
}

/// Starts the sources that are configured, and waits for none. Pods of the checkpoint count while they
/// `exists`. Needs a tokio runtime.
pub fn start(config: &Config, exists: impl Fn(&SourcedPod) -> bool) -> Result<Feed, DirError> {
    let apiserver = Apiserver::of(&config.apiserver);
    let mut sources = Vec::new();
    sources.extend(apiserver.as_ref().map(|_| Source::Apiserver));
    sources.extend(config.kubelet.as_ref().map(|_| Source::Kubelet));
    sources.extend(config.pods_dir.as_ref().map(|_| Source::File));
    sources.extend(config.static_pod_url.as_ref().map(|_| Source::Http));
    let mut task = SourceTask::new(&config.node_name, &sources);
    if let Some(dir) = &config.pods_dir {
        let (watcher, manifests) = ManifestDir::new(dir).watch()?;
        task.begin_with(Source::File, whole(&manifests.borrow()));
        tokio::spawn(follow_dir(watcher, manifests, task.handle(Source::File)));
    }
    if let Some(apiserver) = apiserver {
        if let Some(dir) = &config.state_dir {
            let checkpoint = Checkpoint::new(dir, &config.node_name);
            task.recall(&checkpoint, exists);
            tokio::spawn(checkpoint.keep(task.pods.subscribe(), SETTLE));
        }
        let handle = task.handle(Source::Apiserver);
        let watcher = apiserver::Watcher::new(apiserver, &config.node_name, handle);
        tokio::spawn(watcher.run());
    }
    if let Some(kubelet) = &config.kubelet {
        tokio::spawn(poll(kubelet.clone(), task.handle(Source::Kubelet)));
    }
    if let Some(url) = &config.static_pod_url {
        tokio::spawn(poll(Url::new(url.clone()), task.handle(Source::Http)));
    }
    let feed = task.feed();
    tokio::spawn(task.run());
    Ok(feed)
}

/// Sends what a directory holds whenever that changes.
async fn follow_dir(
    mut watcher: Watcher,
    mut manifests: watch::Receiver<Arc<Manifests>>,
    handle: SourceHandle,
) {
    let sending = async {
        while manifests.changed().await.is_ok() {
            let event = whole(&manifests.borrow_and_update());
            handle.send(SourceUpdate::Pods(event)).await;
        }
        std::future::pending::<()>().await;
    };
    let watching = async {
        while let Err(error) = watcher.follow().await {
            let problem = format!("{}; the last manifests stay in force", chain(&error));
            handle.send(SourceUpdate::Trouble(problem)).await;
            watcher.again().await;
            handle.send(SourceUpdate::Well).await;
        }
    };
    let either = async {
        tokio::select! {
            () = sending => {}
            () = watching => {}
        }
    };
    handle.while_open(either).await;
}

/// Everything that a place of manifests has now.
pub(super) fn whole(manifests: &Manifests) -> PodEvent {
    PodEvent::Replace {
        pods: manifests.pods.clone(),
        errors: manifests
            .errors
            .iter()
            .cloned()
            .map(SourceError::Manifest)
            .collect(),
    }
}

/// Applies the updates of all sources to the mux, and publishes the set.
#[derive(Debug)]
pub(super) struct SourceTask {
    mux: Mux,
    stats: BTreeMap<Source, SourceStats>,
    pods: watch::Sender<Arc<PodSet>>,
    sources: watch::Sender<Arc<Vec<SourceStats>>>,
    /// Taken by [`SourceTask::run`].
    updates: mpsc::Receiver<(Source, SourceUpdate)>,
    /// For further sources.
    sender: mpsc::Sender<(Source, SourceUpdate)>,
}

impl SourceTask {
    pub(super) fn new(node_name: &str, sources: &[Source]) -> Self {
        let stats = sources.iter().map(|&source| {
            let name = source.as_str().to_owned();
            (
                source,
                SourceStats {
                    name,
                    ..SourceStats::default()
                },
            )
        });
        let (sender, updates) = mpsc::channel(QUEUED);
        let task = Self {
            mux: Mux::new(node_name, sources.iter().copied()),
            stats: stats.collect(),
            pods: watch::Sender::default(),
            sources: watch::Sender::default(),
            updates,
            sender,
        };
        task.publish();
        task
    }

    pub(super) fn handle(&self, source: Source) -> SourceHandle {
        SourceHandle {
            source,
            updates: self.sender.clone(),
        }
    }

    /// Applies what a source has at the start.
    pub(super) fn begin_with(&mut self, source: Source, event: PodEvent) {
        self.take(source, SourceUpdate::Pods(event));
        self.publish();
    }

    /// Applies what the agent before this one kept of the API server's pods.
    fn recall(&mut self, checkpoint: &Checkpoint, exists: impl Fn(&SourcedPod) -> bool) {
        let mut pods = checkpoint.read().unwrap_or_else(|error| {
            tracing::warn!("{}", chain(&error));
            Vec::new()
        });
        let kept = pods.len();
        pods.retain(exists);
        if kept > 0 {
            let there = pods.len();
            tracing::info!(kept, there, "read the checkpoint of the API server's pods");
        }
        self.mux.recall(Source::Apiserver, pods);
        self.publish();
    }

    pub(super) fn feed(&self) -> Feed {
        Feed {
            pods: self.pods.subscribe(),
            sources: self.sources.subscribe(),
        }
    }

    /// Runs until every source has ended, or all receivers are gone.
    pub(super) async fn run(mut self) {
        // The channel then ends with the last source.
        self.sender = mpsc::channel(1).0;
        loop {
            let update = tokio::select! {
                update = self.updates.recv() => update,
                () = self.pods.closed() => return,
            };
            let Some((source, update)) = update else {
                return;
            };
            self.take(source, update);
            // Updates that wait already become one change of the set.
            while let Ok((source, update)) = self.updates.try_recv() {
                self.take(source, update);
            }
            self.publish();
        }
    }

    fn take(&mut self, source: Source, update: SourceUpdate) {
        let Some(stats) = self.stats.get_mut(&source) else {
            return;
        };
        match update {
            SourceUpdate::Pods(event) => {
                let updates = self.mux.apply(source, event);
                for update in &updates {
                    log(source, update.op, &update.pod.pod);
                }
                stats.updates += updates.len() as u64;
                stats.pods = self.mux.count(source) as u64;
                stats.reported = !self.mux.waiting().any(|waiting| waiting == source);
            }
            SourceUpdate::Trouble(problem) => {
                // The same problem is logged once.
                if stats.problem.as_ref() != Some(&problem) {
                    tracing::warn!(%source, "{problem}");
                    stats.problem = Some(problem);
                }
            }
            SourceUpdate::Well => {
                if stats.problem.take().is_some() {
                    tracing::info!(%source, "it works again");
                }
            }
        }
    }

    fn publish(&self) {
        let mut set = self.mux.set();
        set.since = Since(clock::monotonic());
        self.pods.send_if_modified(|last| {
            let news = **last != set;
            if news {
                *last = Arc::new(set);
            }
            news
        });
        let stats: Vec<_> = self.stats.values().cloned().collect();
        self.sources.send_if_modified(|last| {
            let news = **last != stats;
            if news {
                *last = Arc::new(stats);
            }
            news
        });
    }
}

fn log(source: Source, op: Op, pod: &podwarden_policy::Pod) {
    let (namespace, name, uid) = (&pod.namespace, &pod.name, &pod.uid);
    tracing::debug!(%source, ?op, %uid, "pod {namespace}/{name}");
}
