//! What the three sources that are read by HTTP share: one server with its requests, one type of error, and
//! polling. (The API server's watch is its own.)

use std::{future::Future, io, time::Duration};

use axum::http::Request;
use futures_util::{AsyncBufRead, AsyncRead, AsyncReadExt as _};
use kube::Client;
use serde::Deserialize;

use super::{
    apiserver::connect::ConnectError,
    feed::{SourceHandle, SourceUpdate},
    manifests::MOST,
    mux::PodEvent,
};
use crate::base::{backoff::Backoff, error::chain};

/// The largest answer that is read, bytes: a list of a thousand pods takes some ten MiB.
const MOST_ANSWER: u64 = 64 << 20;

/// A request, as the errors name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Operation {
    pub(super) name: &'static str,
    /// What a user needs for it; empty where the server knows no users.
    pub(super) right: &'static str,
    /// The answer has this long to come.
    pub(super) time: Duration,
}

/// Why a source that is read by HTTP gives no pods.
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("{server}, {}", operation.name)]
    Request {
        server: String,
        operation: Operation,
        #[source]
        source: RequestError,
    },
}

/// Why a request gives no pods.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    #[error("answered {}", .0)]
    Refused(Refusal),
    #[error("no answer within {} s", .0.as_secs())]
    Silent(Duration),
    #[error("not sent or not answered")]
    Failed(#[source] Box<kube::Error>),
    #[error("the answer was cut off")]
    Cut(#[source] io::Error),
    #[error("the answer is not understood; is it the right server?")]
    Answer(#[source] serde_json::Error),
    #[error("the answer holds nothing; serve an empty PodList if its pods shall go")]
    Empty,
    #[error(
        "the answer is too large: more than {MOST} bytes of manifests, or {MOST_ANSWER} of a list of pods"
    )]
    TooLarge,
}

/// `Status` of `meta/v1`, as far as it matters, and what helps.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Refusal {
    pub(super) code: u16,
    pub(super) reason: String,
    pub(super) message: String,
    #[serde(skip)]
    pub(super) right: &'static str,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { code, right, .. } = self;
        let said = match self.message.is_empty() {
            true => &self.reason,
            false => &self.message,
        };
        // A server of manifests may answer with a page.
        let said: String = said.trim().chars().take(200).collect();
        write!(f, "{code} ({said})")?;
        match code {
            401 => f.write_str(
                ": the token or certificate is not known there or has expired; renew it",
            ),
            403 if !right.is_empty() => write!(f, ": grant this user {right}"),
            _ => Ok(()),
        }
    }
}

/// A connection to a server, with what the errors call it.
pub(super) struct Server {
    pub(super) client: Client,
    pub(super) name: String,
}

/// As [`kube::core::Request`] builds it.
pub(super) type HttpRequest = Result<Request<Vec<u8>>, kube::core::request::Error>;

impl Server {
    pub(super) fn error(&self, operation: Operation, source: RequestError) -> HttpError {
        HttpError::Request {
            server: self.name.clone(),
            operation,
            source,
        }
    }

    /// The whole answer, which is bounded while it is read.
    pub(super) async fn text(
        &self,
        operation: Operation,
        request: HttpRequest,
    ) -> Result<String, HttpError> {
        let answer = self.stream(operation, request).await?;
        let read = tokio::time::timeout(operation.time, whole(answer, MOST_ANSWER)).await;
        let read = read.unwrap_or(Err(RequestError::Silent(operation.time)));
        read.map_err(|source| self.error(operation, source))
    }

    /// An answer that goes on.
    pub(super) async fn stream(
        &self,
        operation: Operation,
        request: HttpRequest,
    ) -> Result<impl AsyncBufRead + use<>, HttpError> {
        let failed = |error| match error {
            kube::Error::Api(status) => RequestError::Refused(Refusal {
                code: status.code,
                reason: status.reason,
                message: status.message,
                right: operation.right,
            }),
            error => RequestError::Failed(Box::new(error)),
        };
        let answer = async {
            let request = request.map_err(|e| failed(kube::Error::BuildRequest(e)))?;
            let answer = self.client.request_stream(request);
            let answer = tokio::time::timeout(operation.time, answer).await;
            let answer = answer.map_err(|_| RequestError::Silent(operation.time))?;
            answer.map_err(failed)
        };
        answer.await.map_err(|source| self.error(operation, source))
    }
}

async fn whole(answer: impl AsyncRead, most: u64) -> Result<String, RequestError> {
    let mut text = String::new();
    let answer = std::pin::pin!(answer);
    let read = answer.take(most + 1).read_to_string(&mut text).await;
    read.map_err(RequestError::Cut)?;
    match text.len() as u64 > most {
        true => Err(RequestError::TooLarge),
        false => Ok(text),
    }
}

/// A source that is polled.
pub(super) trait PollSource: Send {
    const OPERATION: Operation;

    /// How long to wait after an answer.
    fn interval(&self) -> Duration;

    /// Kept until a failure, and then made anew: files are replaced when certificates and tokens are.
    fn server(&self) -> impl Future<Output = Result<Server, HttpError>> + Send;

    fn request(&self) -> HttpRequest;

    /// What an answer says that is not the one before it.
    fn read(&mut self, text: &str) -> Result<PodEvent, RequestError>;
}

/// Sends what `source` answers until the receiver is gone. Each failure in a row makes the pause longer.
pub(super) async fn poll(mut source: impl PollSource, handle: SourceHandle) {
    let polling = async {
        let mut backoff = Backoff::default();
        let (mut server, mut last) = (None, None);
        loop {
            let pause = match next(&mut source, &mut server, &mut last).await {
                Ok(event) => {
                    if let Some(event) = event {
                        handle.send(SourceUpdate::Pods(event)).await;
                    }
                    handle.send(SourceUpdate::Well).await;
                    backoff = Backoff::default();
                    source.interval()
                }
                Err(error) => {
                    handle.send(SourceUpdate::Trouble(chain(&error))).await;
                    backoff.next(fastrand::f64())
                }
            };
            tokio::time::sleep(pause).await;
        }
    };
    handle.while_open(polling).await;
}

/// What there is now; `None` where that is what it was. `last` is the hash of the last answer.
async fn next<S: PollSource>(
    source: &mut S,
    kept: &mut Option<Server>,
    last: &mut Option<u64>,
) -> Result<Option<PodEvent>, HttpError> {
    let server = match kept.take() {
        Some(server) => server,
        None => source.server().await?,
    };
    let text = server.text(S::OPERATION, source.request()).await?;
    let server = kept.insert(server);
    let now = Some(hash(&text));
    if now == *last {
        return Ok(None);
    }
    let event = source.read(&text);
    let event = event.map_err(|error| server.error(S::OPERATION, error))?;
    *last = now;
    Ok(Some(event))
}

fn hash(text: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_without_end_is_given_up() {
        let endless = futures_util::io::repeat(b'a');
        let error = whole(endless, 1 << 20).await.unwrap_err();
        assert!(matches!(error, RequestError::TooLarge), "{error}");
        let short = whole(&b"abc"[..], 3).await.unwrap();
        assert_eq!(short, "abc");
    }
}
