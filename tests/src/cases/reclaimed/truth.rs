//! What the Node's status offers is true again soon after the agent was killed, and after the API server was away; a
//! pod that runs keeps its values throughout.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use super::{BATCH_CPU, BATCH_MEMORY, holds, offered, world};
use crate::apiserver::Outage;
use crate::cases::Context;
use crate::cases::apiserver::World;
use crate::cases::recorder::restart;
use crate::harness::{Cgroup, NODE, Options, PodSpec, eventually};

/// What is promised, after the agent or the server is back.
pub(super) const SOON: Duration = Duration::from_secs(60);
/// What nothing on this node comes to.
pub(super) const TOO_MUCH: u64 = 1 << 50;

pub(super) fn reclaimed_is_true_again(context: &Context) -> Result<()> {
    let options = Options {
        // A pod counts with its request at once, and memory with what was used just now.
        config: "colocation: {reclaimed: {publish: true, enforce: true, memoryCalculatePolicy: request, \
                 metricAggregateDurationSeconds: 10}}\n"
            .to_owned(),
        ..Options::default()
    };
    let mut world = world(context, options)?;
    let held = world.add(&PodSpec::batch("held", 500, "64Mi"))?;
    let truth = Truth::default();
    eventually(world.node.limit(), || {
        holds(&held)?;
        truth.shows(&world)
    })?;

    killed(context, &mut world, &held)?;
    away(context, &mut world, &held)?;
    world.node.agent.stop(Signal::SIGTERM, context.limit(20))
}

/// What follows from the pods of a node of 16 GiB where memory counts by requests, whatever is used.
#[derive(Debug)]
pub(super) struct Truth {
    /// What prod pods ask for, bytes.
    pub(super) requested: u64,
    /// What batch pods ask for, thousandths of a CPU.
    pub(super) held: u64,
}

impl Default for Truth {
    /// One batch pod that asks for half a CPU.
    fn default() -> Self {
        Self {
            requested: 0,
            held: 500,
        }
    }
}

impl Truth {
    /// No more is offered than there is and than what is computed, as far as an offer may differ without being
    /// published anew, and no less than what is held.
    pub(super) fn shows(&self, world: &World) -> Result<()> {
        let computed = world.node.agent.node()?.reclaimed;
        let computed = computed.context("nothing is computed")?.batch;
        ensure!(computed.held_cpu_milli == self.held, "{computed:?}");
        let there = ((16 << 30) / 100 * 65 + 1_u64).saturating_sub(self.requested);
        let most = there.min(computed.memory_bytes) / 9 * 10;
        let memory = offered(world, BATCH_MEMORY)?;
        ensure!(
            memory <= most,
            "{memory} bytes are offered of {}, and {there} are there",
            computed.memory_bytes
        );
        self.is_held(world)
    }

    /// A kubelet that admits its pods anew, by what is offered, takes all of them.
    pub(super) fn is_held(&self, world: &World) -> Result<()> {
        let cpu = offered(world, BATCH_CPU)?;
        ensure!(
            cpu >= self.held,
            "{cpu} is offered and {} is held",
            self.held
        );
        Ok(())
    }
}

/// Waits until it is true; notes how long that took.
fn true_again(
    context: &Context,
    world: &World,
    what: &str,
    (held, truth): (&Cgroup, &Truth),
) -> Result<()> {
    let start = Instant::now();
    eventually(context.limit(SOON.as_secs()), || {
        holds(held)?;
        truth.shows(world)
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
    true_again(context, world, "after_a_kill", (held, &Truth::default()))
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
    let truth = Truth {
        requested: 4 << 30,
        ..Truth::default()
    };
    true_again(context, world, "after_an_outage", (held, &truth))
}
