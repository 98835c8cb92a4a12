//! Watches that are cut, and a server that forgets, is away, refuses, and changes its tokens.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use super::super::Context;
use super::{NAMESPACE, World};
use crate::apiserver::Refusal;
use crate::harness::{PodSpec, eventually, http_get, sleep, until};

/// Watches that are cut, a server that forgets, is away, refuses, and changes its tokens.
pub(super) fn apiserver_cut_off(context: &Context) -> Result<()> {
    let mut world = World::start(context, |_| Ok(()))?;
    world.ready(context)?;
    world.verbs();
    let alive = churn(&world)?;
    let alive: Vec<_> = alive.iter().collect();
    world.node.expect_pods(&alive)?;
    world.ensure_no_list("watches were cut")?;
    world.server.manners(|m| {
        (m.cut_after, m.repeat) = (None, false);
        // With the first of a watch, pauses after failures begin anew.
        m.bookmarks = Duration::from_millis(100);
    });

    away_and_forgetful(&mut world, &alive)?;
    steady(&mut world)?;
    tokens(&mut world)?;
    world.node.expect_pods(&alive)?;
    for spec in alive {
        world.server.remove_pod(NAMESPACE, &spec.name)?;
    }
    world.node.expect_pods(&[])?;
    world.node.finish()
}

/// Pods come, change and go while watches are cut and events are told late and twice: a few of them, since
/// after most cuts the agent waits a second.
fn churn(world: &World) -> Result<Vec<PodSpec>> {
    world.server.manners(|m| {
        m.cut_after = Some(8);
        m.repeat = true;
        m.late = Duration::from_millis(2);
    });
    let mut alive: Vec<PodSpec> = Vec::new();
    for turn in 0..24 {
        match fastrand::u8(0..4) {
            0 | 1 => {
                let spec = PodSpec::limited(&format!("churn-{turn}"), "32Mi");
                world.add(&spec)?;
                alive.push(spec);
            }
            2 if !alive.is_empty() => {
                let at = fastrand::usize(..alive.len());
                world.server.change_pod(NAMESPACE, &alive[at].name, |pod| {
                    pod["status"]["phase"] = "Running".into();
                    pod["metadata"]["labels"] = json!({"turn": turn.to_string()});
                })?;
            }
            3 if !alive.is_empty() => {
                let spec = alive.swap_remove(fastrand::usize(..alive.len()));
                world.server.remove_pod(NAMESPACE, &spec.name)?;
            }
            _ => {}
        }
    }
    // So that the last change is not the one that a cut has to be waited out for.
    let last = PodSpec::best_effort("last");
    world.add(&last)?;
    alive.push(last);
    Ok(alive)
}

/// Away for a while, back with another pod gone and its history compacted: one list.
fn away_and_forgetful(world: &mut World, alive: &[&PodSpec]) -> Result<()> {
    let short = PodSpec::best_effort("short");
    let cgroup = world.add(&short)?;
    until(world.node.limit(), "the pod's cgroup", || cgroup.exists())?;
    world.server.stop();
    eventually(world.node.limit(), || {
        let source = world.node.source("apiserver")?;
        ensure!(source.problem.is_some() && source.reported, "{source:?}");
        Ok(())
    })?;
    // It was told once: the agent is ready and goes on with what it knows.
    let answer = http_get(world.node.agent.socket(), "/readyz")?;
    ensure!(answer.status == 200 && cgroup.exists(), "{}", answer.text());
    world.server.remove_pod(NAMESPACE, &short.name)?;
    world.server.compact();
    world.verbs();
    world.server.resume()?;
    until(world.node.limit(), "its end", || !cgroup.exists())?;
    world.node.expect_pods(alive)?;
    eventually(world.node.limit(), || {
        let source = world.node.source("apiserver")?;
        ensure!(source.problem.is_none(), "{source:?}");
        Ok(())
    })?;
    let verbs = world.verbs();
    ensure!(verbs.get("list pods") == Some(&1), "{verbs:?}");
    Ok(())
}

/// While nothing happens, bookmarks keep the place: nothing is listed, even when the watch is cut after
/// all that it had told was compacted. A server that is busy is asked again.
fn steady(world: &mut World) -> Result<()> {
    let busy = Refusal {
        retry_after: Some(1),
        ..Refusal::new(429, "TooManyRequests", "later")
    };
    world.server.manners(|m| m.refuse.push_back(busy));
    restart(world)?;
    world.server.compact();
    // Some bookmarks.
    sleep(Duration::from_millis(500))?;
    restart(world)?;
    world.ensure_no_list("bookmarks had kept the place")
}

/// Cuts the watch, and waits for the next.
fn restart(world: &mut World) -> Result<()> {
    world.server.stop();
    world.verbs();
    world.server.resume()?;
    eventually(world.node.limit(), || {
        let seen = world.server.has_seen("watch", "pods");
        let source = world.node.source("apiserver")?;
        ensure!(seen && source.problem.is_none(), "{source:?}");
        Ok(())
    })
}

/// The token is replaced: it is said so, and the new one is taken from the file; nothing is listed.
fn tokens(world: &mut World) -> Result<()> {
    world
        .server
        .manners(|m| m.tokens = BTreeSet::from(["second".to_owned()]));
    world.server.stop();
    world.server.resume()?;
    eventually(world.node.limit(), || {
        let problem = world.node.source("apiserver")?.problem.unwrap_or_default();
        ensure!(problem.contains("answered 401"), "{problem:?}");
        Ok(())
    })?;
    world.server.kubeconfig(&world.kubeconfig, Some("second"))?;
    eventually(world.node.limit(), || {
        let source = world.node.source("apiserver")?;
        ensure!(source.problem.is_none(), "{source:?}");
        Ok(())
    })?;
    world.ensure_no_list("the token was replaced")
}
