//! A node that loses its power: what it offered before it is corrected, and its pods keep what they hold.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use super::truth::{SOON, TOO_MUCH, Truth};
use super::{BATCH_MEMORY, holds, world};
use crate::cases::Context;
use crate::cases::apiserver::World;
use crate::harness::{Agent, NODE, Options, PodSpec, check_interrupt, eventually};

/// What pods hold is looked at for so long once the offer is true.
const STAYS: Duration = Duration::from_secs(2);

/// Its directory of state is all that it keeps. The figures begin anew: counters, windows, the boot's clock.
pub(super) fn reclaimed_after_a_node_restart(context: &Context) -> Result<()> {
    let options = Options {
        config: "colocation: {reclaimed: {publish: true, enforce: true, memoryCalculatePolicy: request}}\n"
            .to_owned(),
        ..Options::default()
    };
    let mut world = world(context, options)?;
    let held = world.add(&PodSpec::batch("held", 500, "64Mi"))?;
    // More than the node has: only what is held has it offered.
    world.add(&PodSpec::batch("wide", 50_000, "64Mi"))?;
    let mut truth = Truth {
        held: 50_500,
        ..Truth::default()
    };
    eventually(world.node.limit(), || {
        holds(&held)?;
        truth.shows(&world)
    })?;

    world.node.go_down()?;
    ensure!(!held.exists(), "the pod's cgroup outlived the node");
    // The truth has fallen far below what stands in the Node's status.
    world.add(&PodSpec::guaranteed("large", "4Gi"))?;
    truth.requested = 4 << 30;
    world.server.change_node(NODE, |node| {
        for list in ["capacity", "allocatable"] {
            node["status"][list][BATCH_MEMORY] = TOO_MUCH.to_string().into();
        }
    })?;
    let World { node, options, .. } = &mut world;
    node.agent = Agent::spawn(context.agent(), &node.sandbox, options)?;
    context.watch(&node.agent.log);
    is_true_without_a_gap(context, &world, &truth)?;
    eventually(world.node.limit(), || holds(&held))?;
    let container = held.child("main");
    container.create()?;
    eventually(world.node.limit(), || holds(&container))?;
    container.remove()?;
    world.node.agent.stop(Signal::SIGTERM, context.limit(20))
}

/// Waits until the offer is true, and looks on for a while; what pods hold is offered at every look.
fn is_true_without_a_gap(context: &Context, world: &World, truth: &Truth) -> Result<()> {
    let start = Instant::now();
    let limit = context.limit(SOON.as_secs());
    let mut since = None;
    while since.is_none_or(|since: Instant| since.elapsed() < STAYS) {
        check_interrupt()?;
        truth.is_held(world)?;
        match truth.shows(world) {
            Ok(()) if since.is_none() => {
                context.figure("after_a_restart", start.elapsed().as_secs_f64(), "s");
                since = Some(Instant::now());
            }
            Err(error) if since.is_some() || start.elapsed() >= limit => {
                return Err(error).context("after a restart of the node");
            }
            _ => {}
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
