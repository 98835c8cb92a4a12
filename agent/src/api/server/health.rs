//! `/healthz` and `/readyz` of this process alone, on a socket of its own, also while it waits for another agent's end.
//!
//! During an update two agents share the directory of the API's socket, and that socket is the older one's: a probe has
//! to reach the process that it is about.

use std::{path::Path, sync::Arc};

use arc_swap::ArcSwap;
use axum::{Router, extract::State, http::StatusCode, response::Response, routing::get};
use tokio::sync::watch;

use super::{
    HttpError, Limits,
    api::{self, ErrorResponse},
    connections,
    listen::{SocketFile, open_unix},
};
use crate::{api::published::Published, base::worker::Task};

/// How far this process is.
#[derive(Debug)]
enum Phase {
    Starting,
    /// All is done that can be done while the process of this id holds the node.
    Standby(Option<u32>),
    Working(Arc<Published>),
}

/// The socket; it closes with this.
#[derive(Debug)]
pub struct OwnHealth {
    phase: Arc<ArcSwap<Phase>>,
    _server: Task,
    _file: SocketFile,
    // Closed by its end.
    _close: watch::Sender<bool>,
}

impl OwnHealth {
    /// Opens the socket and begins to answer; call it inside a tokio runtime.
    pub fn open(path: &Path) -> Result<Self, HttpError> {
        let (listener, file) = open_unix(path)?;
        let phase = Arc::new(ArcSwap::from_pointee(Phase::Starting));
        let routes = Router::new()
            .route("/healthz", get(healthz))
            .route("/readyz", get(readyz))
            .with_state(Arc::clone(&phase));
        let (close, closing) = watch::channel(false);
        let answering = connections::serve(listener, None, routes, Limits::default(), closing);
        Ok(Self {
            phase,
            _server: Task::spawn(answering),
            _file: file,
            _close: close,
        })
    }

    /// What says that this process waits, from another thread.
    pub fn standby(&self) -> impl FnOnce(Option<u32>) + Send + use<> {
        let phase = Arc::clone(&self.phase);
        move |holder| phase.store(Arc::new(Phase::Standby(holder)))
    }

    /// This process is the node's agent.
    pub fn working(&self, published: &Arc<Published>) {
        let working = Phase::Working(Arc::clone(published));
        self.phase.store(Arc::new(working));
    }
}

async fn healthz(State(phase): State<Arc<ArcSwap<Phase>>>) -> Result<Response, ErrorResponse> {
    match &**phase.load() {
        Phase::Starting | Phase::Standby(_) => Ok(api::plain("ok\n".to_owned())),
        Phase::Working(published) => api::health_of(published),
    }
}

async fn readyz(State(phase): State<Arc<ArcSwap<Phase>>>) -> Result<Response, ErrorResponse> {
    match &**phase.load() {
        Phase::Starting => Err(ErrorResponse::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "not ready: this agent prepares to take over",
        )),
        Phase::Standby(holder) => {
            let holder = holder.map_or_else(String::new, |pid| format!(", process {pid}"));
            let standby = format!("standby: takes over when the agent at work ends{holder}\n");
            Ok(api::plain(standby))
        }
        Phase::Working(published) => api::readiness_of(published),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::client::{Client, ClientError, Endpoint};

    #[tokio::test]
    async fn it_answers_for_the_phase() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("health.sock");
        let own = OwnHealth::open(&path).unwrap();
        let client = Client::new(Endpoint::Unix(path.clone()));
        let refused = |answer| match answer {
            Err(ClientError::Refused {
                status: 503,
                message,
                ..
            }) => message,
            other => panic!("{other:?}"),
        };
        assert_eq!(client.get_bytes("/healthz").await.unwrap(), "ok\n");
        let message = refused(client.get_bytes("/readyz").await);
        assert!(message.contains("prepares"), "{message}");

        own.standby()(Some(7));
        let answer = client.get_bytes("/readyz").await.unwrap();
        assert!(answer.starts_with(b"standby: ") && answer.ends_with(b"process 7\n"));

        let published = Arc::new(Published::default());
        own.working(&published);
        let message = refused(client.get_bytes("/readyz").await);
        assert!(message.contains("first figures"), "{message}");
        published.set_ready(true);
        assert_eq!(client.get_bytes("/readyz").await.unwrap(), "ok\n");
        published.set_trouble(Some("stuck"));
        assert_eq!(refused(client.get_bytes("/healthz").await), "stuck");

        drop(own);
        assert!(!path.exists());
    }
}
