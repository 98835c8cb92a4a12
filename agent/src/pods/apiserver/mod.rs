//! The API server: one list of this node's pods, and watches that go on from there.
//!
//! | module | what it is for |
//! |---|---|
//! | `connect` | who the server is, and who we are to it |
//! | `follow` | what to ask for next; values only |
//! | `object` | what the server writes -> what the mux understands; values only |
//!
//! kube's own watcher lists from version 0 after every cut that the server's history does not cover, which
//! may be older than what is known, and begins anew with every client; here the place outlives both.

pub(crate) mod connect;
mod follow;
pub(super) mod object;

use std::{io, time::Duration};

use futures_util::{AsyncBufRead, AsyncBufReadExt as _};
use kube::{
    Client,
    core::{
        Request,
        params::{ListParams, VersionMatch, WatchParams},
    },
};

use serde::de;

use self::{
    connect::ConnectError,
    follow::{Follow, Next},
    object::{Line, List, Status},
};
use super::{
    Source,
    feed::{SourceHandle, SourceUpdate},
    mux::Event,
};
use crate::base::error::chain;

pub use connect::Apiserver;
pub(crate) use object::MIRROR;

const PODS: &str = "/api/v1/pods";

/// A list has this long to come whole.
const LIST_TIME: Duration = Duration::from_secs(60);

/// A watch has this long to begin.
const BEGIN_TIME: Duration = Duration::from_secs(30);

/// The server ends a watch after this many seconds, and up to half as many more: not all nodes at once.
const WATCH_SECONDS: u32 = 180;

/// A server that sends bookmarks does so every minute (`defaultBookmarkFrequency` of apiserver
/// `pkg/storage/cacher/cacher.go`): one that is silent for this long is gone.
const SILENCE: Duration = Duration::from_secs(150);

/// A server that sends none ends the watch itself, this long after its time at the latest.
const LATE: Duration = Duration::from_secs(15);

/// Pods of one answer, where it does not come from the server's cache.
const PAGE: u32 = 250;

/// Why nothing comes from the server.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the API server {url} answered {} to {asked}{}", status.code, explained(status))]
    Refused {
        url: String,
        asked: &'static str,
        status: Status,
    },
    #[error("the API server {url} cannot be asked for {asked}")]
    Request {
        url: String,
        asked: &'static str,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("the API server {url}: nothing of {asked} came within {} s", .time.as_secs())]
    Silent {
        url: String,
        asked: &'static str,
        time: Duration,
    },
    #[error("the API server {url}: {asked} was cut off")]
    Cut {
        url: String,
        asked: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("the API server {url}: the answer to {asked} is not understood; is it an API server?")]
    Answer {
        url: String,
        asked: &'static str,
        #[source]
        source: serde_json::Error,
    },
}

/// What was said, and what helps.
fn explained(status: &Status) -> String {
    let said = if status.message.is_empty() {
        &status.reason
    } else {
        &status.message
    };
    match status.code {
        401 => format!(
            " ({said}): the token or certificate is not known there or has expired; renew it"
        ),
        403 => format!(" ({said}): grant this user list and watch of pods"),
        _ => format!(" ({said})"),
    }
}

/// Tells of the pods of a node until nobody listens any more.
pub(super) struct Watcher {
    apiserver: Apiserver,
    node_name: String,
    handle: SourceHandle,
    follow: Follow,
}

impl Watcher {
    pub(super) fn new(apiserver: Apiserver, node_name: &str, handle: SourceHandle) -> Self {
        Self {
            apiserver,
            node_name: node_name.to_owned(),
            handle,
            follow: Follow::new(),
        }
    }

    /// Runs until nobody listens any more.
    pub(super) async fn run(mut self) {
        let handle = self.handle.clone();
        tokio::select! {
            () = handle.closed() => {}
            () = self.follow_for_ever() => {}
        }
    }

    async fn follow_for_ever(&mut self) {
        let mut connection = None;
        loop {
            let (client, url) = match connection.take() {
                Some(connection) => connection,
                None => match connect::client(&self.apiserver).await {
                    Ok(connection) => connection,
                    Err(error) => {
                        self.pause(Some(&error.into())).await;
                        continue;
                    }
                },
            };
            let server = Server {
                client: &client,
                url: &url,
            };
            match self.step(&server).await {
                Ok(Progress::Some) => connection = Some((client, url)),
                Ok(Progress::None) => {
                    connection = Some((client, url));
                    self.pause(None).await;
                }
                // With new credentials, should there be any.
                Err(failure) => self.pause(Some(&failure)).await,
            }
        }
    }

    async fn pause(&mut self, failure: Option<&Failure>) {
        if let Some(failure) = failure {
            self.handle
                .send(SourceUpdate::Trouble(chain(failure)))
                .await;
        }
        tokio::time::sleep(self.follow.failed(fastrand::f64())).await;
    }

    /// One list, or one watch to its end.
    async fn step(&mut self, server: &Server<'_>) -> Result<Progress, Failure> {
        let result = match self.follow.next() {
            Next::List(version) => self.list(server, version).await,
            Next::Watch(version) => self.watch(server, &version).await,
        };
        match &result {
            Err(failure @ Failure::Refused { status, .. }) if place_lost(status) => {
                self.follow.lost_place();
                // Until then nobody knows what has happened.
                let problem = format!("{}; pods are listed anew", chain(failure));
                self.tell(SourceUpdate::Trouble(problem)).await;
                Ok(Progress::None)
            }
            // It would come again; a list tells every pod on its own.
            Err(Failure::Answer { asked: WATCH, .. }) => {
                self.follow.lost_place();
                result
            }
            _ => result,
        }
    }

    async fn list(
        &mut self,
        server: &Server<'_>,
        version: Option<String>,
    ) -> Result<Progress, Failure> {
        let (mut pods, mut errors) = (Vec::new(), Vec::new());
        let mut params = ListParams {
            field_selector: Some(self.selector()),
            version_match: version.as_ref().map(|_| VersionMatch::NotOlderThan),
            // Pages come from etcd, which reads every pod of the cluster for them; a list of any version,
            // or of a known one, comes from the server's cache, whole, as long as no page is asked for.
            limit: version.is_none().then_some(PAGE),
            resource_version: version,
            ..ListParams::default()
        };
        loop {
            let text = server.list(&params).await?;
            let list: List<'_> = serde_json::from_str(&text).map_err(|e| server.answer(LIST, e))?;
            let page = list.pods(Source::Apiserver);
            pods.extend(page.0);
            errors.extend(page.1);
            if list.metadata.more.is_empty() {
                let version = list.metadata.resource_version;
                let missing = || de::Error::missing_field("metadata.resourceVersion");
                let version = version.ok_or_else(|| server.answer(LIST, missing()))?;
                self.follow.listed(version);
                break;
            }
            // The token has the version in it.
            params.version_match = None;
            params.resource_version = None;
            params.continue_token = Some(list.metadata.more);
        }
        tracing::info!(
            server = server.url,
            pods = pods.len(),
            unusable = errors.len(),
            "listed pods"
        );
        self.tell(SourceUpdate::Event(Event::Replace { pods, errors }))
            .await;
        Ok(Progress::Some)
    }

    /// Follows one watch to its end, which is a matter of course.
    async fn watch(&mut self, server: &Server<'_>, version: &str) -> Result<Progress, Failure> {
        let seconds = WATCH_SECONDS + fastrand::u32(0..=WATCH_SECONDS / 2);
        let params = WatchParams {
            field_selector: Some(self.selector()),
            timeout: Some(seconds),
            ..WatchParams::default()
        };
        let lines = server.watch(&params, version).await?;
        self.tell(SourceUpdate::Well).await;
        let mut lines = std::pin::pin!(lines);
        let mut silence = Duration::from_secs(seconds.into()) + LATE;
        let mut progress = Progress::None;
        let mut text = String::new();
        while server.next_line(&mut lines, &mut text, silence).await? {
            match object::line(&text).map_err(|e| server.answer(WATCH, e))? {
                Line::Pod { event, version } => {
                    self.tell(SourceUpdate::Event(event)).await;
                    self.follow.saw(version);
                }
                Line::Bookmark { version } => {
                    silence = SILENCE;
                    self.follow.saw(version);
                }
                Line::Refused(status) => return Err(server.refused(WATCH, status)),
            }
            progress = Progress::Some;
        }
        Ok(progress)
    }

    fn selector(&self) -> String {
        format!("spec.nodeName={}", self.node_name)
    }

    async fn tell(&self, update: SourceUpdate) {
        // Where nobody listens, `run` ends.
        self.handle.send(update).await;
    }
}

/// What came of a step.
enum Progress {
    /// Something.
    Some,
    /// Nothing: not again at once.
    None,
}

/// `Gone` and `Expired`: the history is compacted. 504 with `Too large resource version`: a server that
/// is behind (`NewTooLargeResourceVersionError` of apiserver `pkg/storage/errors.go`).
fn place_lost(status: &Status) -> bool {
    let behind = status.message.contains("Too large resource version");
    status.code == 410 || matches!(status.reason.as_str(), "Expired" | "Gone") || behind
}

const LIST: &str = "a list of this node's pods";
const WATCH: &str = "a watch of this node's pods";

/// One API server, for the errors.
struct Server<'a> {
    client: &'a Client,
    url: &'a str,
}

impl Server<'_> {
    async fn list(&self, params: &ListParams) -> Result<String, Failure> {
        let request = Request::new(PODS).list(params);
        let request = request.map_err(|e| self.request(LIST, kube::Error::BuildRequest(e)))?;
        let answer = tokio::time::timeout(LIST_TIME, self.client.request_text(request)).await;
        let answer = answer.map_err(|_| self.silent(LIST, LIST_TIME))?;
        answer.map_err(|e| self.request(LIST, e))
    }

    async fn watch(
        &self,
        params: &WatchParams,
        version: &str,
    ) -> Result<impl AsyncBufRead + use<>, Failure> {
        let request = Request::new(PODS).watch(params, version);
        let request = request.map_err(|e| self.request(WATCH, kube::Error::BuildRequest(e)))?;
        let answer = tokio::time::timeout(BEGIN_TIME, self.client.request_stream(request)).await;
        let answer = answer.map_err(|_| self.silent(WATCH, BEGIN_TIME))?;
        answer.map_err(|e| self.request(WATCH, e))
    }

    /// Reads a line into `text`; false at the end.
    async fn next_line(
        &self,
        lines: &mut (impl AsyncBufRead + Unpin),
        text: &mut String,
        silence: Duration,
    ) -> Result<bool, Failure> {
        text.clear();
        // The last line was that of a large pod.
        text.shrink_to(64 << 10);
        let read = tokio::time::timeout(silence, lines.read_line(text)).await;
        let read = read.map_err(|_| self.silent(WATCH, silence))?;
        let read = read.map_err(|source| Failure::Cut {
            url: self.url.to_owned(),
            asked: WATCH,
            source,
        })?;
        // Cut off in the middle of a line is not the end of one.
        Ok(read > 0 && text.ends_with('\n'))
    }

    fn request(&self, asked: &'static str, error: kube::Error) -> Failure {
        match error {
            kube::Error::Api(status) => {
                let kube::core::Status {
                    code,
                    reason,
                    message,
                    ..
                } = *status;
                self.refused(
                    asked,
                    Status {
                        code,
                        reason,
                        message,
                    },
                )
            }
            source => Failure::Request {
                url: self.url.to_owned(),
                asked,
                source: Box::new(source),
            },
        }
    }

    fn refused(&self, asked: &'static str, status: Status) -> Failure {
        let url = self.url.to_owned();
        Failure::Refused { url, asked, status }
    }

    fn silent(&self, asked: &'static str, time: Duration) -> Failure {
        let url = self.url.to_owned();
        Failure::Silent { url, asked, time }
    }

    fn answer(&self, asked: &'static str, source: serde_json::Error) -> Failure {
        let url = self.url.to_owned();
        Failure::Answer { url, asked, source }
    }
}
