//! Ten minutes without an API server, by a clock that is moved on by hand.
//!
//! What follows the API server's pods and what tells it of evictions are the agent's own, and so are the
//! sockets; only their timers go by that clock. It never moves by itself, as tokio's paused clock does
//! whenever no task is ready: a task that waits for an answer would run out of time at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use podwarden::api::types::{Eviction, PodRef};
use podwarden::config::{Config, EvictionStatusConfig, Overrides};
use podwarden::eviction::status::{EvictionStatus, Parts, Sizes, Teardown};
use podwarden::pods::{Apiserver, Feed, feed};
use serde_json::json;
use tempfile::TempDir;
use tokio::time::advance;

use crate::apiserver::{ApiServer, Outage, Write};

const NODE: &str = "n1";

/// The clock moves on by so much at a time.
const STEP: Duration = Duration::from_millis(500);

const OUTAGE: Duration = Duration::from_secs(600);

/// Pauses of 0.8 s and twice as long each time, up to 30 s, are so many in that time at most; each may be
/// longer by up to as much again.
const TRIES: u64 = 26;

/// What is told after it is told within this time: a few of the longest pauses.
const RETURN: Duration = Duration::from_secs(240);

/// How long to wait, by the clock on the wall, for what takes a moment.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn connections_are_refused() {
    ten_minutes(Outage::Refused, false);
}

#[test]
fn no_request_is_answered() {
    ten_minutes(Outage::Silent, true);
}

#[test]
fn everything_is_refused() {
    ten_minutes(Outage::Unavailable, true);
}

#[test]
fn answers_are_cut_off() {
    ten_minutes(Outage::Cut, false);
}

/// With `forgets`, what happened meanwhile is compacted.
fn ten_minutes(way: Outage, forgets: bool) {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(outage(&server, way, forgets));
}

async fn outage(server: &Server, way: Outage, forgets: bool) {
    let _held = Held::new();
    let mut scene = Scene::start(server).await;
    server.act(move |server| server.go_away(way).unwrap()).await;
    server.get().take_seen();

    let late = OUTAGE - Duration::from_secs(60);
    pass(Duration::from_secs(60)).await;
    scene.evict("early", 1).await;
    pass(late - Duration::from_secs(60)).await;
    scene.evict("late", 2).await;
    pass(OUTAGE - late).await;

    let tries = server.get().turned_away();
    // The source that follows the pods, and two pods that wait to be reported. Where an answer has begun the server counts
    // as being there, and both are hurried.
    let most = match way {
        Outage::Refused => 0,
        Outage::Silent | Outage::Unavailable => 3 * TRIES,
        Outage::Cut => 5 * TRIES,
    };
    assert!(tries <= most, "{tries} tries, more than {most}");
    assert!(way == Outage::Refused || tries >= 10, "{tries} tries");
    assert_eq!(server.get().take_written(), [], "during the outage");
    if forgets {
        server.get().compact();
    }
    server.act(|server| server.come_back().unwrap()).await;

    let mut left = RETURN;
    while scene.waiting() > 0 {
        assert!(
            left > Duration::ZERO,
            "{} eviction_status wait",
            scene.waiting()
        );
        pass(STEP).await;
        left = left.saturating_sub(STEP);
    }
    // Nothing comes after it.
    pass(Duration::from_secs(120)).await;
    let written = server.get().take_written();
    for name in ["early", "late"] {
        let own: Vec<_> = written.iter().filter(|w| w.about == name).collect();
        let own: Vec<_> = own.into_iter().map(Write::step).collect();
        assert_eq!(own, Write::EVICTED, "{name}");
    }
    assert_eq!(written.len(), 4, "{written:?}");
    let mut ended = scene.ended();
    ended.sort();
    let both = ["early", "late"].map(|name| (name.to_owned(), true));
    assert_eq!(ended, both, "torn down, and marked before that");
    let seen = server.get().take_seen();
    let lists = seen.iter().filter(|seen| seen.verb == "list").count();
    assert_eq!(lists, usize::from(forgets), "{seen:?}");
    assert_eq!(scene.problem(), None);
}

/// The stand-in, which must not be stopped where a runtime is at work.
#[derive(Clone)]
struct Server(Arc<Mutex<ApiServer>>);

impl Server {
    fn start() -> Self {
        let server = ApiServer::start().unwrap();
        for name in ["early", "late", "calm"] {
            let pod = json!({
                "metadata": {"name": name, "namespace": "shop", "uid": name},
                "spec": {"containers": [{"name": "app"}]},
                "status": {"phase": "Running"},
            });
            server.create_pod(NODE, pod).unwrap();
        }
        Self(Arc::new(Mutex::new(server)))
    }

    fn get(&self) -> MutexGuard<'_, ApiServer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something that waits for its threads.
    async fn act(&self, act: impl FnOnce(&mut ApiServer) + Send + 'static) {
        let server = self.clone();
        let done = tokio::task::spawn_blocking(move || act(&mut server.get()));
        done.await.unwrap();
    }

    fn is_marked(&self, name: &str) -> bool {
        let pod = self.get().pod("shop", name).unwrap();
        pod["status"]["reason"] == "Evicted"
    }
}

/// As long as this is there, the clock does not move by itself.
struct Held(#[expect(dead_code, reason = "its end is what counts")] mpsc::Sender<()>);

impl Held {
    fn new() -> Self {
        let (held, until) = mpsc::channel();
        tokio::task::spawn_blocking(move || until.recv());
        Self(held)
    }
}

/// The clock stands, and what is under way over sockets goes on for a moment.
async fn breathe() {
    let moment = tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(2)));
    moment.await.unwrap();
}

/// Moves the clock on.
async fn pass(time: Duration) {
    let mut left = time;
    while !left.is_zero() {
        let step = left.min(STEP);
        advance(step).await;
        breathe().await;
        left -= step;
    }
}

/// Waits, while the clock stands.
async fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "timed out waiting for {what}");
        breathe().await;
    }
}

/// What follows pods, and what tells of evictions.
struct Scene {
    feed: Feed,
    eviction_status: EvictionStatus,
    /// Whose end was seen to, and whether it was marked by then.
    ended: Arc<Mutex<Vec<(String, bool)>>>,
    _dir: TempDir,
}

impl Scene {
    async fn start(server: &Server) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        server.get().kubeconfig(&kubeconfig, None).unwrap();
        let text = format!(
            "apiVersion: podwarden.io/v1alpha1\nkind: AgentConfig\nstateDir: {}\n",
            dir.path().display()
        );
        let path = kubeconfig.to_str().unwrap();
        let overrides = Overrides::from_flags(["--node-name", NODE, "--kubeconfig", path]);
        let config = Config::parse("test", &text, overrides.unwrap()).unwrap();
        let feed = feed::start(&config, |_| true).unwrap();
        let ended = Arc::default();
        let eviction_status = EvictionStatus::start(Parts {
            how: EvictionStatusConfig::Status,
            apiserver: Some(Apiserver::Kubeconfig(kubeconfig)),
            node_name: NODE.to_owned(),
            state_dir: config.state_dir,
            sizes: Sizes::default(),
            calm: config.eviction_pressure_transition_period,
            feed: feed.clone(),
            recorded: Vec::new(),
            teardown: Some(teardown(server, &ended)),
            pressure: podwarden::eviction::status::NodePressure::default(),
            real_time: false,
            on_degraded: Arc::new(|_| ()),
        });
        let pods = feed.pods.clone();
        until("the first list", || pods.borrow().pods.len() == 3).await;
        Self {
            feed,
            eviction_status: eviction_status.unwrap().unwrap(),
            ended,
            _dir: dir,
        }
    }

    /// A pod was killed; that is on disk when this returns, as one of `waiting`.
    async fn evict(&mut self, name: &str, waiting: u64) {
        let mut eviction = Eviction {
            pod: PodRef {
                name: name.into(),
                namespace: "shop".into(),
                uid: name.into(),
            },
            ..Eviction::default()
        };
        eviction.timeline.killed_nanos = Some(1);
        let time = "2026-01-01T00:00:00Z";
        self.eviction_status
            .evicted(time, &eviction, &self.feed.pods);
        until("the disk", || self.waiting() == waiting).await;
    }

    fn waiting(&self) -> u64 {
        self.eviction_status.deliveries().stats().waiting
    }

    fn ended(&self) -> Vec<(String, bool)> {
        self.ended.lock().unwrap().clone()
    }

    /// What keeps the API server from telling its pods.
    fn problem(&self) -> Option<String> {
        let sources = self.feed.sources.borrow();
        sources.iter().find_map(|source| source.problem.clone())
    }
}

fn teardown(server: &Server, ended: &Arc<Mutex<Vec<(String, bool)>>>) -> Teardown {
    let (server, ended) = (server.clone(), Arc::clone(ended));
    Arc::new(move |pod, _| {
        let is_marked = server.is_marked(&pod.name);
        ended.lock().unwrap().push((pod.uid.to_string(), is_marked));
        Box::pin(async { Ok(()) })
    })
}
