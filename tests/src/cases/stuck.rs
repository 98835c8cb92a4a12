//! Something stands still: the reactor, a victim inside the kernel, the reconciler while a ring overflows.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use podwarden::api::types::EventKind;

use super::eviction::small;
use super::reaping::Scene;
use super::{Case, Context, portable, skip};
use crate::harness::{
    Node, Options, PodSpec, Standstill, Traced, Workload, eventually, http_get, sleep, state_of,
    until,
};

mod files;

const MIB: u64 = 1 << 20;

pub(super) const CASES: &[Case] = &[
    portable("stuck_reactor_is_noticed", stuck_reactor_is_noticed),
    portable("stuck_reconciler_is_noticed", stuck_reconciler_is_noticed),
    portable("stuck_file_is_noticed", files::is_noticed),
    portable("stuck_write_is_abandoned", files::write_is_abandoned),
    portable("stuck_victim_is_reaped", stuck_victim_is_reaped),
    portable("stuck_victim_is_passed_over", stuck_victim_is_passed_over),
    portable("stuck_reaper_costs_no_pod", stuck_reaper_costs_no_pod),
    portable("stuck_telemetry_overflows", stuck_telemetry_overflows),
];

/// Waits until `/healthz` answers so, and the metric with it.
fn health(node: &Node, context: &Context, status: u16, up: u8) -> Result<String> {
    eventually(context.limit(30), || {
        let answer = http_get(node.agent.socket(), "/healthz")?;
        ensure!(
            answer.status == status,
            "/healthz answers {}: {}",
            answer.status,
            answer.text()
        );
        let metrics = http_get(node.agent.socket(), "/metrics")?.text();
        let line = format!("podwarden_reactor_up {up}");
        ensure!(metrics.lines().any(|l| l == line), "no {line}");
        Ok(answer.text())
    })
}

fn stuck_reactor_is_noticed(context: &Context) -> Result<()> {
    let node = Node::start(context, &small("enforce"))?;
    health(&node, context, 200, 1)?;
    let stopped = Traced::thread(node.agent.pid(), "reactor")?;
    let text = health(&node, context, 503, 0)?;
    ensure!(text.contains("stuck"), "/healthz says {text}");
    let events = node.agent.events(0)?;
    let said = events.iter().filter(|event| match &event.kind {
        EventKind::Degraded { message } => message.contains("the reactor is stuck"),
        _ => false,
    });
    let said = said.count();
    ensure!(said == 1, "said {said} times");
    drop(stopped);
    health(&node, context, 200, 1)?;
    node.finish()
}

/// What the service manager has been told since the last look.
fn told(manager: &UnixDatagram) -> Vec<String> {
    let mut text = [0; 64];
    let mut told = Vec::new();
    while let Ok(n) = manager.recv(&mut text) {
        told.push(String::from_utf8_lossy(&text[..n]).into_owned());
    }
    told
}

/// The loop that could look at the others stands still itself: the service manager hears no more of the agent,
/// and the API says why.
fn stuck_reconciler_is_noticed(context: &Context) -> Result<()> {
    let home = tempfile::tempdir_in("/var/tmp")?;
    let path = home.path().join("notify");
    let manager = UnixDatagram::bind(&path)?;
    manager.set_nonblocking(true)?;
    let options = Options {
        env: vec![
            ("NOTIFY_SOCKET".to_owned(), path.display().to_string()),
            // A tenth of what a pass may take at most.
            ("PODWARDEN_LOOP_PATIENCE".to_owned(), "9".to_owned()),
        ],
        ..small("enforce")
    };
    let node = Node::start(context, &options)?;
    let mut all = Vec::new();
    eventually(context.limit(20), || {
        all.extend(told(&manager));
        let ready = all.iter().filter(|state| *state == "READY=1").count();
        ensure!(ready == 1, "told {all:?}");
        ensure!(
            all.last().is_some_and(|state| state == "WATCHDOG=1"),
            "told {all:?}"
        );
        Ok(())
    })?;
    let stopped = Traced::thread(node.agent.pid(), "podwarden")?;
    eventually(context.limit(60), || {
        let answer = http_get(node.agent.socket(), "/healthz")?;
        ensure!(answer.status == 503, "/healthz answers {}", answer.status);
        let text = answer.text();
        ensure!(text.contains("reconciler is stuck"), "/healthz says {text}");
        Ok(())
    })?;
    told(&manager);
    sleep(Duration::from_secs(5))?;
    let later = told(&manager);
    ensure!(later.is_empty(), "told {later:?}");
    drop(stopped);
    health(&node, context, 200, 1)?;
    eventually(context.limit(20), || {
        ensure!(!told(&manager).is_empty(), "not told again");
        Ok(())
    })?;
    node.finish()
}

/// A process of the victim's that waits inside the kernel, and what it waits for. That goes first: before,
/// no process can wait for its end.
pub(super) struct Waiting {
    standstill: Standstill,
    process: Workload,
}

impl Waiting {
    /// One that holds 128 MiB; `None` where no process can be made to wait so.
    pub(super) fn start(context: &Context, scene: &Scene, shared: bool) -> Result<Option<Self>> {
        let Some(standstill) = Standstill::new(context, scene.node.sandbox.dir())? else {
            return Ok(None);
        };
        let path = standstill.path().display().to_string();
        let mut args = vec!["anon", "--mib", "128", "--then-ask", &path];
        args.extend(shared.then_some("--shared"));
        standstill.begin()?;
        let process = scene.victim.start(&args)?;
        let waiting = Self {
            standstill,
            process,
        };
        let pid = waiting.process.pid();
        waiting.standstill.until_asked(context, pid)?;
        Ok(Some(waiting))
    }

    /// Killed, it goes back to waiting once it gets to run.
    fn ensure_in_state_d(&self, context: &Context) -> Result<()> {
        eventually(context.limit(10), || {
            let state = state_of(self.process.pid());
            ensure!(state == Some('D'), "it is in state {state:?}");
            Ok(())
        })
    }
}

pub(super) const NO_WAY: &str = "no FUSE here, and no disk of our own to freeze";

/// Its own memory is taken from a process that cannot die, and no other process dies.
fn stuck_victim_is_reaped(context: &Context) -> Result<()> {
    let scene = Scene::new(context, &small("enforce"))?;
    if let Some(degradation) = podwarden::reactor::reaping_degradation() {
        return skip(degradation);
    }
    let bystander = scene.node.pod(PodSpec::best_effort("well-behaved"))?;
    let mut beside = bystander.start(&["anon", "--mib", "16"])?;
    let Some(waiting) = Waiting::start(context, &scene, false)? else {
        return skip(NO_WAY);
    };
    let filler = scene.fill()?;
    let eviction = scene.evictions(1)?.remove(0);
    ensure!(
        eviction.pod.uid == scene.victim.uid() && eviction.timeline.freed_nanos.is_some(),
        "{eviction:?}"
    );
    waiting.ensure_in_state_d(context)?;
    ensure!(beside.is_alive(), "another pod was killed for it");
    health(&scene.node, context, 200, 1)?;
    drop(waiting);
    ensure!(
        scene.node.agent.evictions()?.len() == 1,
        "more than one eviction"
    );
    drop((beside, filler));
    scene.node.finish()
}

/// Memory that is free only when a process ends which cannot: after a while the next pod has to go.
fn stuck_victim_is_passed_over(context: &Context) -> Result<()> {
    let scene = Scene::new(context, &small("enforce"))?;
    let next = scene.node.pod(PodSpec::best_effort("next"))?;
    let mut beside = next.start(&["anon", "--mib", "96"])?;
    let Some(waiting) = Waiting::start(context, &scene, true)? else {
        return skip(NO_WAY);
    };
    let level = scene.node.level()?;
    let mut filler = scene.fill_to(level + 8 * MIB)?;
    let mut evictions = scene.evictions(2)?;
    // That of the first is published once its memory is given up.
    evictions.sort_by_key(|eviction| eviction.timeline.killed_nanos);
    waiting.ensure_in_state_d(context)?;
    let [first, second] = &evictions[..] else {
        bail!("{} evictions: {evictions:?}", evictions.len());
    };
    ensure!(
        first.pod.uid == scene.victim.uid() && first.timeline.freed_nanos.is_none(),
        "first {first:?}, then {second:?}"
    );
    ensure!(
        second.pod.uid == next.uid() && second.timeline.freed_nanos.is_some(),
        "then {second:?}"
    );
    // Not in the place of the first, but after a wait for its memory: nothing else can be waited for.
    let killed = first.timeline.killed_nanos.context("not killed")?;
    let waited = second.timeline.verified_nanos.saturating_sub(killed);
    context.figure("passed_over_after", waited as f64 / 1e9, "s");
    ensure!(waited >= 1_000_000_000, "passed over after {waited} ns");
    let events = scene.node.agent.events(0)?;
    let said = events.iter().filter(|event| match &event.kind {
        EventKind::Degraded { message } => {
            message.contains("victim was killed and keeps its memory")
        }
        _ => false,
    });
    let said = said.count();
    ensure!(said == 1, "said {said} times");
    ensure!(filler.is_alive(), "the Guaranteed pod was killed");
    ensure!(!beside.wait(context.limit(20))?.success());
    health(&scene.node, context, 200, 1)?;
    // It dies as soon as it can.
    let Waiting {
        standstill,
        mut process,
    } = waiting;
    drop(standstill);
    process.wait(context.limit(20))?;
    drop(filler);
    scene.node.finish()
}

/// The thread that looks after a victim gets no CPU, and what is started in it fills memory again: no other pod dies
/// for that.
fn stuck_reaper_costs_no_pod(context: &Context) -> Result<()> {
    let scene = Scene::new(context, &small("enforce"))?;
    let bystander = scene.node.pod(PodSpec::best_effort("well-behaved"))?;
    let mut beside = bystander.start(&["anon", "--mib", "16"])?;
    let stopped = Traced::thread(scene.node.agent.pid(), "reaper-lead")?;
    let mib = (scene.node.level()? / MIB + 8).to_string();
    for _ in 0..2 {
        let mut filler = scene
            .victim
            .start(&["fill", "--mib", &mib, "--rate", "400"])?;
        let ended = filler.wait(context.limit(20))?;
        ensure!(!ended.success(), "it filled all of {mib} MiB");
        ensure!(beside.is_alive(), "another pod was killed for it");
    }
    drop(stopped);
    let evictions = scene.evictions(1)?;
    let others = evictions
        .iter()
        .find(|one| one.pod.uid != scene.victim.uid());
    ensure!(others.is_none(), "{others:?}");
    drop(beside);
    scene.node.finish()
}

/// What tells of exits is full; what evicts does not depend on it.
fn stuck_telemetry_overflows(context: &Context) -> Result<()> {
    let options = Options {
        env: vec![("PODWARDEN_TELEMETRY_BYTES".to_owned(), "4096".to_owned())],
        ..small("enforce")
    };
    let scene = Scene::new(context, &options)?;
    let workload = scene.victim.start(&["anon", "--mib", "128"])?;
    scene.victim_holds(128)?;
    let level = scene.node.level()?;
    // The reconciler stands still, so that the ring is not emptied.
    let stopped = Traced::thread(scene.node.agent.pid(), "podwarden")?;
    let storm = ["storm", "--count", "300", "--busy-us", "0"];
    scene.guaranteed.start(&storm)?.done(context.limit(30))?;
    // Well past it: some of what counts now is the storm's, and free as soon as RCU gets to it.
    let filler = scene.fill_to(level + (48 << 20))?;
    until(context.limit(20), "the end of the victim", || {
        scene.victim.main.procs().is_empty()
    })?;
    sleep(Duration::from_millis(50))?;
    drop(stopped);
    let eviction = scene.evictions(1)?.remove(0);
    ensure!(eviction.pod.uid == scene.victim.uid(), "{eviction:?}");
    let node = scene.node.agent.node()?;
    if node.profile != "sampling" {
        eventually(context.limit(20), || {
            let drops = scene.node.agent.node()?.kernel_drops;
            ensure!(drops.telemetry > 0, "nothing was dropped: {drops:?}");
            Ok(())
        })?;
    }
    drop((filler, workload));
    scene.node.finish()
}
