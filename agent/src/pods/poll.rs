//! Sources that are polled: each answer is one text.

use std::{future::Future, time::Duration};

use axum::http::Request;
use kube::Client;

use crate::base::backoff::Backoff;

use super::{
    feed::{SourceHandle, SourceUpdate},
    mux::Event,
};
use crate::base::error::chain;

/// A source that is polled.
pub(super) trait PollSource: Send {
    /// Why there is no answer.
    type Failure: std::error::Error + Send;

    /// How long to wait after an answer.
    fn interval(&self) -> Duration;

    /// What to ask with: kept until a failure, and then made anew, with new credentials and certificates,
    /// should there be any.
    fn client(&self) -> impl Future<Output = Result<Client, Self::Failure>> + Send;

    /// What there is now.
    fn text(&self, client: &Client) -> impl Future<Output = Result<String, Self::Failure>> + Send;

    /// What a text says that is not the one before it.
    fn read(&mut self, text: &str) -> Result<Event, Self::Failure>;
}

/// Why a request has no answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// With this status.
    Refused(u16),
    /// Not in time.
    Silent,
    Failed(Box<kube::Error>),
}

/// What the server says to `request` within `time`.
pub(super) async fn answer(
    client: &Client,
    request: Request<Vec<u8>>,
    time: Duration,
) -> Result<String, Unanswered> {
    let answer = tokio::time::timeout(time, client.request_text(request)).await;
    answer
        .map_err(|_| Unanswered::Silent)?
        .map_err(|error| match error {
            kube::Error::Api(status) => Unanswered::Refused(status.code),
            error => Unanswered::Failed(Box::new(error)),
        })
}

/// Tells what `source` answers until nobody listens any more. Failures are told as well, and each in a row
/// is waited after for longer.
pub(super) async fn poll(source: impl PollSource, handle: SourceHandle) {
    let mut poller = Poller {
        source,
        client: None,
        last: Last::default(),
    };
    let polling = async {
        let mut backoff = Backoff::default();
        loop {
            let pause = match poller.next().await {
                Ok(event) => {
                    if let Some(event) = event {
                        handle.send(SourceUpdate::Event(event)).await;
                    }
                    handle.send(SourceUpdate::Well).await;
                    backoff = Backoff::default();
                    poller.source.interval()
                }
                Err(failure) => {
                    handle.send(SourceUpdate::Trouble(chain(&failure))).await;
                    backoff.next(fastrand::f64())
                }
            };
            tokio::time::sleep(pause).await;
        }
    };
    tokio::select! {
        () = handle.closed() => {}
        () = polling => {}
    }
}

/// A source with what is kept of the last answer.
struct Poller<S> {
    source: S,
    client: Option<Client>,
    last: Last,
}

impl<S: PollSource> Poller<S> {
    /// What there is now; `None` where that is what it was.
    async fn next(&mut self) -> Result<Option<Event>, S::Failure> {
        let client = match self.client.take() {
            Some(client) => client,
            None => self.source.client().await?,
        };
        let text = self.source.text(&client).await?;
        self.client = Some(client);
        if self.last.is(&text) {
            return Ok(None);
        }
        let event = self.source.read(&text)?;
        self.last.set(&text);
        Ok(Some(event))
    }
}

/// Tells whether a text is another than the last time.
#[derive(Debug, Default)]
struct Last(Option<u64>);

impl Last {
    /// True where it is the same.
    fn is(&self, text: &str) -> bool {
        self.0 == Some(hash(text))
    }

    /// It has been understood.
    fn set(&mut self, text: &str) {
        self.0 = Some(hash(text));
    }
}

fn hash(text: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
