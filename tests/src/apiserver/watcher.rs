//! Watches, and their faults.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::outage::cut;
use super::refusal::Refusal;
use super::route::Query;
use super::store::Wanted;
use super::{Shared, locked};

/// A watch without `timeoutSeconds` takes half an hour to an hour; nothing here takes that long.
const WATCH: Duration = Duration::from_secs(1800);

type Chunks = mpsc::Sender<Result<Bytes, io::Error>>;

pub(super) fn watch(
    shared: &Arc<Shared>,
    wanted: Wanted,
    query: &Query,
) -> Result<Response, Refusal> {
    let from = query.number("resourceVersion");
    let from = from.map_err(|refusal| Refusal::new(500, "", refusal.message))?;
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
        let length = bytes.len() as u64;
        self.shared.watched.fetch_add(length, Ordering::Relaxed);
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
