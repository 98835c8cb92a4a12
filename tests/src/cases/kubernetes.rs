//! The agent on a node of a real Kubernetes, as it is shipped.

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{Case, Context, case, close_cpu};
use crate::harness::{eventually, sleep};
use crate::kubernetes::{Cluster, Pod, condition};

pub(super) const CASES: &[Case] = &[
    case("kubernetes_as_shipped", kubernetes_as_shipped),
    case("kubernetes_accounts", kubernetes_accounts),
    case("kubernetes_eviction", kubernetes_eviction),
    // Last: it ends what the others share.
    case("kubernetes_leaves_nothing", kubernetes_leaves_nothing),
];

/// How long an evicted pod is looked at for a restart: a kubelet looks at every pod within this time.
const WATCHED: Duration = Duration::from_secs(8);
/// How long something may take that waits for the kubelet or for a controller.
const LIMIT: Duration = Duration::from_secs(60);

/// The shipped configuration, enforced, with a level that this node's pods reach.
fn enforcing(shipped: &str) -> String {
    shipped
        .replace("mode: observe", "mode: enforce")
        .replace("memory.available: 500Mi", "memory.available: 128Mi")
        + "capacity: {cpu: \"2\", memory: 1Gi}\n"
}

/// What is shipped is taken by the server and runs: the pod is ready, it observes, and no request of its
/// is refused.
fn kubernetes_as_shipped(context: &Context) -> Result<()> {
    let cluster = context.kubernetes()?;
    cluster.clear()?;
    cluster.agent_with(str::to_owned)?;
    eventually(LIMIT, || {
        let pod = cluster.agent_pod()?;
        let ready = condition(&pod, "Ready").context("it has no condition Ready")?;
        ensure!(ready["status"] == "True", "{ready}");
        Ok(())
    })?;
    let uid = uid(&cluster.agent_pod()?)?;
    let node = cluster.node_stats()?;
    ensure!(node.mode == "observe", "its mode is {}", node.mode);
    let own = cluster.pod_stats(&uid)?;
    ensure!(own.source == "apiserver", "known by {}", own.source);
    let log = cluster.agent_log()?;
    ensure!(!log.contains("orbidden"), "a request is refused: {log}");
    Ok(())
}

fn uid(object: &Value) -> Result<String> {
    let uid = object["metadata"]["uid"].as_str();
    uid.map(str::to_owned).context("it has no uid")
}

/// The accounts of a pod are those of the kernel, containers by their names.
fn kubernetes_accounts(context: &Context) -> Result<()> {
    let cluster = context.kubernetes()?;
    cluster.clear()?;
    cluster.agent_with(enforcing)?;
    let pod = Pod::new(
        "busy",
        "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; /e2e workload anon --mib 48; true",
    );
    let uid = cluster.run_now(&pod)?;
    let cgroup = cluster.kubepods().child(&format!("besteffort/pod{uid}"));
    eventually(LIMIT, || {
        let memory = cgroup.memory()?;
        let stats = cluster.pod_stats(&uid)?;
        let told = stats.memory.context("no memory is told")?;
        ensure!(memory.rss > 48 << 20, "it holds {} bytes", memory.rss);
        close_cpu(stats.cpu.usage_core_nano_seconds, cgroup.cpu_ns()?)?;
        let apart = told.working_set_bytes.abs_diff(memory.working_set());
        ensure!(apart < 1 << 20, "{told:?} and {memory:?}");
        let names: Vec<_> = stats
            .containers
            .iter()
            .map(|one| one.name.as_str())
            .collect();
        ensure!(names.contains(&"main"), "its containers are {names:?}");
        Ok(())
    })?;
    cluster.clear()
}

/// A BestEffort pod that fills memory dies, is marked as the kubelet marks one, and never runs again.
fn kubernetes_eviction(context: &Context) -> Result<()> {
    let cluster = context.kubernetes()?;
    cluster.clear()?;
    cluster.agent_with(enforcing)?;
    let calm = Pod::holding("calm", 64).requesting("96Mi", false);
    let filler = Pod::filler("filler", 1200, 500);
    let calm_uid = cluster.run_now(&calm)?;
    let uid = cluster.run_now(&filler)?;
    eventually(LIMIT, || {
        cluster.pod_stats(&uid)?;
        cluster.pod_stats(&calm_uid).map(drop)
    })?;
    cluster.go("filler")?;
    evicted(&cluster, "filler", &uid)?;
    ensure!(
        cluster.starts(&calm_uid)? == 1,
        "another pod was started again"
    );
    cluster.clear()
}

/// Waits until a pod is evicted and marked, and looks that it stays so and is not started again.
fn evicted(cluster: &Cluster, name: &str, uid: &str) -> Result<()> {
    eventually(LIMIT, || {
        let of_it = cluster.evictions()?;
        let of_it = of_it.iter().filter(|one| one.pod.uid == uid).count();
        ensure!(of_it == 1, "{of_it} evictions of it are told");
        stands(cluster, name)
    })
    .with_context(|| format!("{name} is not evicted"))?;
    sleep(WATCHED)?;
    stands(cluster, name)?;
    let starts = cluster.starts(uid)?;
    ensure!(starts == 1, "it was started {starts} times");
    Ok(())
}

/// The status that a kubelet gives a pod that it evicts.
fn stands(cluster: &Cluster, name: &str) -> Result<()> {
    let pod = cluster.pod(name)?;
    let status = &pod["status"];
    ensure!(
        status["phase"] == "Failed" && status["reason"] == "Evicted",
        "{status}"
    );
    let target = condition(&pod, "DisruptionTarget").context("no DisruptionTarget")?;
    ensure!(target["status"] == "True", "{target}");
    let container = &status["containerStatuses"][0];
    ensure!(container["restartCount"] == 0, "{container}");
    Ok(())
}

/// Neither processes nor cgroups, mounts, networks, files or settings are left of a cluster.
fn kubernetes_leaves_nothing(context: &Context) -> Result<()> {
    let cluster =
        Rc::into_inner(context.take_kubernetes()?).context("a case has kept the cluster")?;
    cluster.stop()
}
