//! A resize that the kubelet has not granted.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::eviction::{evicted_once, marked};
use super::shapes::amounts;
use super::{LIMIT, enforcing};
use crate::cases::{Case, Context, case};
use crate::harness::{eventually, sleep};
use crate::kubernetes::{Cluster, PODS, Pod, condition, uid};

pub(in crate::cases) const CASES: &[Case] = &[case(
    "kubernetes_resize_not_granted",
    kubernetes_resize_not_granted,
)];

/// A pod that asks for more than the node can give it stays over what it was granted, and goes first when it fills memory;
/// counted by what it asks for, it would be below its request, and the pod beside it would go.
fn kubernetes_resize_not_granted(context: &Context) -> Result<()> {
    let cluster = context.kubernetes()?;
    cluster.clear()?;
    cluster.agent_with(enforcing)?;
    let calm = Pod::holding("calm", 64).requesting("16Mi", false);
    let calm = cluster.run_now(&calm)?;
    let filler = Pod::filler("filler", 1200, 500).requesting("16Mi", false);
    let filler = cluster.run_now(&filler)?;
    eventually(LIMIT, || {
        cluster.pod_stats(&filler)?;
        cluster.pod_stats(&calm).map(drop)
    })?;
    ask_for(&cluster, "1020Mi")?;
    let pod = eventually(LIMIT, || pending(&cluster))?;
    ensure!(uid(&pod)? == filler, "another pod");
    cluster.go("filler")?;
    eventually(LIMIT, || marked(&cluster, "filler"))?;
    let evicted = || evicted_once(&cluster, &filler, &calm);
    eventually(LIMIT, evicted)?;
    sleep(Duration::from_secs(1))?;
    evicted()?;
    ensure!(
        cluster.starts(&calm)? == 1,
        "the other pod was started again"
    );
    cluster.clear()
}

/// Has the filler ask for so much memory.
fn ask_for(cluster: &Cluster, memory: &str) -> Result<()> {
    let requests = amounts("10m", memory);
    let container = json!({"name": "main", "resources": {"requests": requests}});
    let asked = json!({"spec": {"containers": [container]}});
    let path = format!("{PODS}/filler/resize");
    let kind = "application/strategic-merge-patch+json";
    let (code, said) = cluster.api.answer("PATCH", &path, kind, &asked)?;
    ensure!(code == 200, "{code}: {said:?}");
    Ok(())
}

/// The pod, once the kubelet says that it does not get what it asks for.
fn pending(cluster: &Cluster) -> Result<Value> {
    let pod = cluster.pod("filler")?;
    let pending = condition(&pod, "PodResizePending").context("nothing is pending")?;
    ensure!(pending["status"] == "True", "{pending}");
    Ok(pod)
}
