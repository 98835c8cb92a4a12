//! Memory filled as fast as it goes, with the hard limit of kubepods right above the level: the kernel's
//! own OOM killer, which kills by its own rules, must always come too late.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use podwarden::api::types::{Event, EventKind, Eviction};

use super::{Case, Context, portable};
use crate::harness::{Cgroup, Node, Options, Pod, PodSpec, Workload, eventually, sleep, until};

pub(super) const CASES: &[Case] = &[
    portable("full_speed_victim", full_speed_victim),
    portable("full_speed_guaranteed", full_speed_guaranteed),
];

const MIB: u64 = 1 << 20;

/// What pods may use: the limit of kubepods.
const LIMIT: u64 = 512 * MIB;

/// As small as a threshold can sensibly be here: a filler takes some 10 ms for it.
fn options() -> Options {
    Options {
        memory: (LIMIT / MIB).to_string() + "Mi",
        eviction_hard: Some("16Mi".to_owned()),
        config: "reactor: {maxEvictionsPerMinute: 6000}\n".to_owned(),
        ..Options::default()
    }
}

/// A full node: pods of each class that behave, one that is evicted, and one that fills beside it.
struct Scene {
    node: Node,
    /// BestEffort, another one in every run: processes that appear in an evicted pod are killed as well.
    victim: Pod,
    /// Guaranteed.
    guaranteed: Pod,
    bystanders: Vec<Workload>,
    /// The last event that was looked at.
    seen: u64,
}

impl Scene {
    fn new(context: &Context) -> Result<Self> {
        let node = Node::start(context, &options())?;
        let pods = node.pods(vec![
            PodSpec::best_effort("victim"),
            PodSpec::guaranteed("guaranteed", "480Mi"),
            PodSpec::guaranteed("beside", "32Mi"),
            PodSpec::burstable("burstable", "16Mi"),
            PodSpec::best_effort("well-behaved"),
        ])?;
        let mut pods = pods.into_iter();
        let mut next = || pods.next().context("five pods");
        let (victim, guaranteed) = (next()?, next()?);
        let mut bystanders = Vec::new();
        for mib in ["24", "32", "16"] {
            bystanders.push(next()?.start(&["anon", "--mib", mib])?);
        }
        let scene = Self {
            node,
            victim,
            guaranteed,
            bystanders,
            seen: 0,
        };
        scene.settled()?;
        Ok(scene)
    }

    /// Waits until the bystanders' memory is all there is.
    fn settled(&self) -> Result<()> {
        until(
            2 * self.node.limit(),
            "a node with its bystanders alone",
            || {
                let memory = self.node.kubepods().memory();
                memory.is_ok_and(|memory| (70 * MIB..96 * MIB).contains(&memory.rss))
            },
        )
    }

    /// Has a pod of its own evicted in the next run.
    fn renew(&mut self, run: u32) -> Result<()> {
        self.victim = self
            .node
            .pod(PodSpec::best_effort(&format!("victim-{run}")))?;
        Ok(())
    }

    /// What happened since the last call.
    fn news(&mut self) -> Result<Vec<Event>> {
        let events = self.node.agent.events(self.seen)?;
        self.seen = events.last().map_or(self.seen, |event| event.id);
        Ok(events)
    }

    /// The evictions of one run, once there is one; no kernel OOM kill is among what happened.
    fn evictions(&mut self) -> Result<Vec<Eviction>> {
        let limit = self.node.limit();
        let mut found = Vec::new();
        eventually(limit, || {
            for event in self.news()? {
                match event.kind {
                    EventKind::Eviction(eviction) => found.push(*eviction),
                    EventKind::KernelOom { pid } => bail!("the kernel killed process {pid}"),
                    _ => {}
                }
            }
            ensure!(!found.is_empty(), "no eviction is reported");
            Ok(())
        })
        .with_context(|| self.state())?;
        Ok(found)
    }

    /// For the error.
    fn state(&self) -> String {
        let usage = |cgroup: &Cgroup| cgroup.memory().map_or(0, |memory| memory.usage / MIB);
        let kubepods = self.node.kubepods();
        format!(
            "kubepods uses {} MiB, with {:?} OOM kills; the victim's pod {} MiB, frozen: {}, processes {:?}",
            usage(&kubepods),
            kubepods.oom_kills(),
            usage(&self.victim.cgroup),
            self.victim.cgroup.is_frozen() || self.victim.main.is_frozen(),
            self.victim.main.procs()
        )
    }

    /// No pod but the victim's was touched, neither by the agent nor by the kernel.
    fn judge(&mut self, evictions: &[Eviction]) -> Result<()> {
        for eviction in evictions {
            ensure!(
                eviction.pod.uid == self.victim.uid(),
                "the wrong victim, {}, among {evictions:?}",
                eviction.pod.name
            );
        }
        for bystander in &mut self.bystanders {
            ensure!(
                bystander.is_alive(),
                "a bystander was killed: {evictions:?}"
            );
        }
        let kills = self.node.kubepods().oom_kills()?;
        ensure!(kills == 0, "{kills} OOM kills by the kernel: {evictions:?}");
        Ok(())
    }

    fn finish(self) -> Result<()> {
        drop(self.bystanders);
        self.node.finish()
    }
}

/// What the runs took.
#[derive(Default)]
struct Measured {
    kill: Vec<f64>,
    freed: Vec<f64>,
    rate: Vec<f64>,
    headroom: Vec<f64>,
}

impl Measured {
    fn add(&mut self, eviction: &Eviction) {
        let line = &eviction.timeline;
        let since = |step: u64| step.saturating_sub(line.crossing_nanos) as f64 / 1e6;
        self.kill.extend(line.killed_nanos.map(since));
        self.freed.extend(line.freed_nanos.map(since));
        self.rate
            .push(eviction.fill_bytes_per_second as f64 / MIB as f64);
        self.headroom
            .push(eviction.headroom_bytes as f64 / MIB as f64);
    }

    fn report(self, context: &Context) {
        for (name, values, unit) in [
            ("crossing_to_kill", self.kill, "ms"),
            ("crossing_to_freed", self.freed, "ms"),
            ("fill_rate", self.rate, "MiB/s"),
            ("headroom", self.headroom, "MiB"),
        ] {
            context.spread(name, values, unit);
        }
    }
}

/// Runs a case on one node, again and again; `once` returns the evictions of its run.
fn repeat(context: &Context, once: impl Fn(&mut Scene) -> Result<Vec<Eviction>>) -> Result<()> {
    let mut scene = Scene::new(context)?;
    let mut measured = Measured::default();
    let runs = context.repetitions(if context.emulated() { 2 } else { 5 });
    for run in 1..=runs {
        let mut run_once = || {
            scene.renew(run)?;
            let evictions = once(&mut scene)?;
            measured.add(&evictions[0]);
            scene.settled()
        };
        run_once().with_context(|| format!("run {run} of {runs}"))?;
    }
    context.figure("runs", runs.into(), "");
    measured.report(context);
    scene.finish()
}

/// The pod that fills is the victim.
fn full_speed_victim(context: &Context) -> Result<()> {
    repeat(context, |scene| {
        let mib = (LIMIT / MIB).to_string();
        let mut filler = scene
            .victim
            .start(&["fill", "--mib", &mib, "--step-kib", "64"])?;
        let evictions = scene.evictions()?;
        let status = filler.wait(context.limit(20))?;
        ensure!(!status.success(), "the filler ended by itself");
        scene.judge(&evictions)?;
        Ok(evictions)
    })
}

/// Another pod fills, within its request, and goes on while the victim is noticed, killed and freed. Not
/// at full speed: that leaves less time than a busy machine takes to free anything.
fn full_speed_guaranteed(context: &Context) -> Result<()> {
    const HELD: u64 = 128;
    repeat(context, |scene| {
        let mut victim = scene.victim.start(&["anon", "--mib", &HELD.to_string()])?;
        until(scene.node.limit(), "the victim's memory", || {
            let memory = scene.victim.cgroup.memory();
            memory.is_ok_and(|memory| memory.rss >= HELD * MIB)
        })?;
        // A moment in which nothing grows.
        sleep(Duration::from_millis(300))?;
        let now = scene.node.kubepods().memory()?.usage;
        // Far past the limit, but for what the victim has.
        let mib = ((LIMIT - now + 48 * MIB) / MIB).to_string();
        let mut filler = scene.guaranteed.start(&[
            "fill",
            "--mib",
            &mib,
            "--step-kib",
            "64",
            "--rate",
            "100",
        ])?;
        let evictions = scene.evictions()?;
        ensure!(!victim.wait(context.limit(20))?.success());
        scene.judge(&evictions)?;
        ensure!(filler.is_alive(), "the Guaranteed pod was killed");
        until(scene.node.limit(), "the filler's end", || {
            let memory = scene.guaranteed.cgroup.memory();
            memory.is_ok_and(|memory| memory.rss + 2 * MIB >= LIMIT - now + 48 * MIB)
        })?;
        scene.judge(&evictions)?;
        Ok(evictions)
    })
}
