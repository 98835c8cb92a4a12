//! A node that is short of memory takes no new pods.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{LIMIT, enforcing};
use crate::cases::{Case, Context, case};
use crate::harness::eventually;
use crate::kubernetes::{Cluster, NODE, PODS, Pod, condition};

pub(in crate::cases) const CASES: &[Case] = &[
    case(
        "kubernetes_pressure_is_others",
        kubernetes_pressure_is_others,
    ),
    case("kubernetes_pressure_taint", kubernetes_pressure_taint),
];

const TAINT: &str = "podwarden.io/memory-pressure";
/// What the node controller puts on a Node for the kubelet's condition.
const KUBERNETES_TAINT: &str = "node.kubernetes.io/memory-pressure";
/// Longest pause after refusals, 60 s (`agent/src/base/backoff.rs`), and some.
const REFUSED: Duration = Duration::from_secs(90);
/// How long pressure counts.
const CALM: &str = "evictionPressureTransitionPeriod: 8s";
const ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/podwarden";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

fn path() -> String {
    format!("/api/v1/nodes/{NODE}")
}

fn has_taint(cluster: &Cluster, key: &str) -> Result<bool> {
    let node = cluster.api.get(&path())?;
    let taints = node["spec"]["taints"].as_array();
    Ok(taints.is_some_and(|taints| taints.iter().any(|taint| taint["key"] == key)))
}

/// Why podwarden has a taint of its own: a kubelet takes the condition back, and the node controller its own taint.
fn kubernetes_pressure_is_others(context: &Context) -> Result<()> {
    let cluster = context.kubernetes()?;
    let node = cluster.api.get(&path())?;
    let mut conditions = node["status"]["conditions"].clone();
    let listed = conditions.as_array_mut().context("it has no conditions")?;
    for one in listed
        .iter_mut()
        .filter(|one| one["type"] == "MemoryPressure")
    {
        one["status"] = "True".into();
        one["reason"] = "PodwardenSaysSo".into();
    }
    let status = format!("{}/status", path());
    let since = Instant::now();
    cluster
        .api
        .patch(&status, &json!({"status": {"conditions": conditions}}))?;
    eventually(LIMIT, || {
        let node = cluster.api.get(&path())?;
        let found = condition(&node, "MemoryPressure").context("it has no such condition")?;
        ensure!(found["status"] == "False", "{found}");
        Ok(())
    })
    .context("the kubelet leaves the condition")?;
    context.figure("condition_taken_back", since.elapsed().as_secs_f64(), "s");
    eventually(LIMIT, || {
        ensure!(!has_taint(&cluster, KUBERNETES_TAINT)?, "it is tainted");
        Ok(())
    })?;
    let taint = json!({"key": KUBERNETES_TAINT, "effect": "NoSchedule"});
    let since = Instant::now();
    cluster
        .api
        .patch(&path(), &json!({"spec": {"taints": [taint]}}))?;
    eventually(LIMIT, || {
        ensure!(!has_taint(&cluster, KUBERNETES_TAINT)?, "it is tainted");
        Ok(())
    })
    .context("the node controller leaves the taint")?;
    context.figure("taint_taken_back", since.elapsed().as_secs_f64(), "s");
    Ok(())
}

/// A Deployment's pod is evicted: its replacement waits until memory was not short for a time.
fn kubernetes_pressure_taint(context: &Context) -> Result<()> {
    let cluster = context.kubernetes()?;
    cluster.clear()?;
    // As an agent that was killed leaves it.
    let taint = json!({"key": TAINT, "effect": "NoSchedule"});
    cluster
        .api
        .patch(&path(), &json!({"spec": {"taints": [taint]}}))?;
    let waited = with_rights(&cluster, context);
    // Also after a failure the next case's pods may come to this node.
    cluster
        .api
        .patch(&path(), &json!({"spec": {"taints": null}}))?;
    waited?;
    cluster.clear()
}

/// Has the agent keep the taint, for which it needs more rights than it ships with.
fn with_rights(cluster: &Cluster, context: &Context) -> Result<()> {
    cluster
        .agent_with(|shipped| format!("{}\nnodeCondition: true\n{CALM}\n", enforcing(shipped)))?;
    let granted = cluster.api.get(ROLE)?["rules"].take();
    let mut more = granted.clone();
    let rules = more.as_array_mut().context("it has no rules")?;
    rules.push(
        json!({"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["patch"]}),
    );
    cluster.api.patch(ROLE, &json!({"rules": more}))?;
    let waited = replacement_waits(cluster, context);
    cluster.api.delete(&format!("{DEPLOYMENTS}/filler"))?;
    cluster.without_agent()?;
    cluster.api.patch(ROLE, &json!({"rules": granted}))?;
    waited
}

fn replacement_waits(cluster: &Cluster, context: &Context) -> Result<()> {
    // It may: the agent tries again what was refused before, the taint and the condition each in its own time.
    eventually(REFUSED, || {
        ensure!(!has_taint(cluster, TAINT)?, "the old taint is there");
        Ok(())
    })?;
    let pod = cluster.manifest(&Pod::filler("filler", 1200, 500))?;
    let labels = json!({"app": "filler"});
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "filler"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod["spec"]},
        },
    });
    cluster.api.create(DEPLOYMENTS, &deployment)?;
    let first = eventually(LIMIT, || {
        let pods = pods(cluster)?;
        ensure!(pods.len() == 1, "{} pods", pods.len());
        let name = pods[0]["metadata"]["name"].as_str().context("no name")?;
        cluster.running(name)?;
        let uid = pods[0]["metadata"]["uid"].as_str().context("no uid")?;
        cluster.pod_stats(uid)?;
        Ok(uid.to_owned())
    })?;
    ensure!(!has_taint(cluster, TAINT)?, "it is tainted already");
    let since = Instant::now();
    cluster.go("filler")?;
    let next = eventually(LIMIT, || {
        let pods = pods(cluster)?;
        let next = pods.into_iter().find(|pod| pod["metadata"]["uid"] != first);
        let next = next.context("it is not replaced")?;
        let scheduled =
            condition(&next, "PodScheduled").context("the scheduler has not seen it")?;
        ensure!(has_taint(cluster, TAINT)?, "the node has no taint: {next}");
        ensure!(
            scheduled["reason"] == "Unschedulable",
            "it was scheduled: {scheduled}"
        );
        Ok(next)
    })?;
    cluster.stay("filler")?;
    ensure!(
        next["spec"]["nodeName"].is_null(),
        "it was sent to {}",
        next["spec"]["nodeName"]
    );
    let name = next["metadata"]["name"].as_str().context("no name")?;
    cluster.running(name)?;
    context.figure("replaced", since.elapsed().as_secs_f64(), "s");
    ensure!(!has_taint(cluster, TAINT)?, "it is tainted still");
    Ok(())
}

fn pods(cluster: &Cluster) -> Result<Vec<Value>> {
    cluster
        .api
        .list(&format!("{PODS}?labelSelector=app%3Dfiller"))
}
