//! Answers, and their faults.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::check::{about_its_own, named_as};
use super::patch;
use super::refusal::Refusal;
use super::route::{Query, Route, route};
use super::store::{Key, Store, Wanted};
use super::watcher::watch;
use super::{Seen, Shared, locked};

/// The most that a request may carry, as the server's own limit (3 MiB).
const MOST: usize = 3 << 20;

/// What a `continue` begins with.
const PAGE: &str = "page:";

/// Serves until the runtime ends.
pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>) -> io::Result<()> {
    let router = Router::new().fallback(answer).with_state(shared);
    axum::serve(listener, router).await
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    match handle(&shared, request).await {
        Ok(response) => response,
        Err(refusal) => refused(&refusal),
    }
}

fn refused(refusal: &Refusal) -> Response {
    let code = StatusCode::from_u16(refusal.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json_of(code, &refusal.status());
    if let Some(seconds) = refusal.retry_after {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

fn json_of(code: StatusCode, value: &Value) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json")];
    (code, headers, value.to_string()).into_response()
}

async fn handle(shared: &Arc<Shared>, request: Request) -> Result<Response, Refusal> {
    let outage = locked(&shared.manners).outage;
    if let Some(outage) = outage {
        shared.turned_away.fetch_add(1, Ordering::Relaxed);
        return outage.answer().await;
    }
    let (parts, body) = request.into_parts();
    authenticate(shared, &parts.headers)?;
    if let Some(refusal) = locked(&shared.manners).refuse.pop_front() {
        return Err(refusal);
    }
    let (verb, resource, route, query) = route(&parts.method, &parts.uri)?;
    locked(&shared.seen).push(Seen { verb, resource });
    let body = axum::body::to_bytes(body, MOST).await;
    let body = body.map_err(|e| Refusal::new(413, "RequestEntityTooLarge", e.to_string()))?;
    let body = || -> Result<Value, Refusal> {
        serde_json::from_slice(&body).map_err(|e| Refusal::new(400, "BadRequest", e.to_string()))
    };
    let ok = |value: &Value| Ok(json_of(StatusCode::OK, value));
    match route {
        Route::List(wanted) => ok(&list(&locked(&shared.store), &wanted, &query)?),
        Route::Watch(wanted) => watch(shared, wanted, &query),
        Route::Get(key) => ok(locked(&shared.store).get(&key)?),
        Route::Create(resource, namespace) => {
            let mut object = body()?;
            named_as(&object, &namespace, None)?;
            if resource == "pods" {
                object["status"] = json!({"phase": "Pending"});
            }
            if resource == "events" {
                about_its_own(&object, &namespace)?;
            }
            let key = (resource, namespace, name_for(shared, &object)?);
            let made = shared.write(|store| store.create(key, object))?;
            shared.wrote(verb, resource, &made);
            Ok(json_of(StatusCode::CREATED, &made))
        }
        Route::Patch { key, status } => {
            let kind = parts
                .headers
                .get(header::CONTENT_TYPE)
                .and_then(|v| v.to_str().ok());
            let merge = match kind {
                Some("application/merge-patch+json") => patch::merge,
                Some("application/strategic-merge-patch+json") => patch::strategic,
                _ => {
                    let message = format!("this server has no patches of type {kind:?}");
                    return Err(Refusal::new(415, "UnsupportedMediaType", message));
                }
            };
            let after = patched(shared, &key, &body()?, status, merge)?;
            shared.wrote(verb, resource, &after);
            ok(&after)
        }
        Route::Delete(key) => {
            let mut options = body().unwrap_or_default();
            if !query.get("gracePeriodSeconds").is_empty() {
                options["gracePeriodSeconds"] = query.number("gracePeriodSeconds")?.into();
            }
            let deleted = shared.write(|store| delete(store, &key, &options))?;
            shared.wrote(verb, resource, &deleted);
            ok(&deleted)
        }
        Route::TokenReview => {
            let review = locked(&shared.manners).clients.token(body()?)?;
            Ok(json_of(StatusCode::CREATED, &review))
        }
        Route::AccessReview => {
            let review = locked(&shared.manners).clients.access(body()?)?;
            Ok(json_of(StatusCode::CREATED, &review))
        }
        Route::Evict(key) => {
            let deleted = evict(shared, &key, &body()?, query.get("dryRun"))?;
            if let Some(deleted) = deleted {
                shared.wrote(verb, resource, &deleted);
            }
            let done =
                json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201});
            Ok(json_of(StatusCode::CREATED, &done))
        }
    }
}

/// The pod as it is deleted; `None` for a dry run, which asks the budget and the preconditions as well and changes
/// nothing (`pkg/registry/core/pod/storage/eviction.go`).
fn evict(
    shared: &Shared,
    key: &Key,
    eviction: &Value,
    dry_run: &str,
) -> Result<Option<Value>, Refusal> {
    named_as(eviction, &key.1, Some(&key.2))?;
    let options = &eviction["deleteOptions"];
    let is_dry = dry_run == "All" || options["dryRun"] == json!(["All"]);
    let pod = locked(&shared.store).get(key)?.clone();
    let mut manners = locked(&shared.manners);
    if is_dry {
        manners.dry_runs.push(key.2.clone());
    }
    let kept = manners.kept.contains(&key.2).then_some(10);
    let spent = manners.budget_spent.or(kept);
    drop(manners);
    // A pod that has ended is no disruption.
    let has_ended = matches!(
        pod["status"]["phase"].as_str(),
        Some("Succeeded" | "Failed")
    );
    if let Some(seconds) = spent.filter(|_| !has_ended) {
        return Err(Refusal::of_budget(seconds));
    }
    if is_dry {
        // Changes nothing.
        shared.write(|store| store.update(key, &options["preconditions"], |_| {}))?;
        return Ok(None);
    }
    shared.write(|store| delete(store, key, options)).map(Some)
}

fn authenticate(shared: &Shared, headers: &HeaderMap) -> Result<(), Refusal> {
    let manners = locked(&shared.manners);
    let token = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let token = token.and_then(|value| value.strip_prefix("Bearer "));
    if manners.tokens.is_empty() || token.is_some_and(|token| manners.tokens.contains(token)) {
        return Ok(());
    }
    Err(Refusal::new(401, "Unauthorized", "Unauthorized"))
}

/// `metadata.name`, or one made of `metadata.generateName`.
fn name_for(shared: &Shared, object: &Value) -> Result<String, Refusal> {
    let text = |field: &str| {
        object["metadata"][field]
            .as_str()
            .filter(|text| !text.is_empty())
    };
    match (text("name"), text("generateName")) {
        (Some(name), _) => Ok(name.to_owned()),
        (None, Some(prefix)) => Ok(format!("{prefix}{}", locked(&shared.store).version() + 1)),
        (None, None) => {
            let message = "name or generateName is required";
            Err(Refusal::new(422, "Invalid", message))
        }
    }
}

fn list(store: &Store, wanted: &Wanted, query: &Query) -> Result<Value, Refusal> {
    let all = store.list(wanted, query.number("resourceVersion")?)?;
    let mut metadata = json!({"resourceVersion": store.version().to_string()});
    let limit = usize::try_from(query.number("limit")?).unwrap_or(usize::MAX);
    // What may be of any version comes from the cache, whole.
    let paged = limit > 0 && query.get("resourceVersion") != "0";
    let start = match query.get("continue") {
        "" => "",
        page => page
            .strip_prefix(PAGE)
            .ok_or_else(|| Refusal::new(400, "BadRequest", "continue key is not valid"))?,
    };
    let after = all
        .into_iter()
        .skip_while(|(key, _)| paged && !start.is_empty() && place(key).as_str() <= start);
    let mut items: Vec<(Key, Value)> = after.collect();
    if paged && items.len() > limit {
        // What a selector leaves out is not counted.
        if query.get("fieldSelector").is_empty() {
            metadata["remainingItemCount"] = (items.len() - limit).into();
        }
        items.truncate(limit);
        let last = items.last().map(|(key, _)| place(key));
        metadata["continue"] = last.map(|last| format!("{PAGE}{last}")).into();
    }
    let bare = |(_, mut object): (Key, Value)| {
        // The list says it for all.
        if let Some(fields) = object.as_object_mut() {
            fields.remove("kind");
            fields.remove("apiVersion");
        }
        object
    };
    let items: Vec<Value> = items.into_iter().map(bare).collect();
    let kind = wanted.list_kind();
    Ok(json!({"kind": kind, "apiVersion": "v1", "metadata": metadata, "items": items}))
}

fn place((_, namespace, name): &Key) -> String {
    format!("{namespace}/{name}")
}

/// A server keeps no empty map.
fn without_empty(object: &mut Value) {
    let Some(metadata) = object["metadata"].as_object_mut() else {
        return;
    };
    metadata.retain(|field, value| {
        let map = matches!(field.as_str(), "labels" | "annotations");
        !(map && value.as_object().is_none_or(serde_json::Map::is_empty))
    });
}

/// The status of an object and the rest of it are changed apart.
fn patched(
    shared: &Shared,
    key: &Key,
    patch: &Value,
    status: bool,
    merge: fn(&mut Value, &Value),
) -> Result<Value, Refusal> {
    let version = json!({"resourceVersion": patch["metadata"]["resourceVersion"]});
    shared.write(|store| {
        // A version is looked at first; a uid is a field that no patch changes.
        let object = store.update(key, &version, |_| {})?;
        let uid = &patch["metadata"]["uid"];
        if !uid.is_null() && *uid != object["metadata"]["uid"] {
            let message = format!("metadata.uid: Invalid value: {uid}: field is immutable");
            return Err(Refusal::new(422, "Invalid", message));
        }
        store.update(key, &version, |object| {
            let before = object.clone();
            merge(object, patch);
            if status {
                // Labels and annotations go with either.
                let changed = object.clone();
                *object = before;
                object["status"] = changed["status"].clone();
                for field in ["labels", "annotations"] {
                    object["metadata"][field] = changed["metadata"][field].clone();
                }
            } else {
                object["status"] = before["status"].clone();
                object["metadata"]["uid"] = before["metadata"]["uid"].clone();
            }
            without_empty(object);
        })
    })
}

/// A pod with time left is marked first; its kubelet removes it with a grace of nothing.
fn delete(store: &mut Store, key: &Key, options: &Value) -> Result<Value, Refusal> {
    let preconditions = options["preconditions"].clone();
    let object = store.update(key, &preconditions, |_| {})?;
    let grace = options["gracePeriodSeconds"].as_u64();
    let grace = grace.or(object["spec"]["terminationGracePeriodSeconds"].as_u64());
    let seconds = if key.0 == "pods" {
        grace.unwrap_or(30)
    } else {
        0
    };
    let marked = store.update(key, &preconditions, |object| {
        let metadata = &mut object["metadata"];
        if metadata["deletionTimestamp"].is_null() {
            metadata["deletionTimestamp"] = jiff::Timestamp::now().to_string().into();
        }
        metadata["deletionGracePeriodSeconds"] = seconds.into();
    });
    if seconds == 0 {
        return store.remove(key);
    }
    marked
}
