//! `podwarden run`: brings the parts up in an order that leaves nothing half done, runs the loop, and
//! takes them down again.
//!
//! ```text
//!  manifests ──> pods ─┐                       ┌─> act ──────> cgroups
//!                      ├─> sense ──> policy ───┤
//!  cgroups, usage ─────┘       (slow loop)     └─> arm ──────> reactor ──> SIGKILL
//!  kernel programs ──> accounting ──> figures ──> published ──> http      (fast loop)
//! ```

mod arm;
mod history;
mod own_pod;
mod process;
mod reconciler;
mod soft;
mod start;
mod telling;
mod wait;

use std::{future::Future, sync::Arc};

use crate::{api::server, config::Config};

pub use start::StartError;

/// Runs the agent until `shutdown` completes. On return nothing of it is attached or listening, and
/// cgroups that it made and nobody uses are gone.
///
/// # Errors
/// [`StartError`]; nothing is left attached or created then either.
pub async fn run(
    config: Config,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), StartError> {
    process::raise_open_files();
    // The listeners first: a second agent, or a taken address, is found before anything changes.
    let listen = server::Listen {
        tcp: config.listen,
        unix: Some(config.api_socket.clone()),
        allow_remote: false,
    };
    let lock = start::lock(&config)?;
    let listeners = server::Listeners::open(&listen)
        .await
        .map_err(StartError::Http)?;
    // Once the root is ours: nobody else writes to the log.
    let history::Opened {
        published,
        log,
        evictions,
    } = history::open(config.event_log.as_ref());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(server::serve_on(Arc::clone(&published), listeners, async {
        let _ = stopped.await;
    }));

    let condition = telling::condition(&config, &published);
    let mut reconciler = None;
    let working = async {
        let started = start::agent(config, Arc::clone(&published), evictions).await?;
        match reconciler.insert(started).run().await {}
    };
    let ended = tokio::select! {
        () = shutdown => Ok(()),
        failed = working => failed,
    };
    tracing::info!("shutting down");
    published.set_ready(false);
    // It is told while the rest is taken down.
    let told = condition.map(|condition| tokio::spawn(condition.end()));
    if let Some(reconciler) = reconciler {
        reconciler.finish();
    }
    if let Some(told) = told {
        // Its panic has been printed.
        let _ = told.await;
    }
    let _ = stop.send(());
    if let Ok(Err(error)) = serving.await {
        tracing::warn!(%error, "the API ended badly");
    }
    published.set_logger(None);
    drop(log);
    drop(lock);
    ended
}
