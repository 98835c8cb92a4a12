//! Manifests at a URL, as the kubelet's `staticPodURL` (`pkg/kubelet/config/http.go`): one text, read whole
//! every time.

use std::{path::PathBuf, sync::Arc, time::Duration};

use axum::http::{Request, Uri, uri::PathAndQuery};
use kube::{Client, Config};

use super::{
    Manifests,
    apiserver::connect::ConnectError,
    feed::whole,
    http::{HttpError, HttpRequest, Operation, PollSource, RequestError, Server},
    manifests::{MOST, Reading},
    mux::PodEvent,
};
use crate::config::{StaticPodUrl, without_secrets};

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
}

impl PollSource for Url {
    const OPERATION: Operation = Operation {
        name: "GET of its manifests",
        right: "",
        // `http.Client` of the kubelet's source.
        time: Duration::from_secs(10),
    };

    fn interval(&self) -> Duration {
        self.config.interval
    }

    async fn server(&self) -> Result<Server, HttpError> {
        // The client puts its own URL's path before a request's, and drops its query.
        let mut server = self.config.url.clone().into_parts();
        server.path_and_query = Some(PathAndQuery::from_static("/"));
        let server = Uri::from_parts(server).unwrap_or_else(|_| self.config.url.clone());
        let mut config = Config::new(server);
        config.headers.clone_from(&self.config.headers);
        config.connect_timeout = Some(Self::OPERATION.time);
        config.default_retry = false;
        let client = Client::try_from(config).map_err(|source| ConnectError::Client {
            url: without_secrets(&self.config.url),
            source: Box::new(source),
        })?;
        let name = format!("staticPodURL {}", without_secrets(&self.config.url));
        Ok(Server { client, name })
    }

    fn request(&self) -> HttpRequest {
        let path = self.config.url.path_and_query().cloned();
        let mut request = Request::new(Vec::new());
        *request.uri_mut() = path.map_or_else(Uri::default, Uri::from);
        Ok(request)
    }

    fn read(&mut self, text: &str) -> Result<PodEvent, RequestError> {
        match text.len() as u64 {
            0 => return Err(RequestError::Empty),
            1..=MOST => {}
            _ => return Err(RequestError::TooLarge),
        }
        let place = PathBuf::from(without_secrets(&self.config.url));
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
