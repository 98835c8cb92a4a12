//! Answers, watches, and their faults.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::check::{about_its_own, named_as};
use super::outage::cut;
use super::patch;
use super::refusal::Refusal;
use super::route::{Query, Route, route};
use super::store::{Key, Store, Wanted};
use super::{Seen, Shared, locked};

/// The most that a request may carry, as the server's own limit (3 MiB).
const MOST: usize = 3 << 20;

/// A watch without `timeoutSeconds` takes half an hour to an hour; nothing here takes that long.
const WATCH: Duration = Duration::from_secs(1800);

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
            let object = body()?;
            named_as(&object, &namespace, None)?;
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
            let options = body().unwrap_or_default();
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
            if let Some(seconds) = locked(&shared.manners).budget_spent {
                let message = "Cannot evict pod as it would violate the pod's disruption budget.";
                return Err(Refusal {
                    retry_after: Some(seconds),
                    ..Refusal::new(429, "TooManyRequests", message)
                });
            }
            let eviction = body()?;
            named_as(&eviction, &key.1, Some(&key.2))?;
            let options = eviction["deleteOptions"].clone();
            let deleted = shared.write(|store| delete(store, &key, &options))?;
            shared.wrote(verb, resource, &deleted);
            let done =
                json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201});
            Ok(json_of(StatusCode::CREATED, &done))
        }
    }
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
    let start = query.get("continue");
    let after = all
        .into_iter()
        .skip_while(|(key, _)| paged && !start.is_empty() && place(key).as_str() <= start);
    let mut items: Vec<(Key, Value)> = after.collect();
    if paged && items.len() > limit {
        let remaining = items.len() - limit;
        items.truncate(limit);
        metadata["remainingItemCount"] = remaining.into();
        metadata["continue"] = items.last().map(|(key, _)| place(key)).into();
    }
    let items: Vec<Value> = items.into_iter().map(|(_, object)| object).collect();
    Ok(json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items}))
}

fn place((_, namespace, name): &Key) -> String {
    format!("{namespace}/{name}")
}

/// The status of an object and the rest of it are changed apart.
fn patched(
    shared: &Shared,
    key: &Key,
    patch: &Value,
    status: bool,
    merge: fn(&mut Value, &Value),
) -> Result<Value, Refusal> {
    let preconditions = json!({
        "uid": patch["metadata"]["uid"],
        "resourceVersion": patch["metadata"]["resourceVersion"],
    });
    shared.write(|store| {
        store.update(key, &preconditions, |object| {
            let before = object.clone();
            merge(object, patch);
            if status {
                let changed = object["status"].take();
                *object = before;
                object["status"] = changed;
            } else {
                object["status"] = before["status"].clone();
                object["metadata"]["uid"] = before["metadata"]["uid"].clone();
            }
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
    if seconds == 0 {
        return store.remove(key);
    }
    store.update(key, &preconditions, |object| {
        let metadata = &mut object["metadata"];
        if metadata["deletionTimestamp"].is_null() {
            metadata["deletionTimestamp"] = jiff::Timestamp::now().to_string().into();
        }
        metadata["deletionGracePeriodSeconds"] = seconds.into();
    })
}

type Chunks = mpsc::Sender<Result<Bytes, io::Error>>;

fn watch(shared: &Arc<Shared>, wanted: Wanted, query: &Query) -> Result<Response, Refusal> {
    let from = query.number("resourceVersion")?;
    let seconds = query.number("timeoutSeconds")?;
    let time = if seconds == 0 {
        WATCH
    } else {
        Duration::from_secs(seconds)
    };
    // A version of the future is refused at once; one that is compacted is said in the watch.
    locked(&shared.store).has_seen(from)?;
    let (chunks, mut receiver) = mpsc::channel(16);
    let watcher = Watcher {
        shared: Arc::clone(shared),
        wanted,
        from,
        bookmarks: query.flag("allowWatchBookmarks"),
        chunks,
        left: locked(&shared.manners)
            .cut_after
            .map(|most| fastrand::u32(0..=most)),
    };
    tokio::spawn(async move {
        // Whether the client is gone or the watch was cut, the watch is over.
        let _ = tokio::time::timeout(time, watcher.run()).await;
    });
    let stream = futures_util::stream::poll_fn(move |context| receiver.poll_recv(context));
    let headers = [(header::CONTENT_TYPE, "application/json")];
    Ok((headers, Body::from_stream(stream)).into_response())
}

struct Watcher {
    shared: Arc<Shared>,
    wanted: Wanted,
    from: u64,
    bookmarks: bool,
    chunks: Chunks,
    /// Events until it is cut.
    left: Option<u32>,
}

/// The watch is over.
struct Over;

impl Watcher {
    async fn run(mut self) -> Result<(), Over> {
        let mut version = self.shared.version.subscribe();
        if self.from == 0 {
            self.all().await?;
        }
        let can_begin = locked(&self.shared.store).can_begin(self.from);
        if let Err(refusal) = can_begin {
            self.tell("ERROR", &refusal.status()).await?;
            return Err(Over);
        }
        let every = locked(&self.shared.manners).bookmarks;
        let mut next = Instant::now() + every;
        loop {
            version.borrow_and_update();
            self.news().await?;
            tokio::select! {
                changed = version.changed() => changed.map_err(|_| Over)?,
                () = sleep_until(next) => {
                    next = Instant::now() + every;
                    if self.bookmarks {
                        let object = json!({
                            "kind": "Pod", "apiVersion": "v1",
                            "metadata": {"resourceVersion": self.from.to_string(), "creationTimestamp": null},
                        });
                        self.tell("BOOKMARK", &object).await?;
                    }
                }
                () = self.chunks.closed() => return Err(Over),
            }
        }
    }

    /// From version 0 a watch begins with all that there is.
    async fn all(&mut self) -> Result<(), Over> {
        let (all, version) = {
            let store = locked(&self.shared.store);
            (store.list(&self.wanted, 0), store.version())
        };
        for (_, object) in all.unwrap_or_default() {
            self.tell("ADDED", &object).await?;
        }
        self.from = version;
        Ok(())
    }

    /// What happened since.
    async fn news(&mut self) -> Result<(), Over> {
        let (events, version) = {
            let store = locked(&self.shared.store);
            (store.since(&self.wanted, self.from), store.version())
        };
        for (kind, object) in events {
            let (late, repeat) = {
                let manners = locked(&self.shared.manners);
                (manners.late, manners.repeat && fastrand::bool())
            };
            sleep(late).await;
            self.tell(kind, &object).await?;
            if repeat {
                self.tell(kind, &object).await?;
            }
        }
        self.from = version;
        Ok(())
    }

    /// One line, in chunks of any size; or a part of it, and the end.
    async fn tell(&mut self, kind: &str, object: &Value) -> Result<(), Over> {
        let line = format!("{}\n", json!({"type": kind, "object": object}));
        let mut bytes = Bytes::from(line);
        let cut_here = self.left == Some(0);
        self.left = self.left.map(|left| left.saturating_sub(1));
        if cut_here {
            // Before the line, or in the middle of it.
            bytes.truncate(fastrand::usize(0..bytes.len()));
        }
        while !bytes.is_empty() {
            let part = bytes.split_to(fastrand::usize(1..=bytes.len()));
            self.chunks.send(Ok(part)).await.map_err(|_| Over)?;
        }
        if cut_here {
            // The end of the answer, or that of the connection.
            if fastrand::bool() {
                let _ = self.chunks.send(Err(cut())).await;
            }
            return Err(Over);
        }
        Ok(())
    }
}
