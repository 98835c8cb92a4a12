//! Ways of not being there.

use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse as _, Response};

use super::refusal::Refusal;

/// How a server does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outage {
    /// No server listens.
    Refused,
    /// Connections are taken, and requests never answered.
    Silent,
    /// Every request is refused with 503, as by what stands before the server.
    Unavailable,
    /// Every answer is cut off in its middle.
    Cut,
}

impl Outage {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [Self::Refused, Self::Silent, Self::Unavailable, Self::Cut];

    /// In the place of an answer; nothing is done of what was asked.
    pub(super) async fn answer(self) -> Result<Response, Refusal> {
        match self {
            Self::Refused | Self::Silent => std::future::pending().await,
            Self::Unavailable => {
                let message = "the server is currently unable to handle the request";
                Err(Refusal::new(503, "ServiceUnavailable", message))
            }
            Self::Cut => {
                let headers = [(header::CONTENT_TYPE, "application/json")];
                Ok((headers, Body::from_stream(half())).into_response())
            }
        }
    }
}

/// The beginning of an answer, and the end of the connection a moment later: what is sent together with it
/// may be lost with it.
fn half() -> impl futures_util::Stream<Item = Result<Bytes, io::Error>> {
    const BEGINNING: &[u8] = br#"{"kind":"#;
    futures_util::stream::unfold(false, |begun| async move {
        if !begun {
            return Some((Ok(Bytes::from_static(BEGINNING)), true));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
        Some((Err(cut()), true))
    })
}

/// The cause of a cut: it ends the connection without the end of the answer.
pub(super) fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "cut")
}
