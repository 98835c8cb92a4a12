//! The kubelet: the pods that it runs, by its `/pods`, polled.
//!
//! It has no watch. What it tells is a whole list of what it has admitted, static pods among them, also
//! while no API server can be reached.

use std::time::Duration;

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
    mux::Event,
    poll::{self, PollSource, Unanswered},
};
use crate::config::KubeletConfig;

/// It has this long to answer.
const TIME: Duration = Duration::from_secs(20);
const PODS: &str = "/pods";

/// Why nothing comes from it.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
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

/// See the module's text.
pub(super) struct Kubelet(KubeletConfig);

impl Kubelet {
    pub(super) fn new(config: KubeletConfig) -> Self {
        Self(config)
    }

    fn failure(&self, why: Unanswered) -> Failure {
        let url = self.0.url.clone();
        match why {
            Unanswered::Refused(code) => Failure::Refused { url, code },
            Unanswered::Silent => Failure::Silent { url },
            Unanswered::Failed(source) => Failure::Request { url, source },
        }
    }
}

impl PollSource for Kubelet {
    type Failure = Failure;

    fn interval(&self) -> Duration {
        self.0.interval
    }

    async fn client(&self) -> Result<Client, Failure> {
        Ok(connect::client_of(kubeconfig(&self.0)).await?)
    }

    async fn text(&self, client: &Client) -> Result<String, Failure> {
        let request = Request::new(PODS)
            .list(&ListParams::default())
            .map_err(|e| {
                self.failure(Unanswered::Failed(Box::new(kube::Error::BuildRequest(e))))
            })?;
        poll::answer(client, request, TIME)
            .await
            .map_err(|why| self.failure(why))
    }

    fn read(&mut self, text: &str) -> Result<Event, Failure> {
        let list: List<'_> = serde_json::from_str(text).map_err(|source| Failure::Answer {
            url: self.0.url.clone(),
            source,
        })?;
        let (pods, errors) = list.pods(Source::Kubelet);
        Ok(Event::Replace { pods, errors })
    }
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
