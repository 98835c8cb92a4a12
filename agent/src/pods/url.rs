//! Manifests at a URL, as the kubelet's `staticPodURL` (`pkg/kubelet/config/http.go`): one text, read whole
//! every time.

use std::{path::PathBuf, sync::Arc, time::Duration};

use axum::http::{Request, Uri, uri::PathAndQuery};
use kube::{Client, Config};

use super::{
    Manifests,
    feed::whole,
    manifests::{MOST, Reading},
    mux::Event,
    poll::{self, PollSource, Unanswered},
};
use crate::config::StaticPodUrl;

/// It has this long to answer (`http.Client` of the kubelet's source).
const TIME: Duration = Duration::from_secs(10);

/// Why nothing comes from it. What was read before stays in force.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("staticPodURL {url} cannot be read")]
    Request {
        url: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("staticPodURL {url} answered {code}")]
    Refused { url: String, code: u16 },
    #[error("staticPodURL {url}: no answer within {} s", TIME.as_secs())]
    Silent { url: String },
    #[error("staticPodURL {url} holds nothing; serve an empty PodList if its pods shall go")]
    Empty { url: String },
    #[error("staticPodURL {url} holds more than {MOST} bytes, which no manifest does")]
    TooLarge { url: String },
}

/// See the module's text.
pub(super) struct Url {
    config: StaticPodUrl,
    manifests: Arc<Manifests>,
}

impl Url {
    pub(super) fn new(config: StaticPodUrl) -> Self {
        Self {
            config,
            manifests: Arc::default(),
        }
    }

    fn failure(&self, why: Unanswered) -> Failure {
        let url = self.config.url.to_string();
        match why {
            Unanswered::Refused(code) => Failure::Refused { url, code },
            Unanswered::Silent => Failure::Silent { url },
            Unanswered::Failed(source) => Failure::Request { url, source },
        }
    }
}

impl PollSource for Url {
    type Failure = Failure;

    fn interval(&self) -> Duration {
        self.config.interval
    }

    async fn client(&self) -> Result<Client, Failure> {
        // The client puts its own URL's path before a request's, and drops its query.
        let mut server = self.config.url.clone().into_parts();
        server.path_and_query = Some(PathAndQuery::from_static("/"));
        let server = Uri::from_parts(server).unwrap_or_else(|_| self.config.url.clone());
        let mut config = Config::new(server);
        config.headers.clone_from(&self.config.headers);
        config.connect_timeout = Some(TIME);
        config.default_retry = false;
        Client::try_from(config).map_err(|e| self.failure(Unanswered::Failed(Box::new(e))))
    }

    async fn text(&self, client: &Client) -> Result<String, Failure> {
        let path = self.config.url.path_and_query().cloned();
        let mut request = Request::new(Vec::new());
        *request.uri_mut() = path.map_or_else(Uri::default, Uri::from);
        let text = poll::answer(client, request, TIME)
            .await
            .map_err(|why| self.failure(why))?;
        let url = self.config.url.to_string();
        match text.len() as u64 {
            0 => Err(Failure::Empty { url }),
            1..=MOST => Ok(text),
            _ => Err(Failure::TooLarge { url }),
        }
    }

    fn read(&mut self, text: &str) -> Result<Event, Failure> {
        let place = PathBuf::from(self.config.url.to_string());
        let mut reading = Reading::default();
        reading.add(&place, text);
        if reading.errors() > 0 {
            // A text that was spoilt must not end its pods.
            reading.keep(&place, &self.manifests);
        }
        self.manifests = Arc::new(reading.done());
        Ok(whole(&self.manifests))
    }
}
