use std::{
    collections::{BTreeSet, VecDeque},
    fs,
    net::Ipv4Addr,
    sync::Mutex,
    time::Duration,
};

use axum::{
    Router,
    extract::{Request, State},
    http::{StatusCode, header},
    response::IntoResponse as _,
};
use serde_json::{Value, json};

use super::*;
use crate::{
    api::types::Eviction,
    eviction::status::{
        queue::{Added, Queue},
        wording::Sizes,
    },
    pods::{Apiserver, apiserver::MIRROR},
};

mod order;

const POD: &str = "GET /api/v1/namespaces/shop/pods/web";
const STATUS: &str = "PATCH /api/v1/namespaces/shop/pods/web/status";
const EVICTION: &str = "POST /api/v1/namespaces/shop/pods/web/eviction";
const EVENT: &str = "POST /api/v1/namespaces/shop/events";

/// Answers in their order, and what was asked.
#[derive(Default)]
struct Script {
    answers: VecDeque<(&'static str, u16, Value)>,
    asked: Vec<(String, Value)>,
}

type Shared = Arc<Mutex<Script>>;

async fn answer(State(script): State<Shared>, request: Request) -> axum::response::Response {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let asked = format!("{} {}", head.method, head.uri.path());
    let mut script = script.lock().unwrap();
    let (expected, code, body_of_answer) =
        script
            .answers
            .pop_front()
            .unwrap_or(("nothing more", 500, json!({})));
    let code = if asked == expected { code } else { 500 };
    script
        .asked
        .push((asked, serde_json::from_slice(&body).unwrap_or_default()));
    let headers = [(header::RETRY_AFTER, "7")];
    (
        StatusCode::from_u16(code).unwrap(),
        headers,
        body_of_answer.to_string(),
    )
        .into_response()
}

/// Steps with one entry, for the pod `u1`, and a server with these answers.
struct Scene {
    steps: Steps,
    script: Shared,
    _dir: tempfile::TempDir,
}

impl Scene {
    async fn new(how: EvictionStatusConfig, answers: &[(&'static str, u16, Value)]) -> Self {
        let script = Shared::default();
        script.lock().unwrap().answers = answers.iter().cloned().collect();
        let router = Router::new()
            .fallback(answer)
            .with_state(Arc::clone(&script));
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        fs::write(&kubeconfig, text.to_string()).unwrap();
        let server = Server::new(Apiserver::Kubeconfig(kubeconfig));
        Self {
            steps: steps(how, Some(Arc::new(server))),
            script,
            _dir: dir,
        }
    }

    async fn for_status(answers: &[(&'static str, u16, Value)]) -> Self {
        Self::new(EvictionStatusConfig::Status, answers).await
    }

    async fn run(&self) -> Result<(), JobError> {
        let done = self.steps.run("u1", Work::Update(pod())).await;
        let left = self.script.lock().unwrap().answers.len();
        assert_eq!(left, 0, "{left} answers were not asked for");
        done
    }

    fn asked(&self) -> Vec<String> {
        let script = self.script.lock().unwrap();
        script
            .asked
            .iter()
            .map(|(asked, _)| asked.clone())
            .collect()
    }

    fn body(&self, number: usize) -> Value {
        self.script.lock().unwrap().asked[number].1.clone()
    }

    fn waiting(&self) -> Vec<Entry> {
        waiting(&self.steps)
    }
}

fn waiting(steps: &Steps) -> Vec<Entry> {
    steps.queue.with(|queue| queue.entries().cloned().collect())
}

fn pod() -> PodRef {
    PodRef {
        name: "web".into(),
        namespace: "shop".into(),
        uid: "u1".into(),
    }
}

fn steps(how: EvictionStatusConfig, server: Option<Arc<Server>>) -> Steps {
    let mut queue = Queue::open(None).0;
    let eviction = Eviction {
        pod: pod(),
        ..Eviction::default()
    };
    let entry = Entry::of_eviction("2026-01-01T00:00:00Z", &eviction, None, &Sizes::default());
    assert!(matches!(queue.add(entry), Added::Kept));
    Steps {
        queue: crate::eviction::status::queue::Shared::new(queue, Arc::default()),
        server,
        how,
        node_name: "n1".to_owned(),
        pods: watch::channel(Arc::default()).1,
        pressure: NodePressure::default(),
        ending: None,
        holder: None,
        on_degraded: Arc::new(|_| ()),
        deliveries: Arc::default(),
        written: mpsc::unbounded_channel().0,
    }
}

fn object(uid: &str, version: &str) -> Value {
    json!({"metadata": {"uid": uid, "resourceVersion": version}, "status": {"phase": "Running"}})
}

fn refusal(reason: &str) -> Value {
    json!({"kind": "Status", "reason": reason, "message": format!("because {reason}")})
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_is_written_to_the_object_that_was_looked_at() {
    let scene = Scene::for_status(&[
        (POD, 200, object("u1", "7")),
        (EVENT, 201, json!({})),
        // The kubelet was faster.
        (STATUS, 409, refusal("Conflict")),
        (POD, 200, object("u1", "8")),
        (STATUS, 200, json!({})),
    ])
    .await;
    scene.run().await.unwrap();
    assert_eq!(scene.waiting(), []);
    let mut marked = BTreeSet::new();
    for (number, version) in [(2, "7"), (4, "8")] {
        let metadata = scene.body(number)["metadata"].take();
        let found = (&metadata["uid"], &metadata["resourceVersion"]);
        assert_eq!(found, (&json!("u1"), &json!(version)));
        // Without a change of it a kubelet would look at the pod later.
        marked.insert(metadata["annotations"]["podwarden.io/evicted"].to_string());
    }
    assert_eq!(marked.len(), 2, "{marked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_was_replaced_meanwhile_is_left_alone() {
    let scene = Scene::for_status(&[
        (POD, 200, object("u1", "7")),
        (EVENT, 201, json!({})),
        (STATUS, 409, refusal("Conflict")),
        (POD, 200, object("u2", "9")),
    ])
    .await;
    scene.run().await.unwrap();
    assert_eq!(scene.waiting(), []);
    let scene = Scene::for_status(&[(POD, 200, object("u2", "9"))]).await;
    scene.run().await.unwrap();
    assert_eq!(scene.waiting(), []);
    let scene = Scene::for_status(&[(POD, 404, refusal("NotFound"))]).await;
    scene.run().await.unwrap();
    assert_eq!(scene.waiting(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_static_pod_is_marked_by_its_mirror() {
    let mut mirror = object("u9", "7");
    mirror["metadata"]["annotations"] = json!({MIRROR: "u1"});
    let scene = Scene::for_status(&[
        (POD, 200, mirror),
        (EVENT, 201, json!({})),
        (STATUS, 200, json!({})),
    ])
    .await;
    scene.run().await.unwrap();
    assert_eq!(scene.body(1)["involvedObject"]["uid"], "u9");
    assert_eq!(scene.body(2)["metadata"]["uid"], "u9");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_done_is_not_done_again() {
    let mut ended = object("u1", "8");
    ended["status"]["phase"] = "Failed".into();
    ended["status"]["reason"] = "Evicted".into();
    let scene = Scene::for_status(&[
        (POD, 200, object("u1", "7")),
        // It is there from a try whose answer got lost.
        (EVENT, 409, refusal("AlreadyExists")),
        (STATUS, 503, refusal("ServiceUnavailable")),
    ])
    .await;
    let failure = scene.run().await.unwrap_err();
    assert_eq!(failure.wait, Some(Duration::from_secs(7)));
    assert!(failure.problem.contains("503"), "{failure:?}");
    assert!(scene.waiting()[0].event_sent && !scene.waiting()[0].status_written);
    // Its answer got lost as well.
    scene.script.lock().unwrap().answers = VecDeque::from([(POD, 200, ended)]);
    scene.run().await.unwrap();
    assert_eq!(scene.waiting(), []);
}

/// A pod that is not restarted: its kubelet saw the end first.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_without_a_reason_gets_that_of_the_eviction() {
    for (phase, marked) in [("Failed", true), ("Succeeded", false)] {
        let mut ended = object("u1", "8");
        ended["status"]["phase"] = phase.into();
        let mut answers = vec![(POD, 200, ended), (EVENT, 201, json!({}))];
        answers.extend(marked.then(|| (STATUS, 200, json!({}))));
        let scene = Scene::for_status(&answers).await;
        scene.run().await.unwrap();
        assert_eq!(scene.waiting(), [], "{phase}");
        assert!(scene.script.lock().unwrap().answers.is_empty(), "{phase}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_is_refused_is_in_nobodys_way_and_a_mark_that_never_can_be_is_given_up() {
    let scene = Scene::for_status(&[
        (POD, 200, object("u1", "7")),
        (EVENT, 403, refusal("Forbidden")),
        (STATUS, 422, refusal("Invalid")),
    ])
    .await;
    scene.run().await.unwrap();
    assert_eq!(scene.waiting(), []);
    // One that can be once the rights are granted is not.
    let scene = Scene::for_status(&[
        (POD, 200, object("u1", "7")),
        (EVENT, 201, json!({})),
        (STATUS, 403, refusal("Forbidden")),
    ])
    .await;
    let failure = scene.run().await.unwrap_err();
    assert!(failure.problem.contains("grant it"), "{failure:?}");
    assert_eq!(scene.waiting().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_eviction_waits_for_the_budget() {
    let scene = Scene::new(
        EvictionStatusConfig::EvictionApi,
        &[
            (POD, 200, object("u1", "7")),
            (EVENT, 201, json!({})),
            (EVICTION, 429, refusal("TooManyRequests")),
        ],
    )
    .await;
    let failure = scene.run().await.unwrap_err();
    assert_eq!(failure.wait, Some(Duration::from_secs(7)));
    let uid = &scene.body(2)["deleteOptions"]["preconditions"]["uid"];
    assert_eq!(uid, "u1");
    let answers = [(POD, 200, object("u1", "7")), (EVICTION, 201, json!({}))];
    scene.script.lock().unwrap().answers = VecDeque::from(answers);
    scene.run().await.unwrap();
    assert_eq!(scene.waiting(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_pod_that_is_gone_nothing_is_said() {
    let scene = Scene::for_status(&[]).await;
    let done = scene.steps.run("u1", Work::Delete(pod())).await;
    done.unwrap();
    assert_eq!(scene.asked(), Vec::<String>::new());
    assert_eq!(scene.waiting(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_waits_for_its_right_and_the_mark_does_not() {
    let scene = Scene::for_status(&[
        (POD, 200, object("u1", "7")),
        (EVENT, 403, refusal("Forbidden")),
        (STATUS, 200, json!({})),
    ])
    .await;
    let failure = scene.run().await.unwrap_err();
    assert!(failure.problem.contains("grant it"), "{failure:?}");
    let waiting = scene.waiting();
    assert!(
        waiting[0].status_written && !waiting[0].event_sent,
        "{waiting:?}"
    );
    let mut failed = object("u1", "8");
    failed["status"]["phase"] = "Failed".into();
    let answers = [(POD, 200, failed), (EVENT, 201, json!({}))];
    scene.script.lock().unwrap().answers = VecDeque::from(answers);
    scene.run().await.unwrap();
    assert_eq!(scene.waiting(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_changes_often_is_looked_at_again_for_a_time() {
    let mut answers = vec![(POD, 200, object("u1", "0")), (EVENT, 201, json!({}))];
    for _ in 0..12 {
        answers.push((STATUS, 409, refusal("Conflict")));
        answers.push((POD, 200, object("u1", "1")));
    }
    answers.push((STATUS, 200, json!({})));
    let scene = Scene::for_status(&answers).await;
    scene.run().await.unwrap();
    assert_eq!(scene.waiting(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_name_is_not_known_is_asked_for_later() {
    let steps = steps(EvictionStatusConfig::Status, None);
    let nameless = PodRef {
        name: "u1".into(),
        namespace: "".into(),
        uid: "u1".into(),
    };
    assert_eq!(steps.who(&nameless).unwrap(), None, "no source has it");
    let waiting = PodSet {
        waiting: vec![Source::Apiserver],
        ..PodSet::default()
    };
    let steps = Steps {
        pods: watch::channel(Arc::new(waiting)).1,
        ..steps
    };
    steps.who(&nameless).unwrap_err();
    assert_eq!(steps.who(&pod()).unwrap(), Some(pod()));
}
