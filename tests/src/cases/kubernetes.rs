//! The agent on a node of a real Kubernetes, as it is shipped.

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;

use super::{Case, Context, case, close_cpu};
use crate::harness::eventually;
use crate::kubernetes::{Pod, uid};

pub(super) mod colocation;
mod compare;
mod confined;
pub(super) mod cut_off;
pub(super) mod eviction;
pub(super) mod exempt;
pub(super) mod held;
pub(super) mod install;
pub(super) mod plan;
pub(super) mod plugin;
pub(super) mod pressure;
pub(super) mod reclaimed;
pub(super) mod removed;
pub(super) mod resize;
pub(super) mod secure;
mod shapes;
pub(super) mod soak;
pub(super) mod stand_in;
pub(super) mod summary;
pub(super) mod update;
pub(super) mod values;
pub(super) mod ways;

pub(super) const CASES: &[Case] = &[
    case("kubernetes_as_shipped", kubernetes_as_shipped),
    case("kubernetes_accounts", kubernetes_accounts),
];

/// Runs after all others: it ends what they share.
pub(super) const END: &[Case] = &[case("kubernetes_leaves_nothing", kubernetes_leaves_nothing)];

/// How long something may take that waits for the kubelet or for a controller.
const LIMIT: Duration = Duration::from_secs(60);

/// The shipped configuration, enforced, with a level that this node's pods reach.
fn enforcing(shipped: &str) -> String {
    shipped
        .replace("mode: observe", "mode: enforce")
        .replace("memory.available: 500Mi", "memory.available: 128Mi")
}

/// What is shipped is taken by the server and runs: the pod is ready, it observes, and no request of its
/// is refused.
fn kubernetes_as_shipped(context: &Context) -> Result<()> {
    let cluster = context.kubernetes()?;
    cluster.clear()?;
    cluster.agent_with(str::to_owned)?;
    eventually(LIMIT, || cluster.agent_is_ready())?;
    let uid = uid(&cluster.agent_pod()?)?;
    let node = cluster.node_stats()?;
    ensure!(node.mode == "observe", "its mode is {}", node.mode);
    let own = cluster.pod_stats(&uid)?;
    ensure!(own.source == "apiserver", "known by {}", own.source);
    let log = cluster.agent_log()?;
    ensure!(!log.contains("orbidden"), "a request is refused: {log}");
    Ok(())
}

/// The accounts of a pod are those of the kernel, containers by their names.
fn kubernetes_accounts(context: &Context) -> Result<()> {
    let cluster = context.kubernetes()?;
    cluster.clear()?;
    cluster.agent_with(enforcing)?;
    let pod = Pod::new(
        "busy",
        "while [ ! -e /go/busy ]; do sleep 2; done; \
         i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; /e2e workload anon --mib 48; true",
    );
    let uid = cluster.run_now(&pod)?;
    let cgroup = cluster.kubepods().child(&format!("besteffort/pod{uid}"));
    // Both at one moment: the pod used no CPU between the two readings of the kernel's, and the agent's is from between.
    let used = || {
        let (asked, kernel) = (Timestamp::now(), cgroup.cpu_ns()?);
        let told = eventually(LIMIT, || {
            let cpu = cluster.pod_stats(&uid)?.cpu;
            let time: Timestamp = cpu.time.parse()?;
            ensure!(time > asked, "figures of {time}, before {asked}");
            Ok(cpu.usage_core_nano_seconds)
        })?;
        ensure!(cgroup.cpu_ns()? == kernel, "it uses CPU");
        Ok((told, kernel))
    };
    // What the runtime did in the pod before the agent heard of it is left out.
    let (told_before, before): (u64, u64) = eventually(LIMIT, used)?;
    cluster.go("busy")?;
    eventually(LIMIT, || {
        let memory = cgroup.memory()?;
        let stats = cluster.pod_stats(&uid)?;
        let told = stats.memory.context("no memory is told")?;
        ensure!(memory.rss > 48 << 20, "it holds {} bytes", memory.rss);
        let (told_now, now) = used()?;
        let found = told_now.checked_sub(told_before).context("it is less")?;
        close_cpu(found, now - before)?;
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

/// Neither processes nor cgroups, mounts, networks, files or settings are left of a cluster.
fn kubernetes_leaves_nothing(context: &Context) -> Result<()> {
    let cluster =
        Rc::into_inner(context.take_kubernetes()?).context("a case has kept the cluster")?;
    cluster.stop()
}
