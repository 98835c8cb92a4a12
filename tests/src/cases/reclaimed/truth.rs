//! What the Node's status offers is true again soon after the agent was killed, and after the API server was away; a
//! pod that runs keeps its values throughout.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::json;

use super::{BATCH_CPU, BATCH_MEMORY, holds, offered};
use crate::apiserver::Outage;
use crate::cases::Context;
use crate::cases::apiserver::World;
use crate::cases::recorder::restart;
use crate::harness::{Cgroup, NODE, Options, PodSpec, eventually};

/// What is promised, after the agent or the server is back.
const SOON: Duration = Duration::from_secs(60);
/// What nothing on this node comes to.
const TOO_MUCH: u64 = 1 << 50;

pub(super) fn reclaimed_is_true_again(context: &Context) -> Result<()> {
    let options = Options {
        // A pod counts with its request at once, and memory with what was used just now.
        config: "colocation: {reclaimed: {publish: true, enforce: true, memoryCalculatePolicy: request, \
                 metricAggregateDurationSeconds: 10}}\n"
            .to_owned(),
        ..Options::default()
    };
    let kubelets = json!({"cpu": "8", "memory": "16Gi"});
    let mut world = World::with(context, options, |server| {
        let status = json!({"capacity": kubelets, "allocatable": kubelets});
        server.create_node(NODE, &status)?;
        Ok(())
    })?;
    world.ready(context)?;
    let held = world.add(&PodSpec::batch("held", 500, "64Mi"))?;
    eventually(world.node.limit(), || {
        holds(&held)?;
        is_true(&world)
    })?;

    killed(context, &mut world, &held)?;
    away(context, &mut world, &held)?;
    world.node.agent.stop(Signal::SIGTERM, context.limit(20))
}

/// No more is offered than what is computed, and no less than what is held.
fn is_true(world: &World) -> Result<()> {
    let computed = world.node.agent.node()?.reclaimed;
    let computed = computed.context("nothing is computed")?.batch;
    let memory = offered(world, BATCH_MEMORY)?;
    ensure!(
        memory <= computed.memory_bytes / 9 * 10,
        "{memory} bytes are offered of {}",
        computed.memory_bytes
    );
    let cpu = offered(world, BATCH_CPU)?;
    ensure!(
        cpu >= computed.held_cpu_milli,
        "{cpu} is offered and more is held"
    );
    ensure!(computed.held_cpu_milli == 500, "{computed:?}");
    Ok(())
}

/// Waits until it is true; notes how long that took.
fn true_again(context: &Context, world: &World, what: &str, held: &Cgroup) -> Result<()> {
    let start = Instant::now();
    eventually(context.limit(SOON.as_secs()), || {
        holds(held)?;
        is_true(world)
    })
    .with_context(|| what.to_owned())?;
    context.figure(what, start.elapsed().as_secs_f64(), "s");
    Ok(())
}

/// The truth has fallen far below what a killed agent left.
fn killed(context: &Context, world: &mut World, held: &Cgroup) -> Result<()> {
    world.node.agent.signal(Signal::SIGKILL)?;
    world.node.agent.wait(context.limit(20))?;
    holds(held).context("after the kill")?;
    world.server.change_node(NODE, |node| {
        for list in ["capacity", "allocatable"] {
            node["status"][list][BATCH_MEMORY] = TOO_MUCH.to_string().into();
        }
    })?;
    let World { node, options, .. } = &mut *world;
    restart(context, node, options)?;
    true_again(context, world, "after_a_kill", held)
}

/// The truth falls while the server does not answer.
fn away(context: &Context, world: &mut World, held: &Cgroup) -> Result<()> {
    world.server.go_away(Outage::Unavailable)?;
    let before = offered(world, BATCH_MEMORY)?;
    world.node.manifest(&PodSpec::guaranteed("large", "4Gi"))?;
    eventually(world.node.limit(), || {
        let computed = world.node.agent.node()?.reclaimed;
        let computed = computed.context("nothing is computed")?.batch;
        ensure!(computed.memory_bytes + (2 << 30) < before, "{computed:?}");
        Ok(())
    })?;
    ensure!(offered(world, BATCH_MEMORY)? == before, "it was written");
    world.server.come_back()?;
    true_again(context, world, "after_an_outage", held)
}
