//! The DaemonSet is updated while a pod fills memory.

use anyhow::{Context as _, Result, ensure};
use podwarden::api::types::TookOver;
use serde_json::json;

use super::LIMIT;
use super::eviction::Scene;
use crate::cases::restarts::{gap, last_take_over};
use crate::cases::{Case, Context, slow};
use crate::harness::eventually;
use crate::kubernetes::{Cluster, condition, uid};

pub(in crate::cases) const CASES: &[Case] = &[slow("kubernetes_update", kubernetes_update)];

const SET: &str = "/apis/apps/v1/namespaces/podwarden/daemonsets/podwarden";
const PODS: &str = "/api/v1/namespaces/podwarden/pods";

/// The new pod is Ready beside the old one, which is ended only then; the one or the other evicts the pod that fills memory
/// from that moment on.
fn kubernetes_update(context: &Context) -> Result<()> {
    for run in 1..=context.repetitions(1) {
        let scene = Scene::new(context)?;
        let cluster = &scene.cluster;
        // The controller replaces a pod that is not ready without waiting for the new one.
        eventually(LIMIT, || cluster.agent_is_ready())?;
        let old = uid(&cluster.agent_pod()?)?;
        let template = json!({"metadata": {"annotations": {"update": format!("{old}-{run}")}}});
        cluster
            .api
            .patch(SET, &json!({"spec": {"template": template}}))?;
        eventually(LIMIT, || old_one_ends(cluster, &old)).context("the old pod is not ended")?;
        scene.evict()?;
        let took_over = eventually(LIMIT, || took_over(cluster))?;
        gap(context, &took_over, "update");
        ensure!(took_over.ended_nanos.is_some(), "{took_over:?}");
        eventually(LIMIT, || {
            let new = cluster.agent_pod()?;
            ensure!(uid(&new)? != old, "the old pod is left");
            let restarts = &new["status"]["containerStatuses"][0]["restartCount"];
            ensure!(*restarts == 0, "the new one was started again: {restarts}");
            Ok(())
        })?;
        scene.stays_evicted(LIMIT)?;
        cluster.clear()?;
    }
    Ok(())
}

/// The old pod is deleted, which the controller does once the new one is Ready.
fn old_one_ends(cluster: &Cluster, old: &str) -> Result<()> {
    let pods = cluster.api.list(PODS)?;
    let is_old = |pod: &&serde_json::Value| pod["metadata"]["uid"] == old;
    let (before, after): (Vec<_>, Vec<_>) = pods.iter().partition(is_old);
    let ends = before
        .iter()
        .all(|pod| pod["metadata"]["deletionTimestamp"].is_string());
    ensure!(ends && !after.is_empty(), "{} pods", pods.len());
    for pod in after {
        let ready = condition(pod, "Ready").context("no condition Ready")?;
        ensure!(
            ready["status"] == "True",
            "the old pod ends before: {ready}"
        );
    }
    Ok(())
}

fn took_over(cluster: &Cluster) -> Result<TookOver> {
    let events = cluster.ask("/v1/events?after=0")?;
    last_take_over(events).context("the agent does not say that it took over")
}
