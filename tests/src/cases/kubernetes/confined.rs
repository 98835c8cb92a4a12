//! The shipped policy confines a token of the agent's to the status of its own node and of the pods on it.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::LIMIT;
use crate::harness::eventually;
use crate::kubernetes::{Client, Cluster, NODE, uid};

const PODS: &str = "/api/v1/namespaces/podwarden/pods";
const TOKENS: &str = "/api/v1/namespaces/podwarden/serviceaccounts/podwarden/token";
/// A pod of a node that there is not, with the agent's service account.
const ELSEWHERE: &str = "elsewhere";
/// What the policy answers, beside 403: so would a missing right.
const NOT_ITS_OWN: &str = "its own node and to the pods on it alone";
const NO_NODE: &str = "names no node";

/// The agent may write both, and a token of another node's agent, or of none, neither.
pub(super) fn to_its_own_node(cluster: &Cluster) -> Result<()> {
    let workspace = xtask::paths::Workspace::locate();
    let file = workspace
        .root()
        .join("deploy/colocation/confine-agent.yaml");
    let file = file.display().to_string();
    let own = cluster.agent_pod()?;
    cluster.kubectl(&["apply", "-f", &file])?;
    let other = cluster.api.create(PODS, &elsewhere())?;
    let checked = checked(cluster, &own, &other);
    let path = format!("{PODS}/{ELSEWHERE}?gracePeriodSeconds=0");
    cluster.api.delete(&path)?;
    cluster.kubectl(&["delete", "-f", &file])?;
    checked
}

fn elsewhere() -> Value {
    json!({
        "metadata": {"name": ELSEWHERE},
        "spec": {
            "nodeName": ELSEWHERE,
            "serviceAccountName": "podwarden",
            "containers": [{"name": "main", "image": "none"}],
        },
    })
}

fn checked(cluster: &Cluster, own: &Value, other: &Value) -> Result<()> {
    let node = format!("/api/v1/nodes/{NODE}/status");
    let [own_status, other_status] = [status_of(own)?, status_of(other)?];
    let loose = cluster.api_as(&token(cluster, None)?)?;
    // The server takes a moment until a policy is in force.
    eventually(LIMIT, || refused(&loose, &node, NO_NODE))?;

    let agent = cluster.api_as(&token(cluster, Some(own))?)?;
    written(&agent, &node)?;
    written(&agent, &own_status)?;
    refused(&agent, &other_status, NOT_ITS_OWN)?;

    let stolen = cluster.api_as(&token(cluster, Some(other))?)?;
    written(&stolen, &other_status)?;
    refused(&stolen, &node, NOT_ITS_OWN)?;
    refused(&stolen, &own_status, NOT_ITS_OWN)
}

fn status_of(pod: &Value) -> Result<String> {
    let name = pod["metadata"]["name"].as_str().context("no name")?;
    Ok(format!("{PODS}/{name}/status"))
}

/// A token of the agent's account, as the kubelet gets it for a pod, or as an administrator does.
fn token(cluster: &Cluster, pod: Option<&Value>) -> Result<String> {
    let bound = match pod {
        None => Value::Null,
        Some(pod) => json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "name": pod["metadata"]["name"],
            "uid": uid(pod)?,
        }),
    };
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"boundObjectRef": bound},
    });
    let made = cluster.api.create(TOKENS, &request)?;
    let token = made["status"]["token"].as_str();
    token.map(str::to_owned).context("no token was made")
}

/// A write of an annotation, as a patch of the status: its code and what the server says.
fn write(client: &Client, path: &str) -> Result<(u16, String)> {
    let patch = json!({"metadata": {"annotations": {"e2e": "confined"}}});
    let (code, said) = client.answer("PATCH", path, "application/merge-patch+json", &patch)?;
    let message = said.first().map(|said| said["message"].to_string());
    Ok((code, message.unwrap_or_default()))
}

fn written(client: &Client, path: &str) -> Result<()> {
    let (code, message) = write(client, path)?;
    ensure!(code == 200, "{path}: {code} {message}");
    Ok(())
}

fn refused(client: &Client, path: &str, why: &str) -> Result<()> {
    let (code, message) = write(client, path)?;
    let by_policy = code != 200 && message.contains(why);
    ensure!(by_policy, "{path}: {code} {message}");
    Ok(())
}
