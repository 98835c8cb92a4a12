//! The kubelet: the pods that it runs, by its `/pods`, asked for again and again.
//!
//! It has no watch. What it tells is a whole list of what it has admitted, static pods among them, also
//! while no API server can be reached.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::Duration,
};

use kube::{
    Client,
    config::{AuthInfo, Cluster, Context, Kubeconfig, NamedAuthInfo, NamedCluster, NamedContext},
    core::{Request, params::ListParams},
};

use super::{
    Source,
    apiserver::{
        connect::{self, ConnectError},
        object::List,
    },
    backoff::Backoff,
    feed::{Speaker, Word},
    mux::Event,
};
use crate::{config::KubeletConfig, error::chain};

/// It has this long to answer.
const TIME: Duration = Duration::from_secs(20);
const PODS: &str = "/pods";

/// Why nothing comes from it.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the kubelet {url} answered {code} to GET {PODS}{}", explained(*code))]
    Refused { url: String, code: u16 },
    #[error("the kubelet {url} cannot be asked for its pods")]
    Request {
        url: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("the kubelet {url}: no answer to GET {PODS} within {} s", TIME.as_secs())]
    Silent { url: String },
    #[error("the kubelet {url}: the answer to GET {PODS} is not understood; is it a kubelet?")]
    Answer {
        url: String,
        #[source]
        source: serde_json::Error,
    },
}

fn explained(code: u16) -> &'static str {
    match code {
        401 => " (the token of kubelet.tokenFile is not known there or has expired; renew it)",
        403 => " (grant this user get of nodes/proxy)",
        _ => "",
    }
}

/// Tells of the kubelet's pods until nobody listens any more.
pub(super) struct Poller {
    config: KubeletConfig,
    speaker: Speaker,
    /// Of the last answer.
    last: Option<u64>,
    backoff: Backoff,
}

impl Poller {
    pub(super) fn new(config: KubeletConfig, speaker: Speaker) -> Self {
        Self {
            config,
            speaker,
            last: None,
            backoff: Backoff::default(),
        }
    }

    /// Runs until nobody listens any more.
    pub(super) async fn run(mut self) {
        let speaker = self.speaker.clone();
        tokio::select! {
            () = speaker.unheard() => {}
            () = self.poll_for_ever() => {}
        }
    }

    async fn poll_for_ever(&mut self) {
        let mut client = None;
        loop {
            let pause = match self.poll(&mut client).await {
                Ok(()) => {
                    self.backoff = Backoff::default();
                    self.config.interval
                }
                Err(failure) => {
                    // With new credentials and certificates, should there be any.
                    client = None;
                    self.speaker.say(Word::Trouble(chain(&failure))).await;
                    self.backoff.next(fastrand::f64())
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn poll(&mut self, client: &mut Option<Client>) -> Result<(), Failure> {
        let client = match client {
            Some(client) => client,
            None => client.insert(connect::client_of(kubeconfig(&self.config)).await?),
        };
        let text = ask(client, &self.config.url).await?;
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let hash = Some(hasher.finish());
        if self.last != hash {
            let answer = |source| Failure::Answer {
                url: self.config.url.clone(),
                source,
            };
            let list: List<'_> = serde_json::from_str(&text).map_err(answer)?;
            let (pods, errors) = list.pods(Source::Kubelet);
            self.speaker
                .say(Word::Event(Event::Replace { pods, errors }))
                .await;
            self.last = hash;
        }
        self.speaker.say(Word::Well).await;
        Ok(())
    }
}

async fn ask(client: &Client, url: &str) -> Result<String, Failure> {
    let failed = |source| match source {
        kube::Error::Api(status) => Failure::Refused {
            url: url.to_owned(),
            code: status.code,
        },
        source => Failure::Request {
            url: url.to_owned(),
            source: Box::new(source),
        },
    };
    let request = Request::new(PODS).list(&ListParams::default());
    let request = request.map_err(|e| failed(kube::Error::BuildRequest(e)))?;
    let answer = tokio::time::timeout(TIME, client.request_text(request)).await;
    let silent = |_| Failure::Silent {
        url: url.to_owned(),
    };
    answer.map_err(silent)?.map_err(failed)
}

/// The files are read anew with every client, and the token also in between.
fn kubeconfig(config: &KubeletConfig) -> Kubeconfig {
    let name = "kubelet".to_owned();
    let path = |path: &std::path::PathBuf| path.display().to_string();
    Kubeconfig {
        current_context: Some(name.clone()),
        clusters: vec![NamedCluster {
            name: name.clone(),
            cluster: Some(Cluster {
                server: Some(config.url.clone()),
                certificate_authority: config.certificate_authority.as_ref().map(path),
                tls_server_name: config.server_name.clone(),
                ..Cluster::default()
            }),
            ..NamedCluster::default()
        }],
        auth_infos: vec![NamedAuthInfo {
            name: name.clone(),
            auth_info: Some(AuthInfo {
                token_file: config.token_file.as_ref().map(path),
                ..AuthInfo::default()
            }),
            ..NamedAuthInfo::default()
        }],
        contexts: vec![NamedContext {
            name: name.clone(),
            context: Some(Context {
                cluster: name.clone(),
                user: Some(name),
                ..Context::default()
            }),
            ..NamedContext::default()
        }],
        ..Kubeconfig::default()
    }
}
