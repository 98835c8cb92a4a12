//! Convergence of the tiers' reserve: no write of the agent's kills, the tier stops growing, its limit
//! gets where it belongs, and what was found is put back.

pub(crate) mod scene;

use std::fs;

use anyhow::{Context as _, Result, ensure};
use podwarden::api::{EventKind, TierConvergence};
use rustix::process::Signal;

use self::scene::{Load, Scene, TARGET, Writer, hard_limit, oom_kills};
use super::{Case, Context, case, portable, skip};
use crate::harness::{Agent, Cgroup, Mounts, Options, PodSpec, eventually};

pub(super) const CASES: &[Case] = &[
    case("converge_anonymous", |context| {
        converges(context, Load::Anonymous)
    }),
    case("converge_cache", |context| converges(context, Load::Cache)),
    case("converge_mixed", |context| converges(context, Load::Mixed)),
    portable("converge_after_kill", after_kill),
    portable("converge_keeps_on_exit", keeps_on_exit),
];

fn figures(scene: &Scene) -> Result<TierConvergence> {
    let node = scene.node.as_ref().context("there is no agent")?;
    let tiers = node.agent.node()?.tiers;
    let tier = tiers.into_iter().find(|tier| tier.name == "besteffort");
    tier.and_then(|tier| tier.convergence)
        .context("the BestEffort tier does not converge")
}

fn limits(tier: &Cgroup) -> Vec<String> {
    let dir = hard_limit(tier);
    let high = dir.with_file_name("memory.high");
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    vec![read(&dir), read(&high)]
}

fn converges(context: &Context, load: Load) -> Result<()> {
    // On v1 nothing slows it: slow enough that it is not evicted before the gap was seen.
    let on_v2 = Mounts::detect()?.memory_on_v2();
    let rate = if on_v2 { 50 } else { 5 };
    let mut scene = Scene::new(context, Writer::Podwarden, load, rate, "")?;
    if load != Load::Anonymous && !can_drop_cache(&scene) {
        drop(scene);
        return skip("page cache cannot be dropped here: cgroup v1, or /var/tmp is not on a disk");
    }
    let outcome = scene.play(context, |scene| {
        // Where there is page cache enough, the gap is over when that is dropped.
        if load != Load::Anonymous {
            return Ok(());
        }
        // It is told for as long as it lasts.
        eventually(context.limit(5), || {
            let figures = figures(scene)?;
            ensure!(
                figures.target_bytes == Some(TARGET) && figures.gap_bytes > 0 && !figures.reached,
                "{figures:?}"
            );
            Ok(())
        })
    })?;
    ensure!(outcome.oom_kills == 0, "{outcome:?}");
    for (name, value) in [
        ("capped", outcome.capped_ms),
        ("stopped", outcome.stopped_ms),
        ("reached", outcome.reached_ms),
    ] {
        if let Some(value) = value {
            context.figure(format!("{}_{name}", load.as_str()), value, "ms");
        }
    }
    context.figure(format!("{}_grown", load.as_str()), outcome.grown_mib, "MiB");
    ensure!(outcome.evictions == 0, "somebody was evicted: {outcome:?}");
    // The margin, and what the kernel charges ahead for each CPU.
    ensure!(
        outcome.grown_mib < 17.0,
        "the tier went on growing: {outcome:?}"
    );
    let node = scene.node.as_ref().context("there is no agent")?;
    eventually(context.limit(5), || {
        let figures = figures(&scene)?;
        ensure!(figures.reached && figures.gap_bytes == 0, "{figures:?}");
        let events = node.agent.events(0)?;
        let tier = |event: &&podwarden::api::Event| {
            matches!(&event.kind, EventKind::GapClosed { tier, target_bytes, .. }
                if tier == "besteffort" && *target_bytes == TARGET)
        };
        let opened = events
            .iter()
            .any(|event| matches!(&event.kind, EventKind::GapOpened { tier, .. } if tier == "besteffort"));
        ensure!(
            opened && events.iter().any(|e| tier(&e)),
            "no events of the gap"
        );
        let foreign = events
            .iter()
            .find(|e| matches!(e.kind, EventKind::Drift { .. }));
        ensure!(
            foreign.is_none(),
            "took its own write for another's: {foreign:?}"
        );
        Ok(())
    })?;
    scene.end()
}

/// Whether the agent can have the kernel drop page cache of the tier.
fn can_drop_cache(scene: &Scene) -> bool {
    let reclaim = hard_limit(&scene.tier).with_file_name("memory.reclaim");
    reclaim.exists()
        && scene
            .node
            .as_ref()
            .is_some_and(|node| super::memory::is_on_disk(node.sandbox.dir()).unwrap_or(false))
}

/// An agent that is killed in the gap leaves its limits; the next one knows that they are not what was
/// found, goes on, and puts back what was.
fn after_kill(context: &Context) -> Result<()> {
    let mut scene = Scene::new(context, Writer::Podwarden, Load::Anonymous, 50, "")?;
    let node = scene.node.as_mut().context("there is no agent")?;
    // What the operator had there before.
    node.agent.stop(Signal::TERM, node.limit())?;
    let found = limits(&scene.tier);
    let config = |exit: &str| Options {
        memory: "640Mi".to_owned(),
        config: format!("{}convergence: {{onExit: {exit}}}\n", scene::CONFIG),
        ..Options::default()
    };
    let spec = PodSpec::guaranteed("arrives", "384Mi");
    node.manifest(&spec)?;
    for _ in 0..2 {
        node.agent = Agent::spawn(context.agent(), &node.sandbox, &config("restore"))?;
        context.watch(&node.agent.log);
        node.agent.wait_ready(context.limit(30))?;
        eventually(context.limit(5), || {
            ensure!(limits(&scene.tier) != found, "nothing is capped");
            Ok(())
        })?;
        node.agent.signal(Signal::KILL)?;
        node.agent.wait(node.limit())?;
        ensure!(limits(&scene.tier) != found, "somebody else restored it");
    }
    node.agent = Agent::spawn(context.agent(), &node.sandbox, &config("restore"))?;
    context.watch(&node.agent.log);
    node.agent.wait_ready(context.limit(30))?;
    ensure!(oom_kills(&scene.tier)? == 0, "somebody was killed");
    node.agent.stop(Signal::TERM, context.limit(20))?;
    let left = limits(&scene.tier);
    ensure!(left == found, "found {found:?}, left {left:?}");
    Ok(())
}

/// `onExit: keep` leaves the limits as they are.
fn keeps_on_exit(context: &Context) -> Result<()> {
    let config = "convergence: {onExit: keep}\n";
    let mut scene = Scene::new(context, Writer::Podwarden, Load::Anonymous, 50, config)?;
    scene.let_go();
    let node = scene.node.as_mut().context("there is no agent")?;
    node.manifest(&PodSpec::guaranteed("arrives", "384Mi"))?;
    eventually(context.limit(10), || {
        let held = fs::read_to_string(hard_limit(&scene.tier))?;
        ensure!(held.trim() == TARGET.to_string(), "the limit is {held}");
        Ok(())
    })?;
    let kept = limits(&scene.tier);
    node.agent.stop(Signal::TERM, context.limit(20))?;
    let left = limits(&scene.tier);
    ensure!(left == kept, "had {kept:?}, left {left:?}");
    Ok(())
}
