//! A small client of the agent's API: `top`, `events` and the tests read through it.
//!
//! One connection per request: on a unix socket that costs microseconds, and no idle connection
//! is left to look after.

use std::{
    fmt, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use futures_util::StreamExt;
use http_body_util::{BodyExt, Empty};
use hyper::{Request, Response, StatusCode, body::Incoming, header};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use sse_stream::SseStream;
use tokio::net::{TcpStream, UnixStream};

use crate::{
    api::{
        server::Missed,
        types::{ErrorBody, Event},
    },
    config::DEFAULT_API_SOCKET,
};

/// How long one answer may take, a stream apart.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where the agent listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl Default for Endpoint {
    fn default() -> Self {
        Self::Unix(PathBuf::from(DEFAULT_API_SOCKET))
    }
}

impl From<&Path> for Endpoint {
    fn from(path: &Path) -> Self {
        Self::Unix(path.to_owned())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp(addr) => addr.fmt(f),
        }
    }
}

/// A request that got no usable answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Connection refused.
    #[error(
        "connect to {endpoint}: is `podwarden run` running? It prints where it listens; point to \
         it with --api-socket PATH or --server ADDR"
    )]
    Connect {
        endpoint: Endpoint,
        #[source]
        source: io::Error,
    },
    /// The socket belongs to root.
    #[error(
        "connect to {endpoint}: only its owner may; run this as the user that runs the agent (root)"
    )]
    Denied {
        endpoint: Endpoint,
        #[source]
        source: io::Error,
    },
    /// The connection broke, or the listener does not speak HTTP.
    #[error("GET {path} from {endpoint}")]
    Http {
        endpoint: Endpoint,
        path: String,
        #[source]
        source: hyper::Error,
    },
    #[error("GET {path} from {endpoint}: no answer within {} s", PATIENCE.as_secs())]
    Timeout { endpoint: Endpoint, path: String },
    /// The agent said no.
    #[error("GET {path} from {endpoint}: {status}: {message}")]
    Refused {
        endpoint: Endpoint,
        path: String,
        /// HTTP status.
        status: u16,
        /// The agent's own words.
        message: String,
    },
    /// The path is not one that a request line can carry.
    #[error("GET {path:?}: not a path")]
    Path {
        path: String,
        #[source]
        source: hyper::http::Error,
    },
    /// The answer is of another shape: most likely another version's.
    #[error("GET {path} from {endpoint}: not the answer of this version of podwarden")]
    Decode {
        endpoint: Endpoint,
        path: String,
        #[source]
        source: serde_json::Error,
    },
    /// The stream of events broke.
    #[error("read events from {endpoint}")]
    Stream {
        endpoint: Endpoint,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Talks to one agent.
#[derive(Debug, Clone)]
pub struct Client {
    endpoint: Endpoint,
}

impl Client {
    /// A client of the agent at `endpoint`; connects with the first request.
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint }
    }

    /// Where it connects to.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// `GET path`, decoded; an answer of 400 or above, or none within 10 s, is an error.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let body = self.get_bytes(path).await?;
        serde_json::from_slice(&body).map_err(|source| ClientError::Decode {
            endpoint: self.endpoint.clone(),
            path: path.to_owned(),
            source,
        })
    }

    /// `GET path`, as it comes; an answer of 400 or above, or none within 10 s, is an error.
    pub async fn get_bytes(&self, path: &str) -> Result<Bytes, ClientError> {
        let whole = async {
            let response = self.send(path, "application/json").await?;
            let body = response.into_body().collect().await;
            body.map(http_body_util::Collected::to_bytes)
                .map_err(|source| self.broken(path, source))
        };
        match tokio::time::timeout(PATIENCE, whole).await {
            Ok(answer) => answer,
            Err(_) => Err(self.timeout(path)),
        }
    }

    /// Kept events after `after` (all of them without one), then those that happen.
    pub async fn follow(&self, after: Option<u64>) -> Result<EventStream, ClientError> {
        let path = match after {
            Some(id) => format!("/v1/events?follow=true&after={id}"),
            None => "/v1/events?follow=true".to_owned(),
        };
        let opened = tokio::time::timeout(PATIENCE, self.send(&path, "text/event-stream")).await;
        let response = opened.unwrap_or_else(|_| Err(self.timeout(&path)))?;
        Ok(EventStream {
            endpoint: self.endpoint.clone(),
            frames: SseStream::new(response.into_body()),
        })
    }

    async fn send(&self, path: &str, accept: &str) -> Result<Response<Incoming>, ClientError> {
        let request = Request::get(path)
            .header(header::HOST, "localhost")
            .header(header::ACCEPT, accept)
            .body(Empty::<Bytes>::new())
            .map_err(|source| ClientError::Path {
                path: path.to_owned(),
                source,
            })?;
        let sent = match &self.endpoint {
            Endpoint::Unix(socket) => {
                let stream = UnixStream::connect(socket).await;
                exchange(stream.map_err(|e| self.unreachable(e))?, request).await
            }
            Endpoint::Tcp(addr) => {
                let stream = TcpStream::connect(addr).await;
                exchange(stream.map_err(|e| self.unreachable(e))?, request).await
            }
        };
        let response = sent.map_err(|source| self.broken(path, source))?;
        match response.status() {
            status if status.is_success() => Ok(response),
            status => Err(self.refused(path, status, response).await),
        }
    }

    async fn refused(
        &self,
        path: &str,
        status: StatusCode,
        response: Response<Incoming>,
    ) -> ClientError {
        let body = match response.into_body().collect().await {
            Ok(body) => body.to_bytes(),
            Err(source) => return self.broken(path, source),
        };
        let message = serde_json::from_slice::<ErrorBody>(&body)
            .map_or_else(|_| String::from_utf8_lossy(&body).into_owned(), |e| e.error);
        ClientError::Refused {
            endpoint: self.endpoint.clone(),
            path: path.to_owned(),
            status: status.as_u16(),
            message,
        }
    }

    fn unreachable(&self, source: io::Error) -> ClientError {
        let endpoint = self.endpoint.clone();
        match source.kind() {
            io::ErrorKind::PermissionDenied => ClientError::Denied { endpoint, source },
            _ => ClientError::Connect { endpoint, source },
        }
    }

    fn broken(&self, path: &str, source: hyper::Error) -> ClientError {
        ClientError::Http {
            endpoint: self.endpoint.clone(),
            path: path.to_owned(),
            source,
        }
    }

    fn timeout(&self, path: &str) -> ClientError {
        ClientError::Timeout {
            endpoint: self.endpoint.clone(),
            path: path.to_owned(),
        }
    }
}

/// Sends one request; the connection lives in a task until the body has been read.
async fn exchange<S>(stream: S, request: Request<Empty<Bytes>>) -> hyper::Result<Response<Incoming>>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // A failure of the connection reaches the reader through the body.
    tokio::spawn(connection);
    sender.send_request(request).await
}

/// One thing that the stream of events says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update {
    Event(Box<Event>),
    /// So many events were lost to this reader, for it was too slow or came too late.
    Missed(u64),
}

/// Events as they happen; ends when the agent does.
pub struct EventStream {
    endpoint: Endpoint,
    frames: SseStream<Incoming>,
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream")
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

impl EventStream {
    /// The next one; `None` once the agent has closed the stream. May be cancelled without a loss.
    pub async fn next(&mut self) -> Option<Result<Update, ClientError>> {
        loop {
            let frame = match self.frames.next().await? {
                Ok(frame) => frame,
                Err(e) => return Some(Err(self.broken(e.into()))),
            };
            // Keep-alives carry no data.
            let Some(data) = frame.data else { continue };
            let update = if frame.event.as_deref() == Some("missed") {
                serde_json::from_str::<Missed>(&data).map(|m| Update::Missed(m.missed))
            } else {
                serde_json::from_str(&data).map(Update::Event)
            };
            return Some(update.map_err(|e| self.broken(e.into())));
        }
    }

    fn broken(&self, source: Box<dyn std::error::Error + Send + Sync>) -> ClientError {
        ClientError::Stream {
            endpoint: self.endpoint.clone(),
            source,
        }
    }
}
