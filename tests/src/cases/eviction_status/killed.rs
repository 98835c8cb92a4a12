//! The agent is killed at steps of the thread that writes the queue.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use super::super::Context;
use super::super::apiserver::World;
use super::super::recorder::{logging, restart};
use super::{expect_delivered, finish, start_hog, world, writes};
use crate::harness::{PodSpec, Traced, until};

/// The thread that writes the queue, and in which of its steps the agent is killed unless every one is
/// tried: in the middle of the node's entry, between the two, in the middle of the pod's.
const WRITER: &str = "eviction-status";
const FEW: [usize; 3] = [3, 11, 16];

/// The agent is killed between two system calls of the thread that writes the queue, with the eviction on
/// record: whatever of the queue is on disk then, the pod's status is written, once.
pub(super) fn eviction_status_killed_at_steps(context: &Context) -> Result<()> {
    let home = tempfile::tempdir_in("/var/tmp")?;
    let log = home.path().join("events.jsonl");
    let mut world = world(context, logging(&log), &[])?;
    let options = world.options.clone();
    let steps: Vec<usize> = match context.include_slow() {
        true => (0..40).collect(),
        false => FEW.to_vec(),
    };
    let mut specs: Vec<PodSpec> = Vec::new();
    for step in steps {
        let spec = PodSpec::best_effort(&format!("step-{step}"));
        let came = killed_before(context, &mut world, &spec, step, &log);
        let came = came.with_context(|| format!("killed before step {step}"))?;
        specs.push(spec);
        restart(context, &mut world.node, &options)?;
        let all: Vec<_> = specs.iter().collect();
        expect_delivered(&world, &all).with_context(|| format!("killed before step {step}"))?;
        let patches = writes(&world).remove("patch pods/status");
        ensure!(patches == Some(1), "step {step}: {patches:?} patches");
        if !came {
            context.figure("keeper_steps", step as f64, "");
            break;
        }
    }
    let all: Vec<_> = specs.iter().collect();
    finish(world, &all)
}

/// False when the thread took fewer steps; the agent is killed all the same.
fn killed_before(
    context: &Context,
    world: &mut World,
    spec: &PodSpec,
    step: usize,
    log: &Path,
) -> Result<bool> {
    world.add(spec)?;
    world.node.expect(&spec.uid, |_| Ok(()))?;
    let mut keeper = Traced::thread(world.node.agent.pid(), WRITER)?;
    // A thread that was woken to be stopped sleeps again before the eviction begins.
    while keeper.next_call(Duration::from_millis(20))?.is_some() {}
    world.verbs();
    let mut hog = start_hog(world, spec)?;
    let mut taken = 0;
    let mut came = true;
    while taken <= step && came {
        let patience = match taken {
            0 => context.limit(20),
            _ => context.quiet(),
        };
        came = keeper.next_call(patience)?.is_some();
        taken += usize::from(came);
    }
    hog.wait(context.limit(20)).context("it was not killed")?;
    until(world.node.limit(), "the eviction on record", || {
        fs::read_to_string(log).is_ok_and(|log| log.contains(&spec.uid))
    })?;
    world.node.agent.signal(Signal::SIGKILL)?;
    keeper.killed()?;
    world.node.agent.wait(world.node.limit())?;
    Ok(came)
}
