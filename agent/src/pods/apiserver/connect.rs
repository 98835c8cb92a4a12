//! The API server's address and the agent's credentials.

use std::{path::PathBuf, time::Duration};

use kube::{
    Client, Config,
    config::{AuthInfo, InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};

use crate::config::{ApiserverConfig, is_loopback};

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
    #[error(
        "{url} is neither https nor a loopback address, and the credentials of this user would go over the network \
         for all to read; write https, or a user without credentials"
    )]
    InTheOpen { url: String },
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
    let is_private =
        config.cluster_url.scheme_str() == Some("https") || is_loopback(&config.cluster_url);
    if !is_private && has_credentials(&config.auth_info) {
        return Err(ConnectError::InTheOpen { url });
    }
    match Client::try_from(config) {
        Ok(client) => Ok((client, url)),
        Err(source) => Err(ConnectError::Client {
            url,
            source: Box::new(source),
        }),
    }
}

/// Whether a user of a kubeconfig shows the server anything that only the server may see.
fn has_credentials(user: &AuthInfo) -> bool {
    let texts = [
        &user.username,
        &user.token_file,
        &user.client_certificate,
        &user.client_certificate_data,
        &user.client_key,
    ];
    let secrets = [&user.password, &user.token, &user.client_key_data];
    texts.into_iter().any(Option::is_some)
        || secrets.into_iter().any(Option::is_some)
        || user.auth_provider.is_some()
        || user.exec.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(server: &str, user: &str) -> Result<(), String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        let text = format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: \"{server}\"}}}}]\nusers: [{{name: u, user: {user}}}]\n"
        );
        std::fs::write(&path, text).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let client = runtime.block_on(client(&Apiserver::Kubeconfig(path)));
        client.map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn credentials_go_over_no_network_in_the_open() {
        for user in [
            "{token: hidden}",
            "{username: a, password: hidden}",
            "{tokenFile: /nowhere}",
        ] {
            let error = connect("http://10.0.0.1:8080", user).unwrap_err();
            assert!(
                error.contains("http://10.0.0.1:8080 is neither https"),
                "{error}"
            );
            assert!(!error.contains("hidden"), "{error}");
        }
        connect("http://127.0.0.1:8080", "{token: hidden}").unwrap();
        connect("https://10.0.0.1", "{token: hidden}").unwrap();
        connect("http://10.0.0.1:8080", "{}").unwrap();
    }
}
