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
//! | `soft` | `evictionSoft`: when the lower level is in force |
//! | `undo` | removes what agents have left, when none runs |

mod arm;
mod best_effort;
mod reconciler;
mod reload;
mod soft;
mod start;
pub(crate) mod undo;
mod watchdog;

use std::{future::Future, sync::Arc};

use podwarden_cgroup::AgentLock;

use self::{reconciler::Reconciler, start::event_log, watchdog::Watchdog};
use crate::{
    api::{
        published::{Presenter, Published},
        server::{self, Serving},
    },
    config::{Config, ConfigFile, ReadConfig},
    eviction::{recorder::log::Log, status::NodePartTask},
};

pub(crate) use start::StartError;

/// Runs the agent until `shutdown` completes; `file` is where the configuration was read. On return nothing of it is attached or listening, and
/// cgroups that it made and that are not in use are gone.
///
/// # Errors
/// [`StartError`]; nothing is left attached or created then either.
pub(crate) async fn run(
    config: Config,
    file: Option<(ConfigFile, ReadConfig)>,
    presenter: Presenter,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), StartError> {
    start::process::raise_open_files();
    // Before the first figure is counted.
    server::recorder();
    // A second agent and a taken address are found before anything changes.
    let lock = start::lock(&config)?;
    let api = start::api(&config).await?;
    // After the lock: no other agent writes to the log.
    let event_log::Opened {
        published,
        log,
        evictions,
    } = event_log::open(config.event_log.as_ref());
    published.set_presenter(presenter);
    published.set_live(config.live());
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
    let working = async {
        let started = start::reconciler(config, published, evictions).await?;
        watchdog.watch(started.pulse());
        tokio::select! {
            never = reconciler.insert(started).run() => match never {},
            () = watchdog.reactor_ended() => Err(StartError::ReactorEnded),
        }
    };
    let ended = tokio::select! {
        () = shutdown => Ok(()),
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
        tracing::info!("shutting down");
        self.published.set_ready(false);
        // The API server hears of it while the rest is taken down.
        let node_parts = self.node_parts.into_iter();
        let node_parts: Vec<_> = node_parts.map(|part| tokio::spawn(part.end())).collect();
        if let Some(reconciler) = reconciler {
            reconciler.finish();
        }
        for part in node_parts {
            // Its panic has been printed.
            let _ = part.await;
        }
        if let Err(error) = self.api.end().await {
            tracing::warn!(%error, "the API ended badly");
        }
        self.published.set_logger(None);
        drop(self.log);
        drop(self.lock);
    }
}
