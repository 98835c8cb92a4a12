//! The API server: one list of this node's pods, and watches that go on from there.
//!
//! | module | purpose |
//! |---|---|
//! | `allocated` | what the kubelet has granted of what a spec asks for; values only |
//! | `connect` | the server's address and the agent's credentials |
//! | `follow` | the next request; values only |
//! | `node` | what the Node object says is kept from pods |
//! | `object` | the server's text -> events of the mux; values only |
//!
//! kube's own watcher lists from version 0 after every cut that the server's history does not cover, which
//! may be older than what is known, and begins anew with every client; here the version outlives both.

mod allocated;
pub(crate) mod connect;
mod follow;
pub(crate) mod node;
pub(crate) mod object;

use std::time::Duration;

use futures_util::{AsyncBufRead, AsyncBufReadExt as _};
use kube::core::{
    Request,
    params::{ListParams, VersionMatch, WatchParams},
};
use serde::de;

use self::{
    follow::{Follow, Next},
    object::{Line, List},
};
use super::{
    Source,
    feed::{SourceHandle, SourceUpdate},
    http::{HttpError, Operation, Refusal, RequestError, Server},
    mux::PodEvent,
};
use crate::base::error::chain;

pub use connect::Apiserver;
pub(crate) use object::MIRROR;

/// Reads a pod as the API server writes it, for `podwarden plan`.
pub(crate) fn object(object: &serde_json::Value) -> Result<podwarden_policy::Pod, super::Problem> {
    // A value always serialises.
    let raw = serde_json::value::to_raw_value(object).unwrap_or_default();
    match object::pod(&raw, Source::Apiserver) {
        Ok(read) => Ok(read.pod),
        Err(error) => Err(error.problem()),
    }
}

/// What a line of a watch says of a pod.
#[cfg(feature = "fuzz")]
pub(super) fn event(line: &str) -> Option<PodEvent> {
    match object::line(line).ok()? {
        Line::Pod { event, .. } => Some(event),
        Line::Bookmark { .. } | Line::Refused(_) => None,
    }
}

const PODS: &str = "/api/v1/pods";

const LIST: Operation = Operation {
    name: "list of this node's pods",
    right: "list of pods",
    time: Duration::from_secs(60),
};

/// Its time is that until the watch begins.
const WATCH: Operation = Operation {
    name: "watch of this node's pods",
    right: "watch of pods",
    time: Duration::from_secs(30),
};

/// The server ends a watch after this many seconds, and up to half as many more: not all nodes at once.
const WATCH_SECONDS: u32 = 180;

/// A server that sends bookmarks does so every minute (`defaultBookmarkFrequency` of apiserver
/// `pkg/storage/cacher/cacher.go`): one that is silent for this long is gone.
const SILENCE: Duration = Duration::from_secs(150);

/// A server that sends none ends the watch itself, this long after its time at the latest.
const LATE: Duration = Duration::from_secs(15);

/// Pods of one answer, where it does not come from the server's cache.
const PAGE: u32 = 250;

/// Sends the pods of a node until the receiver is gone.
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

    /// Runs until the receiver is gone.
    pub(super) async fn run(mut self) {
        let handle = self.handle.clone();
        handle.while_open(self.follow_for_ever()).await;
    }

    async fn follow_for_ever(&mut self) {
        let mut kept = None;
        loop {
            match self.next(&mut kept).await {
                Ok(Progress::Some) => continue,
                Ok(Progress::None) => {}
                Err(error) => self.send(SourceUpdate::Trouble(chain(&error))).await,
            }
            tokio::time::sleep(self.follow.failed(fastrand::f64())).await;
        }
    }

    /// One step over the connection that is kept. After a failure the next one has new credentials, should
    /// there be any.
    async fn next(&mut self, kept: &mut Option<Server>) -> Result<Progress, HttpError> {
        let server = match kept.take() {
            Some(server) => server,
            None => self.connect().await?,
        };
        let progress = self.step(&server).await?;
        *kept = Some(server);
        Ok(progress)
    }

    async fn connect(&self) -> Result<Server, HttpError> {
        let (client, url) = connect::client(&self.apiserver).await?;
        let name = format!("the API server {url}");
        Ok(Server { client, name })
    }

    /// One list, or one watch to its end.
    async fn step(&mut self, server: &Server) -> Result<Progress, HttpError> {
        let (operation, result) = match self.follow.next() {
            Next::List(version) => (LIST, self.list(server, version).await),
            Next::Watch(version) => (WATCH, self.watch(server, &version).await),
        };
        let error = match result {
            Ok(progress) => return Ok(progress),
            Err(error) => error,
        };
        if let HttpError::Request { source, .. } = &error {
            match source {
                RequestError::Refused(refusal) if place_lost(refusal) => {
                    self.follow.lost_place();
                    // Until then what has happened is unknown.
                    let problem = format!("{}; pods are listed anew", chain(&error));
                    self.send(SourceUpdate::Trouble(problem)).await;
                    return Ok(Progress::None);
                }
                // It would come again; a list has every pod on its own.
                RequestError::Answer(_) if operation == WATCH => self.follow.lost_place(),
                _ => {}
            }
        }
        Err(error)
    }

    async fn list(
        &mut self,
        server: &Server,
        version: Option<String>,
    ) -> Result<Progress, HttpError> {
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
            let text = server.text(LIST, Request::new(PODS).list(&params)).await?;
            let answer = |error| server.error(LIST, RequestError::Answer(error));
            let list: List<'_> = serde_json::from_str(&text).map_err(answer)?;
            let page = list.pods(Source::Apiserver);
            pods.extend(page.0);
            errors.extend(page.1);
            if list.metadata.more.is_empty() {
                let version = list.metadata.resource_version;
                let missing = || de::Error::missing_field("metadata.resourceVersion");
                let version = version.ok_or_else(|| answer(missing()))?;
                self.follow.listed(version);
                break;
            }
            // The token has the version in it.
            params.version_match = None;
            params.resource_version = None;
            params.continue_token = Some(list.metadata.more);
        }
        tracing::info!(
            server = server.name,
            pods = pods.len(),
            unusable = errors.len(),
            "listed pods"
        );
        self.send(SourceUpdate::Pods(PodEvent::Replace { pods, errors }))
            .await;
        Ok(Progress::Some)
    }

    /// Follows one watch to its end, which is a matter of course.
    async fn watch(&mut self, server: &Server, version: &str) -> Result<Progress, HttpError> {
        let seconds = WATCH_SECONDS + fastrand::u32(0..=WATCH_SECONDS / 2);
        let params = WatchParams {
            field_selector: Some(self.selector()),
            timeout: Some(seconds),
            ..WatchParams::default()
        };
        let request = Request::new(PODS).watch(&params, version);
        let lines = server.stream(WATCH, request).await?;
        let failed = |error| server.error(WATCH, error);
        self.send(SourceUpdate::Well).await;
        let mut lines = std::pin::pin!(lines);
        let mut silence = Duration::from_secs(seconds.into()) + LATE;
        let mut progress = Progress::None;
        let mut text = String::new();
        while next_line(&mut lines, &mut text, silence)
            .await
            .map_err(failed)?
        {
            let line = object::line(&text)
                .map_err(RequestError::Answer)
                .map_err(failed)?;
            match line {
                Line::Pod { event, version } => {
                    self.send(SourceUpdate::Pods(event)).await;
                    self.follow.saw(version);
                }
                Line::Bookmark { version } => {
                    silence = SILENCE;
                    self.follow.saw(version);
                }
                Line::Refused(refusal) => {
                    let right = WATCH.right;
                    return Err(failed(RequestError::Refused(Refusal { right, ..refusal })));
                }
            }
            progress = Progress::Some;
        }
        Ok(progress)
    }

    fn selector(&self) -> String {
        format!("spec.nodeName={}", self.node_name)
    }

    async fn send(&self, update: SourceUpdate) {
        // Without a receiver `run` ends.
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
fn place_lost(refusal: &Refusal) -> bool {
    let behind = refusal.message.contains("Too large resource version");
    refusal.code == 410 || matches!(refusal.reason.as_str(), "Expired" | "Gone") || behind
}

/// Reads a line into `text`; false at the end.
async fn next_line(
    lines: &mut (impl AsyncBufRead + Unpin),
    text: &mut String,
    silence: Duration,
) -> Result<bool, RequestError> {
    text.clear();
    // The last line was that of a large pod.
    text.shrink_to(64 << 10);
    let read = tokio::time::timeout(silence, lines.read_line(text)).await;
    let read = read.map_err(|_| RequestError::Silent(silence))?;
    // Cut off in the middle of a line is not the end of one.
    Ok(read.map_err(RequestError::Cut)? > 0 && text.ends_with('\n'))
}
