//! `/v1/events`: the kept events as a JSON array, or a stream.

use std::{collections::VecDeque, convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Extension, Json,
    extract::{Path, Query, State, rejection::QueryRejection},
    http::{HeaderMap, StatusCode, header},
    response::{
        IntoResponse, Response,
        sse::{Event as Frame, KeepAlive, Sse},
    },
};
use futures_util::stream::{self, Stream};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, broadcast, watch};

use super::{
    Shared,
    api::{ErrorResponse, query},
    closed,
    connections::Progress,
};
use crate::{
    api::{
        published::{Presenter, Published},
        types::{Event, EventRecord},
    },
    eviction::recorder::log,
};

/// Often enough that a proxy or a client's idle timeout does not end a quiet stream.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Data of the stream's `missed` message: events that this reader will not get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missed {
    pub missed: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    /// Only events with a higher id.
    after: Option<u64>,
    /// Stream, as `Accept: text/event-stream` does.
    #[serde(default)]
    follow: bool,
    /// Begin with this many of each group: decisions, changes, exits. Without it, with all that are kept.
    last: Option<usize>,
    /// Put each event in words, too: `text`.
    #[serde(default)]
    text: bool,
}

/// How one event is asked for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AskedOne {
    #[serde(default)]
    text: bool,
}

/// An event, and where it is asked for in words.
#[derive(Debug, Serialize)]
struct Worded<T> {
    #[serde(flatten)]
    event: T,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

impl<T> Worded<T> {
    fn new(event: T, of: &Event, presenter: Option<&Presenter>) -> Self {
        let text = presenter.map(|presenter| (presenter.sentence)(of));
        Self { event, text }
    }
}

pub(super) async fn events(
    State(shared): State<Shared>,
    Extension(progress): Extension<Arc<Progress>>,
    headers: HeaderMap,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Response, ErrorResponse> {
    let known = "are after=ID, last=N, text=true|false and follow=true|false";
    let asked = query(asked, known)?;
    if !asked.follow && !accepts_stream(&headers) {
        let most = asked.last.unwrap_or(usize::MAX);
        let (kept, _) = shared.published.last_events(asked.after.unwrap_or(0), most);
        let presenter = shared.published.presenter().filter(|_| asked.text);
        let kept = kept
            .iter()
            .map(|event| Worded::new(&**event, event, presenter));
        return Ok(Json(kept.collect::<Vec<_>>()).into_response());
    }
    // A browser that reconnects repeats the URL; what it has seen since then is in the header.
    let after = last_event_id(&headers)?.or(asked.after);
    let place = place(&shared)?;
    progress.follows();
    let follower = Follower::new(shared, after, &asked, place);
    Ok(Sse::new(follower.into_stream())
        .keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
        .into_response())
}

/// A stream's place, for as long as the permit is kept.
pub(super) fn place(shared: &Shared) -> Result<OwnedSemaphorePermit, ErrorResponse> {
    let place = Arc::clone(&shared.followers).try_acquire_owned();
    place.map_err(|_| {
        ErrorResponse::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "as many clients follow events or figures as this agent serves; end one, or ask without follow",
        )
    })
}

/// One event, with what the flight recorder has of it: from memory, else from the event log.
pub(super) async fn event(
    State(shared): State<Shared>,
    Path(id): Path<String>,
    asked: Result<Query<AskedOne>, QueryRejection>,
) -> Result<Response, ErrorResponse> {
    let asked = query(asked, "is text=true|false")?;
    let presenter = shared.published.presenter().filter(|_| asked.text);
    let answer =
        |record: &EventRecord| Json(Worded::new(record, &record.event, presenter)).into_response();
    let number = id.parse().map_err(|_| {
        let text = format!("{id:?} is not the id of an event (a whole number)");
        ErrorResponse::new(StatusCode::BAD_REQUEST, text)
    })?;
    let known = shared.published.record(number);
    if let Some(record) = known
        .as_ref()
        .filter(|record| record.flight_record.is_some())
    {
        return Ok(answer(record));
    }
    let logged = match shared.published.event_log() {
        Some(log) => from_log(log.path, number).await?,
        None => None,
    };
    logged
        .or(known)
        .map(|record| answer(&record))
        .ok_or_else(|| {
            let text = format!(
                "event {number} is not kept any more, or there was none; GET /v1/events lists those that are"
            );
            ErrorResponse::new(StatusCode::NOT_FOUND, text)
        })
}

/// Reads the whole file, on a thread that may.
async fn from_log(path: String, id: u64) -> Result<Option<EventRecord>, ErrorResponse> {
    let failed = |problem: &dyn std::fmt::Display| {
        let text = format!("the event log {path} cannot be read: {problem}");
        ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    };
    let file = path.clone();
    let read = tokio::task::spawn_blocking(move || log::find(file.as_ref(), id)).await;
    let (found, _) = read.map_err(|e| failed(&e))?.map_err(|e| failed(&e))?;
    Ok(found)
}

fn accepts_stream(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|range| range.split(';').next())
        .any(|kind| kind.trim().eq_ignore_ascii_case("text/event-stream"))
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, ErrorResponse> {
    let Some(value) = headers.get("last-event-id").filter(|v| !v.is_empty()) else {
        return Ok(None);
    };
    let id = value.to_str().ok().and_then(|text| text.parse().ok());
    id.map(Some).ok_or_else(|| {
        ErrorResponse::new(
            StatusCode::BAD_REQUEST,
            format!("Last-Event-ID: {value:?} is not the id of an event (a whole number)"),
        )
    })
}

/// One reader of the stream.
struct Follower {
    published: Arc<Published>,
    /// Told first: how many events are gone for good.
    missed: u64,
    backlog: VecDeque<Arc<Event>>,
    live: broadcast::Receiver<Arc<Event>>,
    /// The last id that it was told, or that it has missed.
    seen: u64,
    /// It is told events in words, too.
    text: bool,
    closing: watch::Receiver<bool>,
    /// Given back with the end of the stream.
    _place: OwnedSemaphorePermit,
}

impl Follower {
    fn new(shared: Shared, after: Option<u64>, asked: &Asked, place: OwnedSemaphorePermit) -> Self {
        let published = shared.published;
        let mut from = after.unwrap_or(0);
        if after.is_some_and(|after| after > published.last_id()) {
            // Without an event log ids start at 1 with the agent. One from the future belongs to its
            // predecessor: the reader has seen nothing of this one.
            from = 0;
        }
        // What a reader has seen counts; it wants the rest whole.
        let most = asked.last.filter(|_| after.is_none());
        let (kept, live) = published.last_events(from, most.unwrap_or(usize::MAX));
        // Only a client that sends its last id can have missed events. What an agent before this one did not
        // keep is not known, nor are its ids without a gap.
        let missed = match after {
            Some(_) if from > 0 => missing(&published, from, &kept),
            _ => 0,
        };
        Self {
            published,
            missed,
            backlog: kept.into(),
            live,
            seen: from,
            text: asked.text,
            closing: shared.closing,
            _place: place,
        }
    }

    /// It was too slow for the channel: what is still kept is not lost.
    fn catch_up(&mut self) {
        let (kept, live) = self.published.events_after(self.seen);
        self.missed = missing(&self.published, self.seen, &kept);
        (self.backlog, self.live) = (kept.into(), live);
    }

    fn frame(&self, event: &Event) -> Frame {
        let presenter = self.published.presenter().filter(|_| self.text);
        let worded = Worded::new(event, event, presenter);
        data(Frame::default().id(event.id.to_string()), &worded)
    }

    fn into_stream(self) -> impl Stream<Item = Result<Frame, Infallible>> {
        stream::unfold(self, |mut follower| async move {
            let frame = follower.next().await?;
            Some((Ok(frame), follower))
        })
    }

    /// The next frame; `None` ends the stream.
    async fn next(&mut self) -> Option<Frame> {
        loop {
            if self.missed > 0 {
                return Some(missed(std::mem::take(&mut self.missed)));
            }
            if let Some(event) = self.backlog.pop_front() {
                self.seen = event.id;
                return Some(self.frame(&event));
            }
            tokio::select! {
                () = closed(self.closing.clone()) => return None,
                received = self.live.recv() => match received {
                    Ok(event) => {
                        self.seen = event.id;
                        return Some(self.frame(&event));
                    }
                    Err(broadcast::error::RecvError::Lagged(_)) => self.catch_up(),
                    Err(broadcast::error::RecvError::Closed) => return None,
                },
            }
        }
    }
}

/// How many of this agent's events after `seen` are not among those that are kept.
fn missing(published: &Published, seen: u64, kept: &[Arc<Event>]) -> u64 {
    let first = published.first_id();
    let last = kept.last().map_or(seen, |event| event.id);
    let there = kept.iter().filter(|event| event.id >= first).count() as u64;
    let all = last.saturating_sub(seen.max(first.saturating_sub(1)));
    all.saturating_sub(there)
}

/// Without an id: a reader that reconnects must not take this for an event it has seen.
fn missed(count: u64) -> Frame {
    data(Frame::default().event("missed"), &Missed { missed: count })
}

fn data(frame: Frame, value: &impl Serialize) -> Frame {
    // These types hold only strings, numbers and lists, which always serialise; a comment keeps
    // the stream alive should that ever change.
    frame
        .json_data(value)
        .unwrap_or_else(|e| Frame::default().comment(format!("not serialisable: {e}")))
}
