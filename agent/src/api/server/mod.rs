//! The agent's HTTP API: the page at `/`, `/v1`, `/stats/summary`, `/metrics`, `/healthz`, `/readyz`.
//!
//! Reads [`Published`] and nothing else, so a request can slow neither the sampler nor the reactor.
//! Read-only. On loopback and a unix socket of mode 0600 it has no authentication; other machines reach it by TLS, with
//! a token that the API server reviews.
//!
//! | module | purpose |
//! |---|---|
//! | `listen` | opens the listeners; a taken port is tried again |
//! | `connections` | bounds connections in number and time |
//! | `reach` | what a TCP listener answers, and under which names |
//! | `secure` | the listener for other machines: TLS, and who is let in |
//! | `thread` | the server's own thread and runtime |
//! | `health` | health of this process alone, for probes |
//! | `page` | the page at `/`, static files |
//! | `api`, `events`, `live`, `metrics`, `summary` | the handlers |

mod api;
mod connections;
mod error;
mod events;
mod health;
mod listen;
mod live;
mod metrics;
mod page;
mod reach;
mod secure;
mod summary;
mod thread;

use std::{future::Future, sync::Arc, time::Duration};

use axum::{Router, middleware, routing::get};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
};

pub use self::{
    connections::Limits,
    error::HttpError,
    events::Missed,
    health::OwnHealth,
    listen::{Listen, Listeners},
    metrics::recorder,
    reach::Reach,
    secure::SecureListen,
    thread::{Server, Serving},
};
use crate::api::published::Published;

/// Time for requests in flight after the start of a shutdown.
const GRACE: Duration = Duration::from_secs(2);

/// Durations that were recorded since are folded this often, so that they do not pile up between scrapes.
const UPKEEP: Duration = Duration::from_secs(5);

/// What is missing while the address of `listen` is taken.
const LOST: &str = "/metrics, /healthz and /readyz are on the unix socket alone";

/// What every handler gets.
#[derive(Debug, Clone)]
struct Shared {
    published: Arc<Published>,
    /// True once the server is to end: streams of events close.
    closing: watch::Receiver<bool>,
    /// A place for each stream of events.
    followers: Arc<Semaphore>,
}

/// Answers on the open listeners until `shutdown` completes; then removes the socket file.
pub async fn serve_on(
    published: Arc<Published>,
    listeners: Listeners,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), HttpError> {
    let (close, closing) = watch::channel(false);
    let shared = Shared {
        published,
        closing: closing.clone(),
        followers: Arc::new(Semaphore::new(listeners.limits.followers)),
    };
    // Removes the socket file at the end of this function, whichever way it is left.
    let Listeners {
        tcp,
        secure,
        unix,
        file: _file,
        reach,
        limits,
    } = listeners;
    let mut background = JoinSet::new();
    background.spawn(async {
        loop {
            tokio::time::sleep(UPKEEP).await;
            recorder().run_upkeep();
        }
    });

    let mut servers = JoinSet::new();
    let app = routes(shared.clone()).layer(middleware::from_fn(reach::refuse_bodies));
    if let Some(unix) = unix {
        servers.spawn(connections::serve(
            unix,
            None,
            app.clone(),
            limits,
            closing.clone(),
        ));
    }
    if let Some(secure) = secure {
        let published = Arc::clone(&shared.published);
        servers.spawn(secure.serve(app.clone(), reach.api, limits, published, closing.clone()));
    }
    if let Some(tcp) = tcp {
        let published = Arc::clone(&shared.published);
        let closing = closing.clone();
        servers.spawn(async move {
            let opened = tokio::select! {
                () = closed(closing.clone()) => return,
                opened = tcp.open(&published, "listen", LOST) => opened,
            };
            let state = (Arc::new(reach), opened.address.ip());
            let app = app.layer(middleware::from_fn_with_state(state, reach::check_tcp));
            connections::serve(opened.listener, None, app, limits, closing).await;
        });
    }

    tokio::pin!(shutdown);
    tokio::select! {
        () = &mut shutdown => {}
        // Only a panic ends a server before the shutdown.
        Some(ended) = servers.join_next() => ended.map_err(serve_failed)?,
    }
    // An error says that no server listens any more.
    let _ = close.send(true);
    let drained = tokio::time::timeout(GRACE, async {
        while let Some(ended) = servers.join_next().await {
            ended.map_err(serve_failed)?;
        }
        Ok(())
    });
    drained.await.unwrap_or(Ok(()))
}

fn serve_failed(panicked: tokio::task::JoinError) -> HttpError {
    let source = std::io::Error::other(panicked);
    HttpError::Serve { source }
}

/// Completes when the server is to end.
async fn closed(mut closing: watch::Receiver<bool>) {
    if closing.wait_for(|closing| *closing).await.is_err() {
        // The sender is gone: the server does not end by a request.
        std::future::pending::<()>().await;
    }
}

fn routes(shared: Shared) -> Router {
    Router::new()
        .route("/", get(page::index))
        .route("/page/{name}", get(page::asset))
        .route("/v1/node", get(api::node))
        .route("/v1/pods", get(api::pods))
        .route("/v1/pods/{uid}", get(api::pod))
        .route("/v1/pods/{uid}/explain", get(api::explain))
        .route("/v1/plan", get(api::plan))
        .route("/v1/live", get(live::live))
        .route("/v1/events", get(events::events))
        .route("/v1/events/{id}", get(events::event))
        .route("/stats/summary", get(summary::summary))
        .route("/metrics", get(metrics::metrics))
        .route("/healthz", get(api::healthz))
        .route("/readyz", get(api::readyz))
        .fallback(api::no_such_route)
        .method_not_allowed_fallback(api::no_such_method)
        .with_state(shared)
}
