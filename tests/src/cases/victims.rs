//! What a pod's author can write, and what no source explains, makes no pod exempt.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{Case, Context, apiserver::World, eviction::small, portable};
use crate::harness::{
    Cgroup, NODE, Node, PodSpec, Workload, eventually, fresh_uid, http_get, until,
};

pub(super) const CASES: &[Case] = &[
    portable("victims_unexplained", unexplained),
    portable("victims_not_known_yet", not_known_yet),
    portable("victims_annotated", annotated),
    portable("victims_resize", resize),
];

const MIB: u64 = 1 << 20;

/// Fills `cgroup` until `kubepods` is past its level.
fn fill(node: &Node, cgroup: &Cgroup) -> Result<Workload> {
    let usage = node.kubepods().memory()?.usage;
    let mib = (node.level()? + 64 * MIB).saturating_sub(usage) / MIB;
    Workload::start(
        cgroup,
        &["fill", "--mib", &mib.to_string(), "--rate", "200"],
    )
}

/// The uid of the first pod that was evicted.
pub(super) fn first_evicted(node: &Node) -> Result<String> {
    eventually(node.limit(), || {
        let first = node.agent.evictions()?.into_iter().next();
        first
            .map(|eviction| eviction.pod.uid.to_string())
            .context("no eviction")
    })
}

/// The container's cgroup of a pod that no manifest describes.
pub(super) fn stranger(node: &Node, uid: &str) -> Result<Cgroup> {
    let path = format!("kubepods/besteffort/pod{uid}/main");
    let main = node.sandbox.root.child(&path);
    main.create_below(&node.sandbox.root)?;
    Ok(main)
}

/// Removes it, and its pod's.
pub(super) fn forget(node: &Node, main: &Cgroup, uid: &str) -> Result<()> {
    main.remove()?;
    let pod = format!("kubepods/besteffort/pod{uid}");
    node.sandbox.root.child(&pod).remove()
}

/// A pod of which no source has told yet fills memory: those that are known live on until it may be evicted.
fn not_known_yet(context: &Context) -> Result<()> {
    let node = Node::start(context, &small("enforce"))?;
    let known = [
        (PodSpec::best_effort("known"), "2"),
        (PodSpec::burstable("modest", "64Mi"), "48"),
    ];
    let mut held = Vec::new();
    for (spec, mib) in known {
        let pod = node.pod(spec)?;
        held.push(pod.start(&["anon", "--mib", mib])?);
    }
    let uid = fresh_uid();
    let main = stranger(&node, &uid)?;
    until(node.limit(), "the agent sees its cgroup", || {
        node.agent.pod(&uid).is_ok()
    })?;
    let mut filler = fill(&node, &main)?;
    let evicted = first_evicted(&node)?;
    ensure!(evicted == uid, "{evicted} was evicted, not {uid}");
    until(node.limit(), "its end", || !filler.is_alive())?;
    ensure!(held.iter_mut().all(Workload::is_alive), "a known pod ended");
    drop((held, filler));
    forget(&node, &main, &uid)?;
    node.finish()
}

/// A cgroup of a pod that no manifest describes fills memory: it is evicted, and counted.
fn unexplained(context: &Context) -> Result<()> {
    let node = Node::start(context, &small("enforce"))?;
    let known = node.pod(PodSpec::best_effort("known"))?;
    let mut holds = known.start(&["anon", "--mib", "48"])?;
    let uid = fresh_uid();
    let main = stranger(&node, &uid)?;
    let mut idle = Workload::start(&main, &["anon", "--mib", "1"])?;
    // It has to stay unexplained for 10 s.
    until(context.limit(40), "it counts as unexplained", || {
        (node.agent.node()).is_ok_and(|stats| stats.unexplained_cgroups == 1)
    })?;
    let said = node.agent.node()?.degradations;
    ensure!(said.iter().any(|text| text.contains(&uid)), "{said:?}");
    let metrics = http_get(node.agent.socket(), "/metrics")?.body;
    let metrics = String::from_utf8_lossy(&metrics);
    ensure!(
        metrics.contains("\npodwarden_unexplained_cgroups 1\n"),
        "the metric"
    );
    let mut filler = fill(&node, &main)?;
    let evicted = first_evicted(&node)?;
    ensure!(evicted == uid, "{evicted} was evicted, not {uid}");
    until(node.limit(), "the end of its processes", || {
        !filler.is_alive() && !idle.is_alive()
    })?;
    ensure!(holds.is_alive(), "the pod with a manifest was evicted");
    drop((holds, idle, filler));
    forget(&node, &main, &uid)?;
    node.finish()
}

/// A pod of the API server with its container's cgroup.
fn pod(world: &World, spec: &PodSpec, object: Value) -> Result<Cgroup> {
    world.server.create_pod(NODE, object)?;
    let cgroup = world.node.cgroup_of(spec);
    until(world.node.limit(), "its cgroup", || cgroup.exists())?;
    let main = cgroup.child("main");
    main.create()?;
    Ok(main)
}

fn finish(world: World, mains: &[Cgroup]) -> Result<()> {
    for main in mains {
        main.remove()?;
    }
    world.node.finish()
}

/// A pod says of itself that it is a static pod, and its own mirror.
fn annotated(context: &Context) -> Result<()> {
    let mut world = World::with(context, small("enforce"), |_| Ok(()))?;
    world.ready(context)?;
    let (hog, other) = (
        PodSpec::best_effort("hog"),
        PodSpec::guaranteed("other", "64Mi"),
    );
    let mut object = hog.manifest();
    object["metadata"]["annotations"] = json!({
        "kubernetes.io/config.source": "file",
        "kubernetes.io/config.mirror": hog.uid,
    });
    let main = pod(&world, &hog, object)?;
    let beside = pod(&world, &other, other.manifest())?;
    let mut holds = Workload::start(&beside, &["anon", "--mib", "48"])?;
    let mut filler = fill(&world.node, &main)?;
    let evicted = first_evicted(&world.node)?;
    ensure!(evicted == hog.uid, "{evicted} was evicted, not the hog");
    until(world.node.limit(), "its end", || !filler.is_alive())?;
    ensure!(holds.is_alive(), "the other pod was evicted");
    drop((holds, filler));
    finish(world, &[main, beside])
}

/// A pod asks to be resized to more than the node has: what it was granted counts.
fn resize(context: &Context) -> Result<()> {
    let mut world = World::with(context, small("enforce"), |_| Ok(()))?;
    world.ready(context)?;
    let asks = PodSpec::burstable("asks", "32Mi");
    let modest = PodSpec::burstable("modest", "128Mi");
    let mut object = asks.manifest();
    object["spec"]["containers"][0]["resources"]["requests"]["memory"] = "21Gi".into();
    object["status"] = json!({
        "phase": "Running",
        "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}],
        "containerStatuses": [{
            "name": "main",
            "containerID": "containerd://main",
            "allocatedResources": {"cpu": "100m", "memory": "32Mi"},
            "resources": {"requests": {"cpu": "100m", "memory": "32Mi"}},
        }],
    });
    let main = pod(&world, &asks, object)?;
    let beside = pod(&world, &modest, modest.manifest())?;
    let mut holds = Workload::start(&beside, &["anon", "--mib", "64"])?;
    until(world.node.limit(), "its memory", || {
        (beside.memory()).is_ok_and(|memory| memory.rss >= 63 * MIB)
    })?;
    let mut filler = fill(&world.node, &main)?;
    let evicted = first_evicted(&world.node)?;
    ensure!(
        evicted == asks.uid,
        "the pod within its request was evicted"
    );
    until(world.node.limit(), "its end", || !filler.is_alive())?;
    crate::harness::sleep(Duration::from_millis(200))?;
    ensure!(
        holds.is_alive(),
        "the pod within its request was evicted too"
    );
    drop((holds, filler));
    finish(world, &[main, beside])
}
