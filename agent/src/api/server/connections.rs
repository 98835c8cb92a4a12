//! Connections: bounded in number and in time, so that a client that sends or reads nothing holds no place for long.
//!
//! A connection carries one request. It waits for a whole head, then it answers; a stream of events lasts as long as
//! its client reads. Where all places are taken, the connection that has waited longest for a head goes: a probe,
//! which sends its head at once, gets an answer however many silent connections there are.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use axum::{Router, extract::Request, serve::Listener};
use hyper::{body::Incoming, server::conn::http1, service::Service as _};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinSet},
};
use tokio_io_timeout::TimeoutWriter;

use super::{closed, secure::Tls};

/// What the server grants its clients. The default is for production.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Open connections of one listener. Default: 64.
    pub connections: usize,
    /// Time for a request's head, from the moment that the connection is accepted. Default: 5 s.
    pub head: Duration,
    /// Time for the whole answer, a stream of events apart. Default: 30 s.
    pub answer: Duration,
    /// Time in which a client must take some of what is written, on a stream too. Default: 10 s.
    pub write: Duration,
    /// Streams of events on all listeners together. Default: 16.
    pub followers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            head: Duration::from_secs(5),
            answer: Duration::from_secs(30),
            write: Duration::from_secs(10),
            followers: 16,
        }
    }
}

/// Bytes of a request's head; hyper answers 431 to a larger one.
const MOST_HEAD: usize = 16 << 10;

/// How far a connection is.
#[derive(Debug, Default)]
pub(super) struct Progress(AtomicU8);

impl Progress {
    const WAITS: u8 = 0;
    const ANSWERS: u8 = 1;
    const FOLLOWS: u8 = 2;

    fn is(&self, phase: u8) -> bool {
        self.0.load(Ordering::Acquire) == phase
    }

    /// Its answer has no end of its own.
    pub(super) fn follows(&self) {
        self.0.store(Self::FOLLOWS, Ordering::Release);
    }
}

/// Accepts until the server is to end, then lets requests in flight finish. With `tls`, a connection begins with a
/// handshake, which has the time of a head.
pub(super) async fn serve<L: Listener>(
    mut listener: L,
    tls: Option<Tls>,
    app: Router,
    limits: Limits,
    closing: watch::Receiver<bool>,
) {
    let mut open = Open::default();
    loop {
        let has_room = open.len() < limits.connections || open.has_waiting();
        tokio::select! {
            () = closed(closing.clone()) => break,
            (io, _) = listener.accept(), if has_room => {
                if open.len() >= limits.connections {
                    open.drop_longest_waiting();
                }
                let progress = Arc::new(Progress::default());
                let (tls, app) = (tls.clone(), app.clone());
                let (of_connection, closing) = (Arc::clone(&progress), closing.clone());
                match tls {
                    None => open.add(progress, answer(io, app, limits, of_connection, closing)),
                    Some(tls) => open.add(progress, async move {
                        if let Some(io) = tls.accept(io, limits.head).await {
                            answer(io, app, limits, of_connection, closing).await;
                        }
                    }),
                }
                // A new connection is looked at before further ones could take its place.
                tokio::task::yield_now().await;
            }
            Some(_) = open.tasks.join_next(), if !open.tasks.is_empty() => {}
        }
    }
    drop(listener);
    while open.tasks.join_next().await.is_some() {}
}

/// The open connections, oldest first.
#[derive(Default)]
struct Open {
    tasks: JoinSet<()>,
    connections: VecDeque<(AbortHandle, Arc<Progress>)>,
}

impl Open {
    fn len(&mut self) -> usize {
        self.connections.retain(|(task, _)| !task.is_finished());
        self.connections.len()
    }

    fn longest_waiting(&self) -> Option<usize> {
        let mut connections = self.connections.iter();
        connections.position(|(_, progress)| progress.is(Progress::WAITS))
    }

    fn has_waiting(&self) -> bool {
        self.longest_waiting().is_some()
    }

    fn drop_longest_waiting(&mut self) {
        let waiting = self.longest_waiting();
        if let Some((task, _)) = waiting.and_then(|at| self.connections.remove(at)) {
            task.abort();
        }
    }

    fn add(&mut self, progress: Arc<Progress>, task: impl Future<Output = ()> + Send + 'static) {
        let task = self.tasks.spawn(task);
        self.connections.push_back((task, progress));
    }
}

/// Answers the one request of a connection.
async fn answer<I>(
    io: I,
    app: Router,
    limits: Limits,
    progress: Arc<Progress>,
    closing: watch::Receiver<bool>,
) where
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + 'static,
{
    let mut io = TimeoutWriter::new(io);
    io.set_timeout(Some(limits.write));
    let app = TowerToHyperService::new(app);
    let of_request = Arc::clone(&progress);
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        of_request.0.store(Progress::ANSWERS, Ordering::Release);
        let mut request = request.map(axum::body::Body::new);
        request.extensions_mut().insert(Arc::clone(&of_request));
        let answer = app.call(request);
        async move { Ok::<_, Infallible>(answer.await.unwrap_or_else(|never| match never {})) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(MOST_HEAD)
        .keep_alive(false);
    let serving = http.serve_connection(TokioIo::new(Box::pin(io)), service);
    let last = tokio::time::sleep(limits.head + limits.answer);
    tokio::pin!(serving, last);
    let mut closing = Some(closing);
    let mut limited = true;
    loop {
        let close = async {
            match closing.clone() {
                Some(closing) => closed(closing).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // An error is the client's: it is gone, or was too slow.
            _ = &mut serving => return,
            () = &mut last, if limited => {
                if !progress.is(Progress::FOLLOWS) {
                    return;
                }
                limited = false;
            }
            () = close => {
                closing = None;
                serving.as_mut().graceful_shutdown();
            }
        }
    }
}
