//! An API on sockets of its own, with made-up figures.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use podwarden::api::{
    client::{Client, Endpoint},
    published::{Figures, Published},
    server::{self, HttpError, Listen, Listeners, serve_on},
    types::{
        ConvergenceSteps, CpuStats, EventKind, MemoryStats, NodeStats, PodRef, PodStats,
        TierConvergence, TierStats,
    },
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::oneshot,
    task::JoinHandle,
};

/// An API on a socket of its own.
pub(crate) struct Api {
    pub(crate) published: Arc<Published>,
    pub(crate) socket: PathBuf,
    pub(crate) tcp: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<Result<(), HttpError>>,
    _dir: TempDir,
}

impl Api {
    pub(crate) async fn start() -> Self {
        Self::on(Published::default()).await
    }

    pub(crate) async fn on(published: Published) -> Self {
        Self::with(published, |listen| listen.reach.api = true).await
    }

    /// With other listeners than one that answers everything within the limits of production.
    pub(crate) async fn with(published: Published, change: impl FnOnce(&mut Listen)) -> Self {
        // Before the first event is counted.
        server::recorder();
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("run/api.sock");
        let mut listen = Listen {
            tcp: Some("127.0.0.1:0".parse().unwrap()),
            unix: Some(socket.clone()),
            ..Listen::default()
        };
        change(&mut listen);
        let listeners = Listeners::open(&listen).await.unwrap();
        let tcp = listeners.tcp_addr().unwrap();
        let published = Arc::new(published);
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tokio::spawn(serve_on(published.clone(), listeners, async {
            stopped.await.ok();
        }));
        Self {
            published,
            socket,
            tcp,
            stop: Some(stop),
            server,
            _dir: dir,
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(Endpoint::Unix(self.socket.clone()))
    }

    pub(crate) async fn metrics(&self) -> String {
        let text = self.client().get_bytes("/metrics").await.unwrap();
        String::from_utf8(text.to_vec()).unwrap()
    }

    pub(crate) fn publish(&self, pods: usize) {
        let pods = (0..pods).map(pod).collect();
        self.published.publish(Figures::new(node(), pods));
    }

    pub(crate) fn happen(&self, pid: u32) -> u64 {
        let time = "2026-11-21T08:57:48.123456Z".to_owned();
        self.published
            .event(time, None, EventKind::KernelOom { pid })
    }

    pub(crate) async fn stop(mut self) -> PathBuf {
        self.stop.take().unwrap().send(()).unwrap();
        self.server.await.unwrap().unwrap();
        self.socket.clone()
    }

    /// Status, head and body of a request typed by hand.
    pub(crate) async fn raw(&self, request: &str) -> (u16, String, String) {
        let mut stream = tokio::net::UnixStream::connect(&self.socket).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_lowercase(), body.to_owned())
    }

    /// Head and body, which is no text, of the answer to such a request.
    pub(crate) async fn raw_bytes(&self, request: &str) -> (String, Vec<u8>) {
        let mut stream = tokio::net::UnixStream::connect(&self.socket).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        let end = answer
            .windows(4)
            .position(|part| part == b"\r\n\r\n")
            .unwrap();
        let body = answer.split_off(end + 4);
        (String::from_utf8(answer).unwrap().to_lowercase(), body)
    }

    pub(crate) async fn status(&self, method: &str, path: &str) -> (u16, String) {
        let (status, _, body) = self.raw(&format!("{method} {path} HTTP/1.0\r\n\r\n")).await;
        (status, body)
    }
}

pub(crate) fn node() -> NodeStats {
    NodeStats {
        node_name: "node-1".to_owned(),
        mode: "observe".to_owned(),
        profile: "standard".to_owned(),
        tiers: vec![TierStats {
            name: "kubepods".to_owned(),
            armed_level_bytes: Some(1 << 30),
            convergence: Some(TierConvergence {
                target_bytes: Some(1 << 29),
                gap_bytes: 4096,
                reclaimed_bytes: 8192,
                steps: ConvergenceSteps {
                    max: 1,
                    high: 2,
                    reclaim: 3,
                },
                ..TierConvergence::default()
            }),
            ..TierStats::default()
        }],
        ..NodeStats::default()
    }
}

pub(crate) fn pod(i: usize) -> PodStats {
    PodStats {
        pod_ref: PodRef {
            name: format!("web-{i}").into(),
            namespace: "default".into(),
            uid: format!("uid-{i}").into(),
        },
        qos_class: "Burstable".into(),
        cpu: CpuStats {
            usage_core_nano_seconds: 1_500_000_000,
            run_queue_wait_nano_seconds: 4_000,
            run_queue_wait_histogram: vec![2, 1, 1],
            ..CpuStats::default()
        },
        memory: Some(MemoryStats {
            usage_bytes: 4096,
            shared_bytes: 1024,
            ..MemoryStats::default()
        }),
        ..PodStats::default()
    }
}
