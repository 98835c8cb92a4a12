//! The kubelet: the pods that it runs, by polling its `/pods`.
//!
//! It has no watch. Its answer is a whole list of what it has admitted, static pods among them, also
//! while no API server can be reached.

use std::time::Duration;

use kube::{
    config::Kubeconfig,
    core::{Request, params::ListParams},
};
use serde_json::json;

use super::{
    Source,
    apiserver::{connect, object::List},
    http::{HttpError, HttpRequest, Operation, PollSource, RequestError, Server},
    mux::PodEvent,
};
use crate::config::KubeletConfig;

impl PollSource for KubeletConfig {
    const OPERATION: Operation = Operation {
        name: "GET /pods",
        right: "get of nodes/pods, before Kubernetes 1.33 nodes/proxy",
        time: Duration::from_secs(20),
    };

    fn interval(&self) -> Duration {
        self.interval
    }

    /// The files are read anew with every client, and the token also in between.
    async fn server(&self) -> Result<Server, HttpError> {
        let path = |path: &std::path::PathBuf| path.display().to_string();
        let text = json!({
            "current-context": "kubelet",
            "contexts": [{"name": "kubelet", "context": {"cluster": "kubelet", "user": "kubelet"}}],
            "clusters": [{"name": "kubelet", "cluster": {
                "server": self.url,
                "certificate-authority": self.certificate_authority.as_ref().map(path),
                "tls-server-name": self.server_name,
            }}],
            "users": [{"name": "kubelet", "user": {"tokenFile": self.token_file.as_ref().map(path)}}],
        });
        let client = connect::kubelet_client(Kubeconfig::from_yaml(&text.to_string())).await?;
        let name = format!("the kubelet {}", self.url);
        Ok(Server { client, name })
    }

    fn request(&self) -> HttpRequest {
        Request::new("/pods").list(&ListParams::default())
    }

    fn read(&mut self, text: &str) -> Result<PodEvent, RequestError> {
        let list: List<'_> = serde_json::from_str(text).map_err(RequestError::Answer)?;
        let (pods, errors) = list.pods(Source::Kubelet);
        Ok(PodEvent::Replace { pods, errors })
    }
}
