//! The agent itself is in trouble: its reactor stands still, it is killed half way, its rings overflow.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use podwarden::api::EventKind;
use rustix::process::Signal;

use super::{Case, Context, case, eviction::small, portable, reaping::Scene};
use crate::harness::{Agent, Node, Options, eventually, http_get, monotonic, sleep, until};

pub(super) const CASES: &[Case] = &[
    portable("stuck_reactor_is_noticed", stuck_reactor_is_noticed),
    case("stuck_agent_killed_half_way", stuck_agent_killed_half_way),
    portable("stuck_telemetry_overflows", stuck_telemetry_overflows),
];

/// A thread that is kept from running, until this goes away.
struct Stopped(i32);

impl Stopped {
    /// Stops one thread of a process and no other (ptrace(2)).
    fn thread(pid: u32, name: &str) -> Result<Self> {
        let dir = format!("/proc/{pid}/task");
        for task in fs::read_dir(&dir).with_context(|| format!("read {dir}"))? {
            let task = task?.path();
            if fs::read_to_string(task.join("comm"))?.trim() == name {
                let tid = task.file_name().and_then(|n| n.to_str()?.parse().ok());
                return Self::stop(tid.context("a task is no number")?);
            }
        }
        bail!("process {pid} has no thread {name}")
    }

    fn stop(tid: i32) -> Result<Self> {
        // SAFETY: the requests take no pointers; both are about a thread of our own child.
        let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, tid, 0_usize, 0_usize) };
        ensure!(
            seized == 0,
            "seize {tid}: {}",
            std::io::Error::last_os_error()
        );
        let stopped = Self(tid);
        // SAFETY: as above.
        unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, tid, 0_usize, 0_usize) };
        let mut status = 0;
        // SAFETY: the status is a live integer.
        let waited = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL) };
        ensure!(
            waited == tid,
            "wait for {tid}: {}",
            std::io::Error::last_os_error()
        );
        Ok(stopped)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // SAFETY: as above; a thread that is gone is detached from.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, 0_usize, 0_usize) };
    }
}

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
    let stopped = Stopped::thread(node.agent.pid(), "reactor")?;
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

/// Killed at any moment of an eviction, the agent leaves nothing that its successor cannot go on from.
fn stuck_agent_killed_half_way(context: &Context) -> Result<()> {
    let options = small("enforce");
    let runs = if context.emulated() { 2 } else { 8 };
    let (mut killed_before, mut left_frozen) = (0, 0);
    for run in 0..runs {
        let mut scene = Scene::new(context, &options)?;
        scene.victim.cgroup.limit_pids(64)?;
        let holds = scene.victim.start(&["anon", "--mib", "128"])?;
        let bomb = scene.victim.start(&["forkbomb", "--restless"])?;
        scene.victim_holds(128)?;
        // The crossing is some milliseconds before the end of the filling: die around it.
        let level = scene.level()?;
        let mut filler = scene.fill()?;
        until(scene.node.limit(), "the level", || {
            let memory = scene.node.kubepods().memory();
            // Looked for now and then, the moment itself may be missed: then the agent was faster.
            memory.is_ok_and(|memory| memory.usage >= level - (4 << 20))
                || scene.victim.main.procs().is_empty()
        })?;
        std::thread::sleep(Duration::from_micros(monotonic() / 1000 % 30_000));
        scene.node.agent.signal(Signal::KILL)?;
        scene.node.agent.wait(context.limit(10))?;
        // Who was sent SIGKILL is dead by now.
        sleep(Duration::from_millis(200))?;
        killed_before += u32::from(scene.victim.main.procs().is_empty());
        left_frozen += u32::from(scene.victim.cgroup.is_frozen());

        scene.node.agent = Agent::spawn(context.agent(), &scene.node.sandbox, &options)?;
        context.watch(&scene.node.agent.log);
        scene.node.agent.wait_ready(context.limit(30))?;
        until(context.limit(30), "the end of the victim", || {
            scene.victim.main.procs().is_empty()
        })
        .with_context(|| format!("run {run}"))?;
        ensure!(
            filler.is_alive(),
            "run {run}: the Guaranteed pod was killed"
        );
        ensure!(!scene.victim.cgroup.is_frozen(), "run {run}: left frozen");
        drop((holds, bomb, filler));
        scene.node.agent.stop(Signal::TERM, context.limit(20))?;
    }
    context.figure("victim_dead_before_the_agent", f64::from(killed_before), "");
    context.figure("victim_left_frozen", f64::from(left_frozen), "");
    Ok(())
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
    let level = scene.level()?;
    // The slow loop stands still, so that nobody empties the ring.
    let stopped = Stopped::thread(scene.node.agent.pid(), "podwarden")?;
    let storm = ["storm", "--count", "300", "--busy-us", "0"];
    scene.guaranteed.start(&storm)?.done(context.limit(30))?;
    let filler = scene.fill_to(level + (8 << 20))?;
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
            let drops = scene.node.agent.node()?.drops;
            ensure!(drops.telemetry > 0, "nothing was dropped: {drops:?}");
            Ok(())
        })?;
    }
    drop((filler, workload));
    scene.node.finish()
}
