//! Agent and guard are killed at random moments while quotas are raised and best effort is held back.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwarden::api::types::{Event, EventKind};

use super::scene::Scene;
use super::{limited, raised, spec};
use crate::cases::Context;
use crate::cases::recorder::restart;
use crate::harness::{Agent, Options, Pod, PodSpec, Qos, eventually, sleep, until};

/// A file and what it holds.
type Settings = BTreeMap<PathBuf, String>;

/// Every strategy at once; the formula leaves best effort 1.5 CPUs.
fn strategies(policy: &str) -> Options {
    let burst = "cpuBurstStrategy: {policy: auto, sharePoolThresholdPercent: 100}";
    let wait = "cpuWaitStrategy: {enable: true, minPercent: 1}";
    let suppress = format!("cpuSuppressThresholdPercent: 50, cpuSuppressPolicy: {policy}");
    Options {
        cpu: "16",
        config: format!(
            "systemReserved: {{cpu: 6500m}}\ncolocation: {{{burst}, {wait}, {suppress}}}\n"
        ),
        ..Options::default()
    }
}

/// The same node without a strategy.
fn none(mode: &'static str) -> Options {
    Options {
        mode,
        config: "systemReserved: {cpu: 6500m}\n".to_owned(),
        ..strategies("cfsQuota")
    }
}

/// What is killed again and again.
struct Rig<'a> {
    context: &'a Context,
    scene: Scene,
    /// At its limit all the time.
    api: Pod,
    /// Without an agent's strategies.
    found: Settings,
    random: Rng,
    /// Rounds after which something was left.
    left: usize,
}

pub(super) fn nothing_stays_of_killed_agents(context: &Context) -> Result<()> {
    let random = Rng::with_seed(context.seed());
    let mut rig = Rig::start(context, random)?;
    let rounds = context.repetitions(if context.emulated() { 1 } else { 10 });
    for round in 0..rounds {
        rig.round(round).with_context(|| format!("round {round}"))?;
    }
    context.figure("rounds", f64::from(rounds), "");
    context.figure("left_by_the_kill", rig.left as f64, "");
    ensure!(rig.left > 0, "no kill left anything to undo");
    rig.scene.finish_by_undo(context)
}

impl<'a> Rig<'a> {
    /// Starts the pods, and kills the agent that has made them.
    fn start(context: &'a Context, random: Rng) -> Result<Self> {
        let web = PodSpec::new("web", Qos::Burstable, "500m", "64Mi");
        let web = web.annotated("podwarden.io/cpu-wait-objective", "100us");
        let mut scene = Scene::start(context, &none("enforce"), web)?;
        let api = limited(&scene.node, spec("api"))?;
        scene.work = vec![
            scene.batch.start(&["burn", "--threads", "8"])?,
            scene
                .web
                .start(&["burn", "--threads", "2", "--duty", "20"])?,
            api.start(&["burn"])?,
        ];
        scene.node.kill_agent()?;
        // One that is ready has written what follows from the pods.
        restart(context, &mut scene.node, &none("enforce"))?;
        scene.node.kill_agent()?;
        Ok(Self {
            context,
            found: settings(&scene)?,
            scene,
            api,
            random,
            left: 0,
        })
    }

    /// Kills an agent and its guard while every strategy is at work; afterwards the next agent, or `podwarden undo`,
    /// leaves what was found.
    fn round(&mut self, round: u32) -> Result<()> {
        let policy = ["cfsQuota", "cpuset"][usize::from(self.random.bool())];
        let node = &mut self.scene.node;
        if round % 3 == 2 {
            // Wherever it is on its way.
            node.agent = Agent::spawn(self.context.agent(), &node.sandbox, &strategies(policy))?;
            sleep(Duration::from_millis(self.random.u64(0..1500)))?;
        } else {
            restart(self.context, node, &strategies(policy))?;
            self.suppressed()?;
            raised(&self.scene.node, &self.api)?;
            sleep(Duration::from_millis(self.random.u64(0..300)))?;
        }
        // The first leaves something for certain.
        let at_once = round == 0 || self.random.bool();
        self.kill(at_once)?;
        self.left += usize::from(settings(&self.scene)? != self.found);
        if round.is_multiple_of(2) {
            self.scene.undo(self.context)?;
        } else {
            let node = &mut self.scene.node;
            restart(self.context, node, &none("observe"))?;
            self.is_as_found().context("the next agent is ready")?;
            let limit = self.scene.node.limit();
            self.scene.node.agent.stop(Signal::SIGTERM, limit)?;
        }
        self.is_as_found()
            .with_context(|| format!("policy {policy}"))
    }

    /// Waits until the formula holds best effort. A pod that waits holds it besides, unless other programs leave it less
    /// than its floor.
    fn suppressed(&self) -> Result<()> {
        let node = &self.scene.node;
        eventually(node.limit(), || {
            let events = node.agent.events(0)?;
            let is_it =
                |event: &Event| matches!(event.kind, EventKind::BestEffortSuppressed { .. });
            ensure!(events.iter().any(is_it), "best effort is not suppressed");
            Ok(())
        })
    }

    /// Guard and agent at once, or the guard in the middle of its work.
    fn kill(&mut self, at_once: bool) -> Result<()> {
        let node = &mut self.scene.node;
        if at_once {
            let guards = pids(&node.agent);
            node.kill_agent_and_guards()?;
            return ended(&guards, node.limit());
        }
        // A guard that starts meanwhile ends by itself, and is none of these.
        let guards = pids(&node.agent);
        node.agent.signal(Signal::SIGKILL)?;
        sleep(Duration::from_micros(self.random.u64(0..3000)))?;
        for guard in &guards {
            // It may have ended.
            let _ = kill(*guard, Signal::SIGKILL);
        }
        let limit = node.limit();
        node.agent.wait(limit)?;
        ended(&guards, limit)
    }

    /// Where the kernel does not take a list of CPUs away from pods that run, the tier may have all of its parent's.
    fn is_as_found(&self) -> Result<()> {
        let now = settings(&self.scene)?;
        let other = |(path, value): &(&PathBuf, &String)| now.get(*path) != Some(*value);
        let mut left: Vec<_> = self.found.iter().filter(other).collect();
        if let [(path, _)] = *left
            && path.ends_with("besteffort/cpuset.cpus")
            && !self.scene.takes_lists_away()?
        {
            let all = self.scene.node.sandbox.root.effective_cpus()?;
            left.retain(|(path, _)| now.get(*path).is_none_or(|value| value.trim() != all));
        }
        ensure!(
            left.is_empty(),
            "{left:?} was found, {:?} is left",
            left.iter()
                .map(|(path, _)| now.get(*path))
                .collect::<Vec<_>>()
        );
        Ok(())
    }
}

fn pids(agent: &Agent) -> Vec<Pid> {
    let children = agent.children();
    let pids = children.iter().map(|pid| Pid::from_raw(pid.cast_signed()));
    pids.collect()
}

fn ended(guards: &[Pid], limit: Duration) -> Result<()> {
    until(limit, "the end of the guards", || {
        guards.iter().all(|guard| kill(*guard, None).is_err())
    })
}

/// Every setting of the CPU below kubepods: quotas, bursts, weights, idle flags, CPUs.
fn settings(scene: &Scene) -> Result<Settings> {
    let mut found = BTreeMap::new();
    scene.node.kubepods().every_setting(&mut found)?;
    found.retain(|path, _| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("cpu.") || name.starts_with("cpuset.")
    });
    Ok(found)
}
