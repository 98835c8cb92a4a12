//! A runtime that answers what a test says, over gRPC as hyper's HTTP/2 carries it.

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::{
    HeaderMap, Request, Response, body::Incoming, server::conn::http2, service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::{net::UnixListener, task::JoinSet};

/// What comes of a call.
pub(super) enum Reply {
    /// A message.
    Message(Vec<u8>),
    /// A gRPC status.
    Status(u16, &'static str),
    /// Nothing, ever.
    Hang,
}

impl Reply {
    pub(super) fn of(message: &impl Message) -> Self {
        Self::Message(message.encode_to_vec())
    }
}

/// Gets the method's name without its service, and the request.
type Script = Arc<dyn Fn(&str, &[u8]) -> Reply + Send + Sync>;

/// Stops and cuts everybody off when dropped.
pub(super) struct Server {
    _tasks: JoinSet<()>,
    calls: Arc<Mutex<Vec<String>>>,
}

/// A directory with a socket's path in it.
pub(super) struct Place(tempfile::TempDir);

impl Place {
    pub(super) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.0.path().join("runtime.sock")
    }
}

impl Server {
    pub(super) fn start(
        socket: &Path,
        script: impl Fn(&str, &[u8]) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let _ = std::fs::remove_file(socket);
        let listener = UnixListener::bind(socket).unwrap();
        let calls = Arc::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, Arc::new(script), Arc::clone(&calls)));
        Self {
            _tasks: tasks,
            calls,
        }
    }

    /// The methods that were called, in their order.
    pub(super) fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }
}

async fn serve(listener: UnixListener, script: Script, calls: Arc<Mutex<Vec<String>>>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (script, calls) = (Arc::clone(&script), Arc::clone(&calls));
        let service =
            service_fn(move |request| answer(request, Arc::clone(&script), Arc::clone(&calls)));
        connections.spawn(async move {
            let connection = http2::Builder::new(TokioExecutor::new());
            let _ = connection
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

async fn answer(
    request: Request<Incoming>,
    script: Script,
    calls: Arc<Mutex<Vec<String>>>,
) -> Result<Response<Body>, Infallible> {
    let method = request.uri().path().rsplit('/').next().unwrap().to_owned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    calls.lock().unwrap().push(method.clone());
    // A byte that says whether it is compressed, and the length.
    let reply = script(&method, &body[5..]);
    let (data, code, said) = match reply {
        Reply::Message(message) => {
            let length = u32::try_from(message.len()).unwrap().to_be_bytes();
            let frame = [&[0], &length[..], &message].concat();
            (Bytes::from(frame), 0, "")
        }
        Reply::Status(code, said) => (Bytes::new(), code, said),
        Reply::Hang => std::future::pending().await,
    };
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", code.into());
    trailers.insert("grpc-message", said.parse().unwrap());
    let body = Full::new(data).with_trailers(async { Some(Ok(trailers)) });
    let response = Response::builder().header("content-type", "application/grpc");
    Ok(response.body(body.boxed_unsync()).unwrap())
}
