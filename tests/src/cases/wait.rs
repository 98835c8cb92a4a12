//! Best effort gets less CPU while a protected pod waits for one.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwarden::api::types::EventKind;

use super::colocation::{limit, quota};
use super::{Case, Context, case, portable};
use crate::harness::{Cgroup, Node, Options, Pod, PodSpec, Qos, Workload, eventually, sleep};

pub(super) const CASES: &[Case] = &[
    case("wait_holds_best_effort", wait_holds_best_effort),
    case(
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

/// The kernel's `-1` or `max`.
const NONE: Option<u64> = None;

fn options(objective: &str) -> Options {
    Options {
        config: format!(
            "colocation:\n  cpuWaitStrategy: {{enable: true, objective: {objective}}}\n"
        ),
        ..Options::default()
    }
}

/// A node whose protected pod does a little work and whose best-effort pod takes all CPUs. The pod's own objective
/// is so short that it is exceeded all the time; the node's is not.
struct Scene {
    node: Node,
    web: Pod,
    batch: Pod,
    tier: Cgroup,
    work: Vec<Workload>,
}

impl Scene {
    fn start(context: &Context, options: &Options) -> Result<Self> {
        let node = Node::start(context, options)?;
        let web = PodSpec::new("web", Qos::Burstable, "500m", "64Mi");
        let web = node.pod(web.annotated("podwarden.io/cpu-wait-objective", "100us"))?;
        let batch = node.pod(PodSpec::best_effort("batch"))?;
        let tier = node.tier("besteffort")?;
        ensure!(quota(&tier)? == NONE, "the tier has a quota");
        let work = vec![
            batch.start(&["burn", "--threads", "16"])?,
            web.start(&["burn", "--threads", "2", "--duty", "20"])?,
        ];
        Ok(Self {
            node,
            web,
            batch,
            tier,
            work,
        })
    }

    fn held(&self) -> Result<()> {
        eventually(self.node.limit(), || {
            let quota = quota(&self.tier)?;
            ensure!(quota.is_some(), "best effort is not held back");
            Ok(())
        })
    }

    fn free(&self) -> Result<()> {
        eventually(self.node.limit(), || {
            let quota = quota(&self.tier)?;
            ensure!(quota == NONE, "best effort has a quota of {quota:?} us");
            Ok(())
        })
    }

    /// Whether best effort was held back, or would have been, because the protected pod waited.
    fn told(&self, dry: bool) -> Result<bool> {
        let events = self.node.agent.events(0)?;
        Ok(events.iter().any(|event| {
            let of_web = event.pod.as_ref().is_some_and(|p| p.uid == self.web.uid());
            matches!(event.kind, EventKind::BestEffortHeld { dry_run, to_milli, from_milli, .. }
                if dry_run == dry && of_web && to_milli < from_milli)
        }))
    }

    fn foreign_writes(&self) -> Result<usize> {
        let events = self.node.agent.events(0)?;
        let foreign = events
            .iter()
            .filter(|event| matches!(event.kind, EventKind::ForeignWrite { .. }));
        Ok(foreign.count())
    }

    /// Ends the agent by SIGTERM: the tier has no quota by then.
    fn finish(mut self) -> Result<()> {
        let limit = self.node.limit();
        self.node.agent.stop(Signal::SIGTERM, limit)?;
        ensure!(quota(&self.tier)? == NONE, "the agent left a quota");
        self.empty()
    }

    fn empty(self) -> Result<()> {
        drop(self.work);
        self.node.empty()?;
        for pod in [&self.web, &self.batch] {
            if pod.cgroup.exists() {
                eventually(self.node.limit(), || pod.cgroup.remove())?;
            }
        }
        Ok(())
    }
}

fn wait_holds_best_effort(context: &Context) -> Result<()> {
    let mut scene = Scene::start(context, &options("1s"))?;
    scene.held()?;
    eventually(scene.node.limit(), || {
        ensure!(scene.told(false)?, "no event says so");
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
    // A pod at its limit of 10 ms in a period of 100 ms stands still for 90 ms.
    let node = Node::start(context, &options("60ms"))?;
    let web = node.pod(PodSpec::new("web", Qos::Guaranteed, "100m", "64Mi"))?;
    limit(&web.main, 10_000)?;
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
    ensure!(quota(&tier)? == NONE, "best effort is held back");
    waited?;
    work.clear();
    node.finish()
}

fn observed_wait_writes_nothing(context: &Context) -> Result<()> {
    let options = Options {
        mode: "observe",
        ..options("1s")
    };
    let scene = Scene::start(context, &options)?;
    eventually(scene.node.limit(), || {
        ensure!(scene.told(true)?, "no event says what would be done");
        Ok(())
    })?;
    ensure!(quota(&scene.tier)? == NONE, "a quota was written");
    scene.finish()
}

fn wait_hold_ends_with_a_killed_agent(context: &Context) -> Result<()> {
    let mut scene = Scene::start(context, &options("1s"))?;
    scene.held()?;
    let limit = scene.node.limit();
    scene.node.agent.signal(Signal::SIGKILL)?;
    scene.node.agent.wait(limit)?;
    scene.free()?;
    scene.empty()
}

fn wait_hold_is_undone(context: &Context) -> Result<()> {
    let mut scene = Scene::start(context, &options("1s"))?;
    scene.held()?;
    let limit = scene.node.limit();
    // The guard as well.
    for guard in scene.node.agent.children() {
        kill(Pid::from_raw(i32::try_from(guard)?), Signal::SIGKILL)?;
    }
    scene.node.agent.signal(Signal::SIGKILL)?;
    scene.node.agent.wait(limit)?;
    let root = format!("/{}", scene.node.sandbox.root.path().trim_matches('/'));
    // Killed between two steps it may have left none.
    let left = quota(&scene.tier)?;
    context.figure("left_us", left.unwrap_or(0) as f64, "us");
    Command::new(context.agent())
        .args([
            "undo",
            "--cgroup-driver",
            "cgroupfs",
            "--cgroup-root",
            &root,
        ])
        .output()
        .context("run podwarden undo")?;
    ensure!(quota(&scene.tier)? == NONE, "undo left a quota");
    scene.empty()
}

fn wait_beside_a_kubelet(context: &Context) -> Result<()> {
    let options = Options {
        assist: true,
        ..options("1s")
    };
    let scene = Scene::start(context, &options)?;
    sleep(Duration::from_secs(1))?;
    ensure!(quota(&scene.tier)? == NONE, "a kubelet's tier has a quota");
    let degradations = scene.node.agent.node()?.degradations;
    ensure!(
        degradations.iter().any(|one| one.contains("held back")),
        "nothing says that nothing is held back: {degradations:?}"
    );
    scene.finish()
}
