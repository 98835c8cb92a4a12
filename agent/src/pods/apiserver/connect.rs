//! The API server's address and the agent's credentials.

use std::{path::PathBuf, time::Duration};

use kube::{
    Client, Config,
    config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};

use crate::config::ApiserverConfig;

/// A connection attempt fails after this long.
const CONNECT: Duration = Duration::from_secs(10);

/// Where its address and credentials stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Apiserver {
    /// The service account of the pod that this agent runs in.
    InCluster,
    /// A kubeconfig file; its current context.
    Kubeconfig(PathBuf),
}

impl Apiserver {
    /// As it is configured; `None` where there is none.
    pub fn of(config: &ApiserverConfig) -> Option<Self> {
        match config {
            ApiserverConfig::Off => None,
            ApiserverConfig::Kubeconfig(path) => Some(Self::Kubeconfig(path.clone())),
            ApiserverConfig::Auto => Self::detect(),
        }
    }

    /// Where nothing is configured: the service account, if this runs in a pod that has one.
    fn detect() -> Option<Self> {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let in_cluster = set("KUBERNETES_SERVICE_HOST") && set("KUBERNETES_SERVICE_PORT");
        in_cluster.then_some(Self::InCluster)
    }
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error(
        "--kubeconfig {}: it cannot be used; write one with a current-context, as \
         `kubectl config view --minify --raw` prints it", path.display()
    )]
    Kubeconfig {
        path: PathBuf,
        #[source]
        source: Box<KubeconfigError>,
    },
    #[error(
        "the pod's service account cannot be used; mount its token (automountServiceAccountToken) or \
         use --kubeconfig or --no-apiserver"
    )]
    InCluster(#[source] InClusterError),
    #[error("kubelet.certificateAuthority or kubelet.tokenFile cannot be used")]
    Kubelet(#[source] Box<KubeconfigError>),
    #[error("{url} takes no client with these credentials")]
    Client {
        url: String,
        #[source]
        source: Box<kube::Error>,
    },
}

/// A client of the kubelet, by a kubeconfig that is not a file.
pub(in crate::pods) async fn kubelet_client(
    file: Result<Kubeconfig, KubeconfigError>,
) -> Result<Client, ConnectError> {
    let options = KubeConfigOptions::default();
    let config = async { Config::from_custom_kubeconfig(file?, &options).await };
    let config = config
        .await
        .map_err(|e| ConnectError::Kubelet(Box::new(e)))?;
    Ok(connected(config)?.0)
}

/// A client with the credentials as they are now, and the server's address. Read again for every
/// connection after a failure: files are replaced when certificates and tokens are.
pub(crate) async fn client(apiserver: &Apiserver) -> Result<(Client, String), ConnectError> {
    let config = match apiserver {
        Apiserver::InCluster => Config::incluster().map_err(ConnectError::InCluster)?,
        Apiserver::Kubeconfig(path) => {
            let error = |source| ConnectError::Kubeconfig {
                path: path.clone(),
                source: Box::new(source),
            };
            let file = Kubeconfig::read_from(path).map_err(error)?;
            let options = KubeConfigOptions::default();
            let config = Config::from_custom_kubeconfig(file, &options).await;
            config.map_err(error)?
        }
    };
    connected(config)
}

fn connected(mut config: Config) -> Result<(Client, String), ConnectError> {
    config.connect_timeout = Some(CONNECT);
    // The same pauses for every failure, and each of them seen.
    config.default_retry = false;
    let url = config.cluster_url.to_string();
    let url = url.trim_end_matches('/').to_owned();
    match Client::try_from(config) {
        Ok(client) => Ok((client, url)),
        Err(source) => Err(ConnectError::Client {
            url,
            source: Box::new(source),
        }),
    }
}
