//! Best effort gets less CPU while a protected pod waits for one.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use podwarden::api::types::EventKind;

use super::colocation::scene::Scene;
use super::colocation::{limit_in, quota};
use super::{Case, Context, portable};
use crate::harness::{Node, Options, PodSpec, Qos, eventually, sleep};

pub(super) const CASES: &[Case] = &[
    portable("wait_holds_best_effort", wait_holds_best_effort),
    portable(
        "wait_for_its_own_limit_holds_nothing",
        wait_for_its_own_limit_holds_nothing,
    ),
    portable("observed_wait_writes_nothing", observed_wait_writes_nothing),
    portable(
        "wait_hold_ends_with_a_killed_agent",
        wait_hold_ends_with_a_killed_agent,
    ),
    portable("wait_hold_is_undone", wait_hold_is_undone),
    portable("wait_beside_a_kubelet", wait_beside_a_kubelet),
];

fn options(objective: &str) -> Options {
    Options {
        config: format!(
            "colocation:\n  cpuWaitStrategy: {{enable: true, objective: {objective}}}\n"
        ),
        ..Options::default()
    }
}

/// The protected pod does a little work, and the best-effort pod takes all CPUs. The protected pod's own objective
/// is so short that it is exceeded all the time; the node's is not.
fn start(context: &Context, options: &Options) -> Result<Scene> {
    let web = PodSpec::new("web", Qos::Burstable, "500m", "64Mi");
    let web = web.annotated("podwarden.io/cpu-wait-objective", "100us");
    let mut scene = Scene::start(context, options, web)?;
    scene.is_free()?;
    scene.work = vec![
        scene.batch.start(&["burn", "--threads", "16"])?,
        scene
            .web
            .start(&["burn", "--threads", "2", "--duty", "20"])?,
    ];
    Ok(scene)
}

/// Whether best effort was held back, or would have been, because the protected pod waited.
fn told(scene: &Scene, dry: bool) -> Result<bool> {
    let events = scene.node.agent.events(0)?;
    Ok(events.iter().any(|event| {
        let of_web = event.pod.as_ref().is_some_and(|p| p.uid == scene.web.uid());
        matches!(event.kind, EventKind::BestEffortHeld { dry_run, to_milli, from_milli, .. }
            if dry_run == dry && of_web && to_milli < from_milli)
    }))
}

fn wait_holds_best_effort(context: &Context) -> Result<()> {
    let mut scene = start(context, &options("1s"))?;
    scene.held()?;
    eventually(scene.node.limit(), || {
        ensure!(told(&scene, false)?, "no event says so");
        Ok(())
    })?;
    eventually(scene.node.limit(), || {
        let stats = scene.node.agent.node()?.best_effort_cpu;
        let stats = stats.context("nothing is shown")?;
        let waiting = stats.waiting.as_ref().map(|pod| pod.uid.as_str());
        ensure!(waiting == Some(scene.web.uid()), "{stats:?}");
        ensure!(
            stats.wait_limit_milli.is_some() && stats.long_waits > 0,
            "{stats:?}"
        );
        Ok(())
    })?;
    // Its own quota is no foreign write to it.
    let fights = scene.foreign_writes()?;
    ensure!(fights == 0, "{fights} foreign writes");
    // Without a protected pod that waits it comes back.
    drop(scene.work.pop());
    scene.free()?;
    eventually(scene.node.limit(), || {
        let events = scene.node.agent.events(0)?;
        let freed = |event: &podwarden::api::types::Event| matches!(event.kind, EventKind::BestEffortFreed { waits, dry_run: false, .. } if waits > 0);
        ensure!(events.iter().any(freed), "no event says that it is free");
        Ok(())
    })?;
    scene.finish()
}

fn wait_for_its_own_limit_holds_nothing(context: &Context) -> Result<()> {
    // A pod at its limit of 100 ms in a period of 1 s stands still for 900 ms. A virtual machine that the host leaves
    // without a CPU makes it wait for other reasons, not for as long.
    let node = Node::start(context, &options("500ms"))?;
    let web = node.pod(PodSpec::new("web", Qos::Guaranteed, "100m", "64Mi"))?;
    limit_in(&web.main, 100_000, 1_000_000)?;
    let batch = node.pod(PodSpec::best_effort("batch"))?;
    let tier = node.tier("besteffort")?;
    let mut work = vec![
        batch.start(&["burn", "--threads", "2"])?,
        web.start(&["burn"])?,
    ];
    sleep(Duration::from_secs(3))?;
    let waited = node.expect(web.uid(), |pod| {
        let wait = pod.cpu.run_queue_wait_nano_seconds;
        ensure!(wait > 500_000_000, "it waited {wait} ns");
        Ok(())
    });
    let events = node.agent.events(0)?;
    let held = events
        .iter()
        .filter(|event| matches!(event.kind, EventKind::BestEffortHeld { .. }));
    let held = held.count();
    ensure!(held == 0, "best effort was held back {held} times");
    ensure!(quota(&tier)?.is_none(), "best effort is held back");
    waited?;
    work.clear();
    node.finish()
}

fn observed_wait_writes_nothing(context: &Context) -> Result<()> {
    let options = Options {
        mode: "observe",
        ..options("1s")
    };
    let scene = start(context, &options)?;
    eventually(scene.node.limit(), || {
        ensure!(told(&scene, true)?, "no event says what would be done");
        Ok(())
    })?;
    scene.is_free().context("observe mode")?;
    scene.finish()
}

fn wait_hold_ends_with_a_killed_agent(context: &Context) -> Result<()> {
    let mut scene = start(context, &options("1s"))?;
    scene.held()?;
    scene.node.kill_agent()?;
    scene.free()?;
    scene.empty()
}

fn wait_hold_is_undone(context: &Context) -> Result<()> {
    let mut scene = start(context, &options("1s"))?;
    scene.held()?;
    scene.node.kill_agent_and_guards()?;
    // Killed between two steps it may have left none.
    let left = quota(&scene.tier)?;
    context.figure("left_us", left.unwrap_or(0) as f64, "us");
    scene.undo(context)?;
    scene.finish_by_undo(context)
}

fn wait_beside_a_kubelet(context: &Context) -> Result<()> {
    let options = Options {
        assist: true,
        ..options("1s")
    };
    let scene = start(context, &options)?;
    sleep(Duration::from_secs(1))?;
    scene.is_free().context("a kubelet's tier")?;
    let degradations = scene.node.agent.node()?.degradations;
    ensure!(
        degradations.iter().any(|one| one.contains("held back")),
        "nothing says that nothing is held back: {degradations:?}"
    );
    scene.finish()
}
