//! One agent takes over from another: a pod that fills memory meanwhile is evicted, once, and no limit is loosened.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwarden::api::types::{Event, EventKind, TookOver};

use super::hog::Hog;
use super::{Rig, ensure_evicted_once, take_away};
use crate::cases::Context;
use crate::cases::converge::scene::{CONFIG, TARGET};
use crate::cases::converge::seen::{hard_limit, limit};
use crate::cases::recorder::{records, restart};
use crate::harness::{Agent, PodSpec, eventually, files_below, http_get, sleep};

/// Longer than a guard takes an agent to be away for.
const AWAY: Duration = Duration::from_secs(1);

/// An agent that waits for the one at work, and the socket of its own health.
struct Standby {
    agent: Agent,
    health: std::path::PathBuf,
}

impl Standby {
    /// Starts it and waits until it is ready to take over.
    fn start(rig: &Rig, name: &str) -> Result<Self> {
        let health = rig.node.sandbox.dir().join(format!("{name}.sock"));
        let mut options = rig.options.clone();
        let socket = health.display().to_string();
        options.args = vec![
            "--wait-for-lock".to_owned(),
            "--health-socket".to_owned(),
            socket,
        ];
        let agent = Agent::spawn(rig.context.agent(), &rig.node.sandbox, &options)?;
        rig.context.watch(&agent.log);
        let this = Self { agent, health };
        let holder = format!("process {}\n", rig.node.agent.pid());
        eventually(rig.context.limit(60), || {
            let answer = this.readiness()?;
            ensure!(
                answer.0 == 200 && answer.1.starts_with("standby: ") && answer.1.ends_with(&holder),
                "{answer:?}"
            );
            Ok(())
        })?;
        Ok(this)
    }

    fn readiness(&self) -> Result<(u16, String)> {
        let answer = http_get(&self.health, "/readyz")?;
        Ok((answer.status, answer.text()))
    }
}

/// What the events say last of an agent that took over.
pub(in crate::cases) fn last_take_over(events: Vec<Event>) -> Option<TookOver> {
    events.into_iter().rev().find_map(|event| match event.kind {
        EventKind::TookOver(took_over) => Some(took_over),
        _ => None,
    })
}

/// For how long no agent evicted, and how much of that the one before took to leave.
pub(in crate::cases) fn gap(context: &Context, took_over: &TookOver, after: &str) {
    let ms = |nanos: u64| nanos as f64 / 1e6;
    let gap = took_over.gap_nanos();
    context.figure(format!("no_agent_evicted_{after}"), ms(gap), "ms");
    if let Some(ended) = took_over.ended_nanos {
        let left = took_over.locked_nanos.saturating_sub(ended);
        context.figure(format!("left_after_{after}"), ms(left), "ms");
    }
}

/// Ends the agent at work; the one that stands by is the node's agent then.
fn hand_over(rig: &mut Rig, next: Standby, signal: Signal) -> Result<TookOver> {
    rig.node.agent.signal(signal)?;
    let mut old = std::mem::replace(&mut rig.node.agent, next.agent);
    let status = old.wait(rig.context.limit(20))?;
    ensure!(
        status.success() == (signal == Signal::SIGTERM),
        "{signal:?}: {status}"
    );
    let took_over = eventually(rig.context.limit(30), || {
        let last = last_take_over(rig.node.agent.events(0)?);
        let of_it = last.filter(|took_over| took_over.predecessor_pid == Some(old.pid()));
        of_it.context("it does not say that it took over")
    })?;
    ensure!(
        took_over.ended_nanos.is_some() == (signal == Signal::SIGTERM),
        "{signal:?}: {took_over:?}"
    );
    // A thread writes it, after it is published.
    eventually(rig.context.limit(10), || {
        let logged = records(&rig.log)?.into_iter();
        let logged = logged.filter(|record| record.event.kind == EventKind::TookOver(took_over));
        let times = logged.count();
        ensure!(times == 1, "the event log has it {times} times");
        Ok(())
    })?;
    // Its socket is its own.
    rig.node.agent.wait_ready(rig.context.limit(30))?;
    let answer = http_get(&next.health, "/readyz")?;
    ensure!(
        answer.status == 200 && answer.text() == "ok\n",
        "{}",
        answer.text()
    );
    Ok(took_over)
}

/// A pod fills memory while agents change, by a clean end and by a kill.
pub(super) fn filling(context: &Context) -> Result<()> {
    let seed = context.seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut rig = Rig::new(context)?;
    let calm = rig.node.pod(PodSpec::burstable("calm", "32Mi"))?;
    let mut calm = calm.start(&["anon", "--mib", "16"])?;

    // One that is not needed any more leaves the agent at work as it is.
    let mut spare = Standby::start(&rig, "spare")?;
    spare.agent.signal(Signal::SIGTERM)?;
    let status = spare.agent.wait(context.limit(20))?;
    ensure!(status.success(), "the one that stood by: {status}");
    ensure!(!spare.health.exists(), "its socket is left");
    ensure!(waiting_files(&rig).is_empty(), "{:?}", waiting_files(&rig));
    rig.node.agent.node()?;

    let mut hogs = std::collections::BTreeMap::new();
    let rounds = context.repetitions(2);
    for round in 0..rounds {
        let signal = match round % 2 {
            0 => Signal::SIGTERM,
            _ => Signal::SIGKILL,
        };
        let next = Standby::start(&rig, &format!("round-{round}"))?;
        let mut hog = Hog::start(&rig)?;
        sleep(Duration::from_millis(random.u64(0..1000)))?;
        let took_over = hand_over(&mut rig, next, signal)
            .with_context(|| format!("round {round}, {signal:?}, seed {seed}"))?;
        gap(context, &took_over, &signal.as_str().to_lowercase());
        hog.evicted(&rig, context.limit(20))
            .with_context(|| format!("round {round}, seed {seed}"))?;
        take_away(&rig, &hog.pod)?;
        hogs.insert(hog.pod.uid().to_owned(), false);
        ensure!(calm.is_alive(), "another pod was killed as well");
    }
    let untold = ensure_evicted_once(&rig, &hogs)?;
    ensure!(untold == 0, "{untold} evictions have no event");
    let kills = rig.node.kubepods().oom_kills()?;
    ensure!(
        kills == 0,
        "the kernel's OOM killer chose {kills} processes"
    );
    calm.kill();
    rig.node.finish()
}

/// What says that an agent waits for this node.
fn waiting_files(rig: &Rig) -> Vec<std::path::PathBuf> {
    let root = rig.node.sandbox.root.path().replace('/', "%2F");
    let files = files_below(std::path::Path::new("/run/podwarden")).into_iter();
    files
        .filter(|file| {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            name.contains(&root) && name.ends_with(".next")
        })
        .collect()
}

/// The limit of a tier stays what it is while agents change; where the agent that takes over is killed at once, the tier
/// has the limit again that was found.
pub(super) fn limits(context: &Context) -> Result<()> {
    let mut rig = Rig::with(context, |options, _| {
        options.memory = "640Mi".to_owned();
        options.eviction_hard = None;
        options.config.push_str(CONFIG);
        Ok(())
    })?;
    let keeps = rig.node.pod(PodSpec::best_effort("keeps"))?;
    let mut workload = keeps.start(&["anon", "--mib", "8"])?;
    let file = hard_limit(&rig.node.tier("besteffort")?);
    rig.node.agent.stop(Signal::SIGTERM, rig.node.limit())?;
    let found = limit(&file);
    ensure!(found > TARGET, "{found} was found");
    rig.node
        .manifest(&PodSpec::guaranteed("arrives", "384Mi"))?;
    let options = rig.options.clone();
    restart(context, &mut rig.node, &options)?;
    eventually(context.limit(10), || {
        let now = limit(&file);
        ensure!(now == TARGET, "the limit is {now}");
        Ok(())
    })?;

    let next = Standby::start(&rig, "keeps-limits")?;
    let slow = Pid::from_raw(next.agent.pid().try_into()?);
    let done = AtomicBool::new(false);
    let highest = thread::scope(|scope| {
        // It gets no CPU for longer than a root may be without an agent.
        next.agent.signal(Signal::SIGSTOP)?;
        scope.spawn(move || {
            thread::sleep(AWAY);
            kill(slow, Signal::SIGCONT)
        });
        let watching = scope.spawn(|| {
            let mut highest = 0;
            while !done.load(Ordering::Relaxed) {
                highest = highest.max(limit(&file));
                thread::sleep(Duration::from_micros(200));
            }
            highest
        });
        let handed = hand_over(&mut rig, next, Signal::SIGTERM);
        // For longer than the guard of the agent before waits to see an agent at work.
        let handed = handed.and_then(|_| sleep(AWAY));
        done.store(true, Ordering::Relaxed);
        let highest = watching.join();
        handed.and(highest.map_err(|_| anyhow::anyhow!("the watch panicked")))
    })?;
    ensure!(highest == TARGET, "the limit was {highest} meanwhile");

    let last = Standby::start(&rig, "is-killed")?;
    rig.node.agent.signal(Signal::SIGTERM)?;
    let mut old = std::mem::replace(&mut rig.node.agent, last.agent);
    old.wait(context.limit(20))?;
    rig.node.agent.signal(Signal::SIGKILL)?;
    rig.node.agent.wait(context.limit(20))?;
    eventually(context.limit(20), || {
        let now = limit(&file);
        ensure!(now == found, "found {found}, left {now}");
        Ok(())
    })?;
    workload.kill();
    let options = rig.options.clone();
    restart(context, &mut rig.node, &options)?;
    rig.node.finish()
}
