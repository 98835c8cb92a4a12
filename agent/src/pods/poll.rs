//! Sources that are asked again and again.

use std::{future::Future, time::Duration};

use super::{
    backoff::Backoff,
    feed::{Speaker, Word},
    mux::Event,
};
use crate::error::chain;

/// Somebody who can be asked.
pub(super) trait Ask: Send {
    /// Why there is no answer.
    type Failure: std::error::Error + Send;

    /// How long to wait after an answer.
    fn interval(&self) -> Duration;

    /// What there is now; `None` where that is what it was.
    fn ask(&mut self) -> impl Future<Output = Result<Option<Event>, Self::Failure>> + Send;
}

/// Tells what `source` answers until nobody listens any more. Failures are told as well, and each in a row
/// is waited after for longer.
pub(super) async fn poll(mut source: impl Ask, speaker: Speaker) {
    let polling = async {
        let mut backoff = Backoff::default();
        loop {
            let pause = match source.ask().await {
                Ok(event) => {
                    if let Some(event) = event {
                        speaker.say(Word::Event(event)).await;
                    }
                    speaker.say(Word::Well).await;
                    backoff = Backoff::default();
                    source.interval()
                }
                Err(failure) => {
                    speaker.say(Word::Trouble(chain(&failure))).await;
                    backoff.next(fastrand::f64())
                }
            };
            tokio::time::sleep(pause).await;
        }
    };
    tokio::select! {
        () = speaker.unheard() => {}
        () = polling => {}
    }
}

/// Tells whether a text is another than the last time.
#[derive(Debug, Default)]
pub(super) struct Last(Option<u64>);

impl Last {
    /// True where it is the same.
    pub(super) fn is(&self, text: &str) -> bool {
        self.0 == Some(hash(text))
    }

    /// It has been understood.
    pub(super) fn set(&mut self, text: &str) {
        self.0 = Some(hash(text));
    }
}

fn hash(text: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
