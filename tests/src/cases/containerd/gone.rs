//! A pod that is gone from its source while the runtime runs it.

use std::fs;

use anyhow::{Result, ensure};

use super::{NAMESPACE, World, network_is_down, options};
use crate::cases::Context;
use crate::containerd::{Containerd, TEARDOWN};
use crate::harness::{PodSpec, eventually, until};

/// A pod is gone from its source: it is asked to end, its sandbox is taken down last, and a pod that only the runtime has
/// heard of runs on.
pub(super) fn containerd_pod_gone(context: &Context) -> Result<()> {
    let containerd = Containerd::start(context)?;
    let mut world = World::with(context, options(&containerd.socket()), |_| Ok(()))?;
    world.ready(context)?;
    let go = world.node.sandbox.dir().join("go");
    fs::create_dir(&go)?;
    let run = |world: &World, spec: &PodSpec, script: &str| {
        let cgroup = world.node.cgroup_of(spec);
        until(world.node.limit(), "the pod's cgroup", || cgroup.exists())?;
        containerd.run_pod(spec, &cgroup, &go, script)
    };
    let spec = PodSpec::best_effort("leaving");
    world.add(&spec)?;
    let polite = "trap 'echo asked > /go/asked; exit 0' TERM; while :; do usleep 10000; done";
    let pod = run(&world, &spec, polite)?;
    let stranger = PodSpec::best_effort("stranger").in_namespace("elsewhere");
    world.node.cgroup_of(&stranger).create()?;
    let other = run(&world, &stranger, "sleep 1000")?;
    for spec in [&spec, &stranger] {
        world.node.expect(&spec.uid, |stats| {
            ensure!(stats.containers.len() == 2, "{:?}", stats.containers);
            Ok(())
        })?;
    }
    world.server.remove_pod(NAMESPACE, &spec.name)?;
    eventually(TEARDOWN, || {
        let state = containerd.state_of(&pod)?;
        ensure!(state == (false, false), "ready and running: {state:?}");
        network_is_down(&containerd, &pod)
    })?;
    ensure!(
        go.join("asked").exists(),
        "it was killed without being asked"
    );
    let state = containerd.state_of(&other)?;
    ensure!(state == (true, true), "the other is {state:?}");
    containerd.remove(&pod)?;
    containerd.remove(&other)?;
    let cgroup = world.node.cgroup_of(&stranger);
    eventually(world.node.limit(), || cgroup.remove())?;
    world.node.finish()
}
