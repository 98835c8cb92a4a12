//! `podwarden run`: start, reconciler, shutdown.
//!
//! | module | purpose |
//! |---|---|
//! | `start` | every step from the configuration to a reconciler |
//! | `reconciler` | pods, hierarchy, eviction and figures, and the facts that pass between them |
//! | `arm` | the reactor's plan: levels, victims, open files |
//! | `reload` | takes over what changes in the configuration's file |
//! | `watchdog` | judges every loop from outside, tells the service manager |
//! | `best_effort` | what best-effort pods may use of the node's memory |
//! | `best_effort_cpu` | which best-effort pods go for the CPU |
//! | `soft` | `evictionSoft`: when the lower level is in force |
//! | `undo` | removes what agents have left, when none runs |

mod arm;
mod best_effort;
mod best_effort_cpu;
mod reconciler;
mod reload;
mod soft;
mod start;
pub(crate) mod undo;
mod watchdog;

use std::{future::Future, path::PathBuf, sync::Arc};

use podwarden_cgroup::AgentLock;

use self::{
    reconciler::Reconciler,
    start::{event_log, standby},
    watchdog::Watchdog,
};
use crate::{
    api::{
        published::{Presenter, Published},
        server::{self, OwnHealth, Serving},
    },
    config::{Config, ConfigFile, ReadConfig},
    eviction::{recorder::log::Log, status::NodePartTask},
};

pub(crate) use start::{StartError, process::keep_heap_small};

/// How this process enters, of which the configuration tells nothing.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    /// Waits for the end of an agent that is at work, and takes over from it; without it that agent is an error.
    pub(crate) wait_for_lock: bool,
    /// A socket for the health of this process alone.
    pub(crate) health_socket: Option<PathBuf>,
}

/// Runs the agent until `shutdown` completes; `file` is where the configuration was read. On return, with an error as
/// well, nothing of it is attached or listening, and cgroups that it made and that are not in use are gone.
pub(crate) async fn run(
    config: Config,
    file: Option<(ConfigFile, ReadConfig)>,
    presenter: Presenter,
    entry: Entry,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), StartError> {
    tokio::pin!(shutdown);
    start::process::raise_open_files();
    start::process::make_room_for_open_files(config.max_pods);
    // Before the first figure is counted.
    server::recorder();
    let health = entry.health_socket.as_deref().map(OwnHealth::open);
    let health = health.transpose().map_err(StartError::Http)?;
    // A second agent and a taken address are found before anything changes.
    let root = match entry.wait_for_lock {
        false => standby::Root::of(start::lock(&config)?),
        true => tokio::select! {
            root = standby::wait(&config, health.as_ref()) => root?,
            () = &mut shutdown => {
                standby::give_up(&config);
                return Ok(());
            }
        },
    };
    let standby::Root {
        lock,
        prepared,
        taken,
        urgent,
    } = root;
    let api = start::api(&config).await?;
    // After the lock: no other agent writes to the log.
    let event_log::Opened {
        published,
        log,
        evictions,
    } = event_log::open(config.event_log.as_ref());
    published.set_presenter(presenter);
    published.set_live(config.live);
    if let Some(health) = &health {
        health.working(&published);
    }
    let _reload = file.map(|(file, read)| reload::start(file, read, &published));
    let mut watchdog = Watchdog::start(Arc::clone(&published)).map_err(StartError::Watchdog)?;
    let around = Surroundings {
        api: api.serve(Arc::clone(&published)),
        node_parts: start::status::node_parts(&config, &published),
        published: Arc::clone(&published),
        log,
        lock,
    };
    let mut reconciler = None;
    let lock = &around.lock;
    let working = async {
        let events = Arc::clone(&published);
        let mut started = start::reconciler(config, published, evictions, prepared).await?;
        watchdog.watch(started.pulse());
        started.settle();
        standby::end_urgency(urgent);
        lock.note_settled(true);
        if let Some(taken) = taken {
            taken.publish(&events);
        }
        tokio::select! {
            never = reconciler.insert(started).run() => match never {},
            () = watchdog.reactor_ended() => Err(StartError::ReactorEnded),
        }
    };
    let ended = tokio::select! {
        () = &mut shutdown => Ok(()),
        failed = working => failed,
    };
    around.shut_down(reconciler).await;
    ended
}

/// What runs before the reconciler and ends after it.
struct Surroundings {
    published: Arc<Published>,
    api: Serving,
    node_parts: Vec<NodePartTask>,
    log: Option<Log>,
    lock: AgentLock,
}

impl Surroundings {
    async fn shut_down(self, reconciler: Option<Reconciler>) {
        let successor = self.lock.has_successor();
        tracing::info!(successor, "shutting down");
        self.published.set_ready(false);
        match successor {
            true => self.hand_over(reconciler).await,
            false => self.end(reconciler).await,
        }
    }

    /// The agent works until all else has ended: the one that waits takes over in the moment after that.
    async fn hand_over(self, reconciler: Option<Reconciler>) {
        // From now on it is the next that has to settle.
        self.lock.note_settled(false);
        // What they have written is the next agent's to change.
        self.node_parts.into_iter().for_each(NodePartTask::leave);
        let api = end_api(self.api);
        let mut reconciler = reconciler;
        if let Some(working) = &mut reconciler {
            tokio::select! {
                () = api => {}
                never = working.run() => match never {},
            }
            let ended = working.finish(true);
            self.lock.note_end(ended);
        } else {
            api.await;
        }
        self.published.set_logger(None);
        drop(self.log);
        drop(self.lock);
        // The next agent does not wait until the kernel has closed its files.
        drop(reconciler);
    }

    async fn end(self, reconciler: Option<Reconciler>) {
        // The API server hears of it while the rest is taken down.
        let node_parts = self.node_parts.into_iter();
        let node_parts: Vec<_> = node_parts.map(|part| tokio::spawn(part.end())).collect();
        if let Some(mut reconciler) = reconciler {
            reconciler.finish(false);
        }
        for part in node_parts {
            // Its panic has been printed.
            let _ = part.await;
        }
        end_api(self.api).await;
        self.published.set_logger(None);
        drop(self.log);
        drop(self.lock);
    }
}

async fn end_api(api: Serving) {
    if let Err(error) = api.end().await {
        tracing::warn!(%error, "the API ended badly");
    }
}
