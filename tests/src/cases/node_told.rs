//! What the API server learns of the node: how long it is short of memory, and how its agent is.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podwarden::api::types::EventKind;
use serde_json::{Value, json};

use super::apiserver::World;
use super::eviction::small;
use super::eviction_status;
use super::recorder::restart;
use super::{Case, Context, portable};
use crate::apiserver::Write;
use crate::harness::{NODE, Options, PodSpec, Workload, eventually, sleep};

pub(super) const CASES: &[Case] = &[
    portable("pressure_episode", pressure_episode),
    portable("pressure_held_back", pressure_held_back),
    portable("node_condition", node_condition),
];

/// The Events about the node for a reason, as they were made.
fn about_node(world: &World, reason: &str) -> Result<Vec<Value>> {
    let all = world.server.events()?.into_iter();
    let own = all.filter(|e| e["involvedObject"]["name"] == NODE && e["reason"] == reason);
    Ok(own.collect())
}

/// Two evictions soon one after the other are one pressure period; its end is told once the node is calm.
fn pressure_episode(context: &Context) -> Result<()> {
    let specs = ["first", "second"].map(PodSpec::best_effort);
    let options = Options {
        config: "evictionPressureTransitionPeriod: 4s\n".to_owned(),
        ..small("enforce")
    };
    let world = eviction_status::world(context, options, &specs.each_ref())?;
    for spec in &specs {
        eviction_status::evict(context, &world, spec)?;
    }
    let relieved = eventually(world.node.limit(), || {
        let relieved = about_node(&world, "MemoryPressureRelieved")?;
        relieved.into_iter().next().context("no end is told")
    })?;
    let began = about_node(&world, "EvictionThresholdMet")?;
    ensure!(began.len() == 1, "{began:?}");
    let message = relieved["message"].as_str().unwrap_or_default();
    ensure!(
        message.contains("reached 2 times, 2 pods were evicted: e2e/first, e2e/second")
            && relieved["type"] == "Normal"
            && relieved["count"] == 2
            && relieved["firstTimestamp"] == began[0]["firstTimestamp"]
            && relieved["lastTimestamp"].as_str() >= relieved["firstTimestamp"].as_str(),
        "{relieved}"
    );
    eventually(world.node.limit(), || {
        eviction_status::are_delivered(&world, &specs.each_ref())
    })?;
    sleep(eviction_status::A_WHILE)?;
    let relieved = about_node(&world, "MemoryPressureRelieved")?;
    ensure!(relieved.len() == 1, "{relieved:?}");
    eviction_status::finish(world, &specs.each_ref())
}

/// A critical pod fills the pods' level: the node is told once why others are spared.
fn pressure_held_back(context: &Context) -> Result<()> {
    let (critical, calm) = (
        PodSpec::best_effort("critical").critical(),
        PodSpec::best_effort("calm"),
    );
    let world = eviction_status::world(context, small("enforce"), &[&critical, &calm])?;
    let room = world
        .node
        .level()?
        .saturating_sub(world.node.kubepods().memory()?.usage)
        >> 20;
    let main = world.node.cgroup_of(&critical).child("main");
    main.create()?;
    // Growth is what is seen against samples that are half a second apart.
    sleep(Duration::from_millis(1500))?;
    let mib = (room + 48).to_string();
    let fill = Workload::start(&main, &["fill", "--mib", &mib, "--rate", "100"])?;
    let told = eventually(world.node.limit(), || {
        let told = about_node(&world, "EvictionHeldBack")?;
        told.into_iter().next().context("it is not told")
    })?;
    let message = told["message"].as_str().unwrap_or_default();
    ensure!(
        told["type"] == "Warning" && message.contains("pod may be evicted"),
        "{told}"
    );
    sleep(eviction_status::A_WHILE)?;
    let told = about_node(&world, "EvictionHeldBack")?;
    ensure!(told.len() == 1, "{told:?}");
    drop(fill);
    world.node.finish()
}

/// The condition, once it is as it should be.
fn condition(world: &World, status: &str, reasons: &[&str]) -> Result<Value> {
    eventually(world.node.limit(), || {
        let node = world.server.node(NODE)?;
        let conditions = node["status"]["conditions"].as_array();
        let conditions = conditions.context("the node has no conditions")?;
        let kubelets = json!({"type": "Ready", "status": "True", "reason": "KubeletReady"});
        ensure!(conditions.contains(&kubelets), "{conditions:?}");
        let own = conditions.iter().find(|c| c["type"] == "PodwardenReady");
        let own = own.context("the condition is not there")?;
        let reason = own["reason"].as_str().unwrap_or_default();
        ensure!(
            own["status"] == status && reasons.contains(&reason),
            "{own}"
        );
        Ok(own.clone())
    })
}

/// How often the node's status was written since the last look; nothing else was.
fn patches(world: &World) -> Result<usize> {
    let written = world.server.take_written();
    let of_status = |write: &Write| (write.verb, write.resource) == ("patch", "nodes/status");
    ensure!(written.iter().all(of_status), "{written:?}");
    Ok(written.len())
}

/// From a Node that is not there yet to the agent's end, and to the next one.
fn node_condition(context: &Context) -> Result<()> {
    let options = Options {
        config: "nodeCondition: true\n".to_owned(),
        ..Options::default()
    };
    let mut world = World::with(context, options, |_| Ok(()))?;
    world.ready(context)?;
    eventually(world.node.limit(), || {
        let events = world.node.agent.events(0)?;
        let said = events.iter().any(|event| {
            matches!(&event.kind, EventKind::Degraded { message }
                if message.contains("answered 404") && message.contains("set nodeName"))
        });
        ensure!(said, "nothing is said of the missing Node");
        Ok(())
    })?;
    let kubelets = json!({"type": "Ready", "status": "True", "reason": "KubeletReady"});
    let status = json!({"conditions": [kubelets]});
    world.server.create_node(NODE, &status)?;

    let missing = !world.node.agent.node()?.degradations.is_empty();
    let well = if missing { "Degraded" } else { "Ready" };
    let told = condition(&world, "True", &[well])?;
    let message = told["message"].as_str().unwrap_or_default();
    ensure!(message.starts_with("podwarden evicts; profile "), "{told}");
    sleep(Duration::from_secs(2))?;
    let written = patches(&world)?;
    ensure!(written == 1, "{written} patches of what is so all the time");

    world.node.agent.stop(Signal::SIGTERM, context.limit(20))?;
    condition(&world, "False", &["Stopped"])?;
    // Another one, which only looks on.
    let options = Options {
        mode: "observe",
        ..world.options.clone()
    };
    restart(context, &mut world.node, &options)?;
    // It waits for the tree to be made.
    let told = condition(&world, "True", &["Degraded"])?;
    let message = told["message"].as_str().unwrap_or_default();
    ensure!(message.contains("evicts nothing"), "{told}");
    let written = patches(&world)?;
    ensure!(written == 2, "{written} patches for an end and a beginning");

    // The end does not wait for a server that does not answer.
    world.server.stop();
    world.node.agent.stop(Signal::SIGTERM, context.limit(20))?;
    world.server.resume()?;
    let options = world.options.clone();
    restart(context, &mut world.node, &options)?;
    world.node.finish()
}
