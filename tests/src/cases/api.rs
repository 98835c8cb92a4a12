//! The API's endpoints as a script sees them.

use anyhow::{Result, ensure};
use serde_json::Value;

use super::{Case, Context, portable};
use crate::harness::{Node, Options, PodSpec, http_get, http_request};

pub(super) const CASES: &[Case] = &[portable("api_endpoints", api_endpoints)];

fn api_endpoints(context: &Context) -> Result<()> {
    let node = Node::start(context, &Options::default())?;
    let pod = node.pod(PodSpec::burstable("web", "64Mi"))?;
    pod.start(&["storm", "--count", "3"])?
        .done(context.limit(30))?;
    node.expect(pod.uid(), |stats| {
        ensure!(stats.exits.total == 4, "{} exits", stats.exits.total);
        Ok(())
    })?;
    let socket = node.agent.socket();
    for (path, status) in [
        ("/healthz", 200),
        ("/readyz", 200),
        ("/v1/node", 200),
        ("/v1/pods", 200),
        ("/v1/events", 200),
        ("/v1/pods/no-such-uid", 404),
        ("/v1/nothing", 404),
        ("/v1/events?after=x", 400),
    ] {
        let answer = http_get(socket, path)?;
        ensure!(
            answer.status == status,
            "GET {path}: {} {}",
            answer.status,
            answer.text()
        );
        if status >= 400 {
            let body: Value = serde_json::from_slice(&answer.body)?;
            ensure!(body["error"].is_string(), "GET {path}: {body}");
        }
    }
    let answer = http_get(socket, "/v1/pods/no-such-uid")?;
    ensure!(
        answer.text().contains("no-such-uid"),
        "the uid is not named: {}",
        answer.text()
    );
    let answer = http_request(socket, "DELETE", "/v1/pods")?;
    ensure!(answer.status == 405, "DELETE /v1/pods: {}", answer.status);
    names_of_fields(&node, pod.uid())?;
    metrics(&node, pod.uid())?;
    node.finish()
}

/// The names that scripts rely on are those of the kubelet's Summary API.
fn names_of_fields(node: &Node, uid: &str) -> Result<()> {
    let list: Value = node.agent.get("/v1/pods")?;
    let pod = &list["pods"][0];
    ensure!(pod["podRef"]["uid"] == uid, "{pod}");
    ensure!(
        pod["podRef"]["name"] == "web" && pod["podRef"]["namespace"] == "e2e",
        "{pod}"
    );
    ensure!(
        pod["qosClass"] == "Burstable" && pod["source"] == "manifest",
        "{pod}"
    );
    for (object, field) in [
        ("cpu", "usageCoreNanoSeconds"),
        ("memory", "usageBytes"),
        ("memory", "workingSetBytes"),
        ("memory", "rssBytes"),
    ] {
        ensure!(pod[object][field].is_u64(), "no {object}.{field} in {pod}");
    }
    Ok(())
}

fn metrics(node: &Node, uid: &str) -> Result<()> {
    let answer = http_get(node.agent.socket(), "/metrics")?;
    ensure!(answer.status == 200, "/metrics: {}", answer.status);
    let text = answer.text();
    let of_pod: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#') && line.contains(uid))
        .collect();
    for unit in ["_seconds_total{", "_bytes{"] {
        ensure!(
            of_pod.iter().any(|line| line.contains(unit)),
            "no metric of the pod in {unit}"
        );
    }
    for line in text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
    {
        let value = line.rsplit(' ').next().unwrap_or_default();
        ensure!(value.parse::<f64>().is_ok(), "no value in {line:?}");
    }
    Ok(())
}
