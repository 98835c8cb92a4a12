//! Evicted pods that are held dead through a restart of the agent.

use anyhow::{Context as _, Result};

use super::LIMIT;
use super::eviction::{AWAY, BACK, Lives, Scene};
use crate::cases::{Case, Context, case};
use crate::harness::{eventually, sleep};

pub(in crate::cases) const CASES: &[Case] = &[case(
    "kubernetes_held_by_the_next",
    kubernetes_held_by_the_next,
)];

/// The agent is killed before it can write the status of the pod that it has evicted: the next agent holds the pod dead
/// as well, and writes the status once the API server is back.
fn kubernetes_held_by_the_next(context: &Context) -> Result<()> {
    let scene = Scene::new(context)?;
    let cluster = &scene.cluster;
    let own = cluster.agent_pod()?["metadata"]["uid"].take();
    let own = own.as_str().context("the agent's pod has no uid")?;
    cluster.kill_apiserver();
    let cut_off = scene.evict().and_then(|()| {
        cluster.kill_agent(own)?;
        // What is started while there is no agent lives until there is one.
        eventually(LIMIT, || cluster.node_stats().map(drop)).context("no next agent")?;
        let lives = Lives::watch(scene.cgroup());
        sleep(AWAY)?;
        Ok(lives)
    });
    cluster.start_apiserver()?;
    let lives = cut_off?;
    scene.stays_evicted(BACK)?;
    lives.end(context)?;
    scene.cluster.clear()
}
