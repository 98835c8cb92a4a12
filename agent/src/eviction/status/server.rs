//! Requests to the API server: what is asked, and what is answered.

use std::time::Duration;

use axum::http;
use http_body_util::{BodyExt as _, Limited};
use kube::{
    Client,
    client::Body,
    core::{
        Request,
        params::{GetParams, Patch, PatchParams, PostParams},
    },
};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Mutex;

use crate::{
    base::error::chain,
    eviction::pod_workers::JobError,
    pods::{Apiserver, apiserver::connect},
};

/// An answer has this long to come whole.
const TIME: Duration = Duration::from_secs(15);

/// The same where the answer is of no use later.
const SHORT_TIME: Duration = Duration::from_secs(3);

/// `DisruptionBudgetCause` of Kubernetes `k8s.io/api/policy/v1`.
const BUDGET_CAUSE: &str = "DisruptionBudget";

/// The most that an answer may have: what an object may have in etcd, and something for its fields' history.
const LARGEST: usize = 4 << 20;

/// An answer that is no success.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Refusal {
    /// HTTP status.
    #[serde(skip)]
    pub(super) code: u16,
    /// Of the `Status`; empty where none came.
    pub(super) reason: String,
    /// What is wrong.
    pub(super) message: String,
    /// What it is about.
    details: Option<Details>,
    /// When to come again, if the server said so.
    #[serde(skip)]
    pub(super) wait: Option<Duration>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Details {
    kind: String,
    causes: Vec<Cause>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Cause {
    reason: String,
    message: String,
}

impl Refusal {
    pub(super) fn of(code: u16, wait: Option<Duration>, text: &[u8]) -> Self {
        // What stands between may answer with something else.
        let refusal: Self = serde_json::from_slice(text).unwrap_or_else(|_| Self {
            message: String::from_utf8_lossy(&text[..text.len().min(200)]).into_owned(),
            ..Self::default()
        });
        Self {
            code,
            wait,
            ..refusal
        }
    }

    /// The object is there already.
    pub(super) fn already_exists(&self) -> bool {
        self.code == 409 && self.reason == "AlreadyExists"
    }

    /// Why a disruption budget refuses an eviction; `None` where something else does
    /// (`pkg/registry/core/pod/storage/eviction.go` of Kubernetes).
    pub(super) fn of_budget(&self) -> Option<&str> {
        let details = self.details.as_ref();
        let causes = details.map_or(&[][..], |details| &details.causes);
        let cause = causes.iter().find(|cause| cause.reason == BUDGET_CAUSE);
        let of_budget = match self.code {
            429 => cause.is_some(),
            // A budget whose figures make no sense.
            403 => details.is_some_and(|details| details.kind == "poddisruptionbudget"),
            // The server does not say which of them counts.
            500 => self.message.contains("more than one PodDisruptionBudget"),
            _ => false,
        };
        let message = cause.map_or(self.message.as_str(), |cause| &cause.message);
        of_budget.then_some(message)
    }

    /// True where the same request can never succeed.
    pub(super) fn for_good(&self) -> bool {
        matches!(self.code, 400 | 405 | 406 | 413 | 415 | 422)
    }

    /// One sentence.
    pub(super) fn sentence(&self, asked: &str) -> String {
        let Self {
            code,
            reason,
            message,
            ..
        } = self;
        let said = if message.is_empty() { reason } else { message };
        let remedy = match code {
            401 => "; the token or certificate is not known there or has expired; renew it",
            403 => {
                "; grant it to this user (deploy/kubernetes/podwarden.yaml has all that is needed)"
            }
            404 if asked == PATCH_NODE || asked == GET_NODE => {
                "; set nodeName to what this node is called there"
            }
            _ => "",
        };
        format!("the API server answered {code} to {asked} ({said}){remedy}")
    }

    /// To be tried again.
    pub(crate) fn failure(&self, asked: &str) -> JobError {
        JobError {
            problem: self.sentence(asked),
            wait: self.wait,
        }
    }
}

/// An answer, or none.
pub(crate) type Answer = Result<Result<Vec<u8>, Refusal>, JobError>;

pub(crate) struct Server {
    apiserver: Apiserver,
    connection: Mutex<Option<(Client, String)>>,
}

impl Server {
    /// Nothing is connected yet.
    pub(crate) fn new(apiserver: Apiserver) -> Self {
        Self {
            apiserver,
            connection: Mutex::default(),
        }
    }

    pub(super) async fn pod(&self, namespace: &str, name: &str) -> Answer {
        let request = Request::new(pods(namespace)).get(name, &GetParams::default());
        self.ask(request, GET).await
    }

    /// A patch of a pod's status.
    pub(super) async fn patch_status(&self, namespace: &str, name: &str, patch: &Value) -> Answer {
        self.ask(status_patch(pods(namespace), name, patch), PATCH)
            .await
    }

    pub(crate) async fn patch_node_status(&self, name: &str, patch: &Value) -> Answer {
        self.ask(status_patch(NODES, name, patch), PATCH_NODE).await
    }

    pub(super) async fn node(&self, name: &str) -> Answer {
        let request = Request::new(NODES).get(name, &GetParams::default());
        self.ask(request, GET_NODE).await
    }

    /// The same; `None` where there is none, or this agent may not read it.
    pub(super) async fn node_if_readable(&self, name: &str) -> Result<Option<Value>, JobError> {
        let text = match self.node(name).await? {
            Err(refusal) if matches!(refusal.code, 403 | 404) => return Ok(None),
            answer => answer.map_err(|refusal| refusal.failure(GET_NODE))?,
        };
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|error| not_a_node(&error))
    }

    /// A merge patch of a node.
    pub(super) async fn patch_node(&self, name: &str, patch: &Value) -> Answer {
        let patch = Patch::Merge(patch);
        let request = Request::new(NODES).patch(name, &patched(), &patch);
        self.ask(request, PATCH_TAINTS).await
    }

    /// An eviction of a pod.
    pub(super) async fn evict(&self, namespace: &str, name: &str, eviction: &Value) -> Answer {
        let request = eviction_of(namespace, name, &posted(), eviction);
        self.ask(request, EVICT).await
    }

    /// The same without effect, for `eviction` with a `dryRun`.
    pub(super) async fn ask_to_evict(
        &self,
        namespace: &str,
        name: &str,
        eviction: &Value,
    ) -> Answer {
        let request = eviction_of(namespace, name, &PostParams::default(), eviction);
        self.ask_within(request, ASK_TO_EVICT, SHORT_TIME).await
    }

    /// A new Event.
    pub(super) async fn tell(&self, namespace: &str, event: &Value) -> Answer {
        let path = format!("/api/v1/namespaces/{namespace}/events");
        let text = event.to_string().into_bytes();
        let request = Request::new(path).create(&posted(), text);
        self.ask(request, TELL).await
    }

    /// An object that the server answers and does not keep, such as a review.
    pub(crate) async fn create(&self, path: &str, object: &Value, asked: &str) -> Answer {
        let text = object.to_string().into_bytes();
        let request = Request::new(path).create(&PostParams::default(), text);
        self.ask(request, asked).await
    }

    async fn ask(&self, request: HttpRequest, asked: &str) -> Answer {
        self.ask_within(request, asked, TIME).await
    }

    async fn ask_within(&self, request: HttpRequest, asked: &str, time: Duration) -> Answer {
        let request = request
            .map_err(|error| JobError::new(format!("cannot build {asked} ({})", chain(&error))))?;
        let (client, url) = self.client().await?;
        let answered = tokio::time::timeout(time, send(&client, request)).await;
        let problem = match answered {
            Ok(Ok(Err(refusal))) if refusal.code == 401 => {
                // With another token, should there be one.
                self.connection.lock().await.take();
                return Ok(Err(refusal));
            }
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(problem)) => problem,
            Err(_) => format!("no answer within {} s", time.as_secs()),
        };
        self.connection.lock().await.take();
        Err(JobError::new(format!(
            "the API server {url} cannot be asked for {asked} ({problem})"
        )))
    }

    async fn client(&self) -> Result<(Client, String), JobError> {
        let mut connection = self.connection.lock().await;
        if let Some(connection) = &*connection {
            return Ok(connection.clone());
        }
        let made = connect::client(&self.apiserver).await;
        let made = made.map_err(|error| JobError::new(chain(&error)))?;
        Ok(connection.insert(made).clone())
    }
}

// The requests, for error texts.
pub(super) const GET: &str = "a get of the pod";
pub(super) const PATCH: &str = "a patch of the pod's status";
pub(crate) const PATCH_NODE: &str = "a patch of the node's status";
pub(super) const GET_NODE: &str = "a get of the node";
pub(super) const PATCH_TAINTS: &str = "a patch of the node's taints";
pub(super) const EVICT: &str = "an eviction of the pod";
pub(super) const ASK_TO_EVICT: &str = "a dry run of an eviction of the pod";
pub(super) const TELL: &str = "a new Event";

/// The answer to [`GET_NODE`] is no Node.
pub(super) fn not_a_node(error: &serde_json::Error) -> JobError {
    JobError::new(format!(
        "the API server's answer to {GET_NODE} is not one ({error})"
    ))
}

const NODES: &str = "/api/v1/nodes";

/// Whose writes they are, in the objects' `managedFields`.
pub(crate) const MANAGER: &str = "podwarden";

fn patched() -> PatchParams {
    PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

fn posted() -> PostParams {
    PostParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PostParams::default()
    }
}

/// As [`Request`] builds it.
type HttpRequest = Result<http::Request<Vec<u8>>, kube::core::request::Error>;

fn status_patch(path: impl Into<String>, name: &str, patch: &Value) -> HttpRequest {
    let patch = Patch::Strategic(patch);
    Request::new(path).patch_subresource("status", name, &patched(), &patch)
}

fn eviction_of(namespace: &str, name: &str, params: &PostParams, eviction: &Value) -> HttpRequest {
    let text = eviction.to_string().into_bytes();
    Request::new(pods(namespace)).create_subresource("eviction", name, params, text)
}

fn pods(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

async fn send(
    client: &Client,
    request: http::Request<Vec<u8>>,
) -> Result<Result<Vec<u8>, Refusal>, String> {
    let answer = client.send(request.map(Body::from)).await;
    let (head, body) = answer.map_err(|error| chain(&error))?.into_parts();
    let body = Limited::new(body, LARGEST).collect().await;
    let text = body.map_err(|error| error.to_string())?.to_bytes();
    if head.status.is_success() {
        return Ok(Ok(text.into()));
    }
    // Seconds; what stands between may write a date, which is not respected.
    let wait = head.headers.get(http::header::RETRY_AFTER);
    let wait = wait.and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let wait = wait.map(Duration::from_secs);
    Ok(Err(Refusal::of(head.status.as_u16(), wait, &text)))
}
