//! `/v1/live`: figures with each sampling pass, for the page.
//!
//! A message `node` with what `/v1/node` answers, then a message `pods` with a row for each pod. Rows are written
//! once for each pass, whatever the number of readers.

use std::{collections::VecDeque, convert::Infallible, sync::Arc};

use axum::{
    Extension,
    extract::State,
    response::{
        IntoResponse, Response,
        sse::{Event as Frame, KeepAlive, Sse},
    },
};
use futures_util::stream;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::{
    Shared,
    api::{self, ErrorResponse},
    closed,
    connections::Progress,
    events::{self, KEEP_ALIVE},
};
use crate::api::published::Figures;

pub(super) async fn live(
    State(shared): State<Shared>,
    Extension(progress): Extension<Arc<Progress>>,
) -> Result<Response, ErrorResponse> {
    let place = events::place(&shared)?;
    progress.follows();
    let mut passes = shared.published.passes();
    // The pass that is there is the first.
    passes.mark_changed();
    let reader = Reader {
        shared,
        passes,
        waiting: VecDeque::new(),
        _place: place,
    };
    let frames = stream::unfold(reader, |mut reader| async move {
        let frame = reader.next().await?;
        Some((Ok::<_, Infallible>(frame), reader))
    });
    Ok(Sse::new(frames)
        .keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
        .into_response())
}

struct Reader {
    shared: Shared,
    passes: watch::Receiver<()>,
    waiting: VecDeque<Frame>,
    /// Given back with the end of the stream.
    _place: OwnedSemaphorePermit,
}

impl Reader {
    /// The next frame; `None` ends the stream. A reader that is slow misses passes.
    async fn next(&mut self) -> Option<Frame> {
        if let Some(frame) = self.waiting.pop_front() {
            return Some(frame);
        }
        tokio::select! {
            () = closed(self.shared.closing.clone()) => return None,
            passed = self.passes.changed() => passed.ok()?,
        }
        // Also keeps the sampler at its full pace.
        let figures = self.shared.published.figures();
        self.waiting = frames(&self.shared, &figures).into();
        self.waiting.pop_front()
    }
}

fn frames(shared: &Shared, figures: &Arc<Figures>) -> Vec<Frame> {
    let node = serde_json::to_string(&api::node_of(shared, &figures.node));
    let frame = |name, data: Result<&str, &serde_json::Error>| match data {
        Ok(data) => Frame::default().event(name).data(data),
        // These types always serialise; a comment keeps the stream alive should that ever change.
        Err(e) => Frame::default().comment(format!("not serialisable: {e}")),
    };
    vec![
        frame("node", node.as_deref()),
        frame("pods", figures.rows()),
    ]
}
