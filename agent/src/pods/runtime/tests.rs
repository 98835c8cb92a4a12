//! Runtimes that are unpleasant. What a good one does is seen on a real one, end to end.

mod server;

use std::{
    io::Write as _,
    os::unix::net::UnixListener,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use prost::Message as _;

use self::server::{Place, Reply, Server};
use super::{
    Client, Follower, RuntimeError, TornDown,
    cri::{
        Container, ContainerState, ListContainersResponse, ListPodSandboxResponse, Nothing,
        PodSandbox, PodSandboxMetadata, SandboxState, StopContainerRequest, StopPodSandboxRequest,
        VersionResponse,
    },
    teardown,
};

/// Longer than any of this takes.
const LONG: Duration = Duration::from_secs(30);

fn version() -> Reply {
    Reply::of(&VersionResponse {
        runtime_name: "test".to_owned(),
        runtime_version: "1".to_owned(),
        runtime_api_version: "v1".to_owned(),
    })
}

#[tokio::test]
async fn one_that_hangs_is_given_up_and_named() {
    let place = Place::new();
    let _server = Server::start(&place.socket(), |_, _| Reply::Hang);
    let client = Client::new(&place.socket()).unwrap();
    let client = client.asking_for(Duration::from_millis(100));
    let error = client.version().await.unwrap_err();
    assert!(matches!(error, RuntimeError::Timeout { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("runtime.sock") && text.contains("/Version"),
        "{text}"
    );
}

/// It takes connections and says nothing at all, as a stopped process does.
#[tokio::test]
async fn one_that_accepts_and_is_silent_is_given_up() {
    let place = Place::new();
    let _listener = UnixListener::bind(place.socket()).unwrap();
    let client = Client::new(&place.socket()).unwrap();
    let client = client.asking_for(Duration::from_millis(100));
    let error = client.version().await.unwrap_err();
    assert!(matches!(error, RuntimeError::Timeout { .. }), "{error}");
}

#[tokio::test]
async fn one_that_comes_goes_and_comes_back_is_found_again() {
    let place = Place::new();
    let client = Client::new(&place.socket()).unwrap();
    let error = client.version().await.unwrap_err();
    assert!(matches!(error, RuntimeError::Unreachable { .. }), "{error}");
    assert!(
        error.to_string().contains("containerRuntimeEndpoint"),
        "{error}"
    );
    for _ in 0..2 {
        let server = Server::start(&place.socket(), |_, _| version());
        assert_eq!(client.version().await.unwrap().runtime_name, "test");
        drop(server);
        // What the connection had when it was cut is lost, and that is all.
        let error = client.version().await.unwrap_err();
        assert!(matches!(error, RuntimeError::Unreachable { .. }), "{error}");
    }
}

#[tokio::test]
async fn one_without_v1_is_told_what_it_lacks() {
    let place = Place::new();
    let unknown = "unknown service runtime.v1.RuntimeService";
    let _server = Server::start(&place.socket(), move |_, _| Reply::Status(12, unknown));
    let error = Client::new(&place.socket()).unwrap().version().await;
    let error = error.unwrap_err();
    assert!(matches!(error, RuntimeError::NoV1 { .. }), "{error}");
    assert!(error.to_string().contains(unknown), "{error}");
    assert!(error.to_string().contains("disabled_plugins"), "{error}");
}

#[tokio::test]
async fn what_is_no_message_is_an_error() {
    let place = Place::new();
    // A field of 127 bytes, of which none follow.
    let _server = Server::start(&place.socket(), |_, _| Reply::Message(vec![0x12, 0x7f]));
    let error = Client::new(&place.socket()).unwrap().version().await;
    let error = error.unwrap_err();
    assert!(matches!(error, RuntimeError::Refused { .. }), "{error}");
}

#[tokio::test]
async fn what_is_no_grpc_is_an_error() {
    let place = Place::new();
    let listener = UnixListener::bind(place.socket()).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\nthis is a web server");
    });
    let client = Client::new(&place.socket()).unwrap();
    assert!(client.version().await.is_err());
    server.join().unwrap();
}

/// As a newer runtime sends it.
#[tokio::test]
async fn unknown_fields_and_states_are_skipped() {
    let place = Place::new();
    let _server = Server::start(&place.socket(), |_, _| {
        let mut item = sandbox("s", "a", SandboxState::Ready).encode_to_vec();
        // Field 3 is 77, field 99 is the text "x".
        item.extend([0x18, 77, 0x9a, 0x06, 1, b'x']);
        let length = u8::try_from(item.len()).unwrap();
        let mut list = vec![0x0a, length];
        list.extend(item);
        Reply::Message(list)
    });
    let found = Client::new(&place.socket()).unwrap().sandboxes().await;
    let found = found.unwrap();
    assert_eq!((found.len(), &*found[0].id, found[0].state), (1, "s", 77));
}

fn sandbox(id: &str, uid: &str, state: SandboxState) -> PodSandbox {
    PodSandbox {
        id: id.to_owned(),
        metadata: Some(PodSandboxMetadata {
            name: "pod".to_owned(),
            uid: uid.to_owned(),
            namespace: "ns".to_owned(),
            attempt: 0,
        }),
        state: state as i32,
        ..PodSandbox::default()
    }
}

fn container(id: &str, sandbox: &str, state: ContainerState) -> Container {
    Container {
        id: id.to_owned(),
        pod_sandbox_id: sandbox.to_owned(),
        state: state as i32,
        ..Container::default()
    }
}

/// The pod `a` with two sandboxes, and the pod `b`.
fn two_pods(method: &str) -> Option<Reply> {
    match method {
        "ListPodSandbox" => Some(Reply::of(&ListPodSandboxResponse {
            items: vec![
                sandbox("a-old", "a", SandboxState::NotReady),
                sandbox("a-new", "a", SandboxState::Ready),
                sandbox("b-only", "b", SandboxState::Ready),
            ],
        })),
        "ListContainers" => Some(Reply::of(&ListContainersResponse {
            containers: vec![
                container("a-ended", "a-old", ContainerState::Exited),
                container("a-runs", "a-new", ContainerState::Running),
                container("a-waits", "a-new", ContainerState::Created),
                container("b-runs", "b-only", ContainerState::Running),
            ],
        })),
        _ => None,
    }
}

/// Has `stopped` answer a stop, by id.
fn with_two_pods(
    stopped: impl Fn(&str) -> Reply + Send + Sync,
) -> impl Fn(&str, &[u8]) -> Reply + Send + Sync {
    move |method, request| match method {
        "StopContainer" => stopped(&StopContainerRequest::decode(request).unwrap().container_id),
        "StopPodSandbox" => stopped(
            &StopPodSandboxRequest::decode(request)
                .unwrap()
                .pod_sandbox_id,
        ),
        other => two_pods(other).unwrap(),
    }
}

#[tokio::test]
async fn a_pod_is_torn_down_in_order_and_no_other_pod_is() {
    let place = Place::new();
    let stopped = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = Arc::clone(&stopped);
    let script = with_two_pods(move |id| {
        seen.lock().unwrap().push(id.to_owned());
        Reply::of(&Nothing {})
    });
    let _server = Server::start(&place.socket(), script);
    let client = Client::new(&place.socket()).unwrap();
    let done = teardown(&client, "a", Duration::ZERO).await.unwrap();
    let counted = (done.containers, done.ready, done.not_ready);
    assert_eq!(counted, (2, 1, 1));
    let mut stopped = stopped.lock().unwrap().clone();
    stopped[..2].sort_unstable();
    assert_eq!(stopped, ["a-runs", "a-waits", "a-old", "a-new"]);
}

#[tokio::test]
async fn what_is_gone_is_torn_down() {
    let place = Place::new();
    let script = with_two_pods(|_| Reply::Status(5, "not found"));
    let _server = Server::start(&place.socket(), script);
    let client = Client::new(&place.socket()).unwrap();
    teardown(&client, "a", Duration::ZERO).await.unwrap();
    let unknown = teardown(&client, "unknown", Duration::ZERO).await;
    assert_eq!(unknown.unwrap(), TornDown::default());
}

#[tokio::test]
async fn no_sandbox_is_stopped_before_the_containers_are() {
    let place = Place::new();
    let refused = AtomicU32::new(0);
    let script = with_two_pods(move |id| {
        let first = id == "a-runs" && refused.fetch_add(1, Ordering::Relaxed) == 0;
        match first {
            true => Reply::Status(13, "a task that does not die"),
            false => Reply::of(&Nothing {}),
        }
    });
    let server = Server::start(&place.socket(), script);
    let client = Client::new(&place.socket()).unwrap();
    let refused = teardown(&client, "a", Duration::ZERO).await;
    assert!(refused.is_err(), "{refused:?}");
    let calls = server.calls();
    assert!(
        !calls.iter().any(|call| call == "StopPodSandbox"),
        "{calls:?}"
    );
    teardown(&client, "a", Duration::ZERO).await.unwrap();
    let calls = server.calls();
    let first = calls.iter().position(|call| call == "StopPodSandbox");
    let last = calls.iter().rposition(|call| call == "StopContainer");
    assert!(first > last, "{calls:?}");
}

#[tokio::test]
async fn names_come_once_the_runtime_does_and_nothing_is_asked_without_need() {
    let place = Place::new();
    let mut follower = Follower::start(Client::new(&place.socket()).unwrap());
    changed(&mut follower).await;
    assert!(
        follower.names().known().problem.is_some() && follower.names().known().version.is_none()
    );
    let server = Server::start(&place.socket(), |method, _| match method {
        "Version" => version(),
        other => two_pods(other).unwrap(),
    });
    changed(&mut follower).await;
    let known = follower.names().known();
    assert_eq!(known.problem, None);
    assert!(known.state.container("a", "a-new").unwrap().is_sandbox);
    // Only an unknown container causes calls, and these are the lists alone.
    let before = server.calls();
    assert_eq!(before, ["Version", "ListContainers", "ListPodSandbox"]);
    follower.names().seen("a-runs", false);
    follower.names().seen("unknown", false);
    let asked = async {
        while server.calls().len() < before.len() + 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(LONG, asked).await.unwrap();
    assert_eq!(server.calls()[3..5], ["ListContainers", "ListPodSandbox"]);
}

async fn changed(follower: &mut Follower) {
    let changed = tokio::time::timeout(LONG, follower.changed()).await;
    changed.unwrap();
}
