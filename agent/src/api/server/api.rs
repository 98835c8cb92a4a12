//! Handlers for node, pods, plan and health, and the form of errors.

use axum::{
    Json,
    extract::{Path, Query, State, rejection::QueryRejection},
    http::{Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use jiff::Timestamp;
use podwarden_policy::colocation::{reclaimed::Inputs, strategies::Strategies};
use tokio::sync::Semaphore;

use super::Shared;
use crate::{
    api::{
        published::Published,
        types::{ErrorBody, NodeStats, PodList},
    },
    hierarchy::recorded::Recorded,
};

/// An answer with a status of 400 or above.
#[derive(Debug)]
pub(super) struct ErrorResponse(StatusCode, String);

impl ErrorResponse {
    pub(super) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self(status, text.into())
    }
}

impl IntoResponse for ErrorResponse {
    fn into_response(self) -> Response {
        (self.0, Json(ErrorBody { error: self.1 })).into_response()
    }
}

/// What a request's query asks for; `known` says which keys there are.
pub(super) fn query<T>(
    asked: Result<Query<T>, QueryRejection>,
    known: &str,
) -> Result<T, ErrorResponse> {
    let refused = |e| ErrorResponse::new(StatusCode::BAD_REQUEST, format!("{e}; known {known}"));
    asked.map(|Query(asked)| asked).map_err(refused)
}

pub(super) async fn node(State(shared): State<Shared>) -> Response {
    Json(node_of(&shared, &shared.published.figures().node)).into_response()
}

/// The node's figures with what is counted as it happens.
pub(super) fn node_of(shared: &Shared, node: &NodeStats) -> NodeStats {
    if shared.published.is_recorded() {
        return node.clone();
    }
    let done = shared.published.done();
    let event_log = shared.published.event_log();
    let mut degradations = node.degradations.clone();
    degradations.extend(event_log.as_ref().and_then(|log| log.failing.clone()));
    NodeStats {
        degradations,
        event_log,
        eviction_status: shared.published.eviction_status(),
        pod_sources: shared.published.sources().to_vec(),
        cgroup_writes: done.writes(),
        reconciles: done.reconciles(),
        last_reconcile: done.last().copied(),
        ..node.clone()
    }
}

/// How pods are asked for.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct AskedPods {
    /// Put the highest memory usage since then beside the pods' memory: a time as in an answer.
    peak_since: Option<String>,
}

/// The time of `peakSince`, where that is given.
fn peak_since(
    asked: Result<Query<AskedPods>, QueryRejection>,
) -> Result<Option<Timestamp>, ErrorResponse> {
    let refused = |text| ErrorResponse::new(StatusCode::BAD_REQUEST, text);
    let time = query(asked, "is peakSince=TIME")?.peak_since.map(|text| {
        text.parse().map_err(|e| {
            refused(format!(
                "peakSince={text:?}: {e}; give the newest `time` of a former answer, RFC 3339 with its zone"
            ))
        })
    });
    time.transpose()
}

pub(super) async fn pods(
    State(shared): State<Shared>,
    asked: Result<Query<AskedPods>, QueryRejection>,
) -> Result<Response, ErrorResponse> {
    if let Some(time) = peak_since(asked)? {
        let figures = shared.published.figures();
        let pods = shared.published.with_peaks(figures.pods.clone(), time);
        return Ok(Json(PodList { pods }).into_response());
    }
    let figures = shared.published.figures_to_list();
    let json = figures
        .listed()
        .map_err(|e| ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], json).into_response())
}

pub(super) async fn pod(
    State(shared): State<Shared>,
    Path(uid): Path<String>,
    asked: Result<Query<AskedPods>, QueryRejection>,
) -> Result<Response, ErrorResponse> {
    let peak_since = peak_since(asked)?;
    let figures = shared.published.figures();
    let found = figures.pods.iter().find(|pod| *pod.pod_ref.uid == *uid);
    let Some(pod) = found else {
        return Err(ErrorResponse::new(
            StatusCode::NOT_FOUND,
            format!("no pod with uid {uid:?} is known here; GET /v1/pods lists those that are"),
        ));
    };
    Ok(match peak_since {
        None => Json(pod).into_response(),
        Some(time) => {
            let with = shared.published.with_peaks(vec![pod.clone()], time);
            Json(with.first()).into_response()
        }
    })
}

/// One at a time: the whole plan is read for it.
static EXPLAINING: Semaphore = Semaphore::const_new(1);

/// What `podwarden explain -o json` prints.
pub(super) async fn explain(
    State(shared): State<Shared>,
    Path(uid): Path<String>,
) -> Result<Response, ErrorResponse> {
    let (Some(planned), Some(presenter)) =
        (shared.published.planned(), shared.published.presenter())
    else {
        return Err(nothing_planned());
    };
    // Never closed.
    let _turn = EXPLAINING.acquire().await;
    let explain = presenter.explain;
    let explained = tokio::task::spawn_blocking(move || explain(&planned, &uid)).await;
    let json = explained
        .map_err(|e| ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))?
        .map_err(|e| ErrorResponse::new(StatusCode::NOT_FOUND, e))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], json).into_response())
}

fn nothing_planned() -> ErrorResponse {
    ErrorResponse::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "nothing has been planned yet; ask again once /readyz answers 200",
    )
}

/// What a plan is made from, and beside it what the node offers and what the CPU strategies go by.
#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    #[serde(flatten)]
    planned: &'a Recorded,
    #[serde(skip_serializing_if = "Option::is_none")]
    reclaimed: Option<&'a Inputs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_strategies: Option<&'a Strategies>,
}

pub(super) async fn plan(State(shared): State<Shared>) -> Result<Response, ErrorResponse> {
    let planned = shared.published.planned();
    let figures = shared.published.latest();
    planned
        .map(|planned| {
            Json(Answer {
                planned: &planned,
                reclaimed: figures.reclaimed.as_deref(),
                cpu_strategies: figures.cpu_strategies.as_deref(),
            })
            .into_response()
        })
        .ok_or_else(nothing_planned)
}

pub(super) async fn healthz(State(shared): State<Shared>) -> Result<Response, ErrorResponse> {
    health_of(&shared.published)
}

pub(super) fn health_of(published: &Published) -> Result<Response, ErrorResponse> {
    match published.trouble() {
        None => Ok(plain("ok\n".to_owned())),
        Some(trouble) => Err(ErrorResponse::new(StatusCode::SERVICE_UNAVAILABLE, trouble)),
    }
}

pub(super) async fn readyz(State(shared): State<Shared>) -> Result<Response, ErrorResponse> {
    readiness_of(&shared.published)
}

pub(super) fn readiness_of(published: &Published) -> Result<Response, ErrorResponse> {
    match published.ready() {
        Ok(()) => Ok(plain("ok\n".to_owned())),
        Err(why) => Err(ErrorResponse::new(StatusCode::SERVICE_UNAVAILABLE, why)),
    }
}

pub(super) async fn no_such_route(uri: Uri) -> ErrorResponse {
    ErrorResponse::new(
        StatusCode::NOT_FOUND,
        format!(
            "no such path: {}; there are /, /v1/node, /v1/pods, /v1/pods/{{uid}}, \
             /v1/pods/{{uid}}/explain, /v1/plan, /v1/live, /v1/events, /v1/events/{{id}}, /stats/summary, \
             /metrics, /healthz and /readyz",
            uri.path()
        ),
    )
}

pub(super) async fn no_such_method(method: Method, uri: Uri) -> ErrorResponse {
    ErrorResponse::new(
        StatusCode::METHOD_NOT_ALLOWED,
        format!("{method} {}: the API is read-only; use GET", uri.path()),
    )
}

pub(super) fn plain(text: String) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}
