//! The first eviction: a BestEffort pod that fills memory past the level.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use podwarden::api::types::{EventKind, Eviction};
use workload::stamps::Stamps;

use super::{Case, Context, case, portable};
use crate::harness::{Node, Options, Pod, PodSpec, Workload, eventually, sleep, until};

pub(super) const CASES: &[Case] = &[
    case("eviction_enforce", eviction_enforce),
    portable("eviction_observe", eviction_observe),
    portable(
        "eviction_takes_burstable_last",
        eviction_takes_burstable_last,
    ),
];

const MIB: u64 = 1 << 20;

/// A node of 512 MiB that evicts with 128 MiB left.
pub(crate) fn small(mode: &'static str) -> Options {
    Options {
        mode,
        memory: "512Mi".to_owned(),
        eviction_hard: Some("128Mi".to_owned()),
        ..Options::default()
    }
}

/// Pods of every class, each holding some memory, and the one that will fill.
pub(super) struct Scene {
    pub(super) node: Node,
    pub(super) hog: Pod,
    bystanders: Vec<(Pod, Workload)>,
}

impl Scene {
    pub(super) fn new(context: &Context, options: &Options) -> Result<Self> {
        let node = Node::start(context, options)?;
        let pods = node.pods(vec![
            PodSpec::guaranteed("guaranteed", "96Mi"),
            PodSpec::burstable("burstable", "32Mi"),
            PodSpec::best_effort("well-behaved"),
            PodSpec::best_effort("hog"),
        ])?;
        let mut bystanders = Vec::new();
        let mut pods = pods.into_iter();
        for mib in ["48", "64", "16"] {
            let pod = pods.next().context("four pods")?;
            let workload = pod.start(&["anon", "--mib", mib])?;
            bystanders.push((pod, workload));
        }
        let hog = pods.next().context("four pods")?;
        let scene = Self {
            node,
            hog,
            bystanders,
        };
        until(scene.node.limit(), "the bystanders' memory", || {
            scene
                .node
                .kubepods()
                .memory()
                .is_ok_and(|memory| memory.rss >= 127 * MIB)
        })?;
        Ok(scene)
    }

    /// Starts the hog: it goes `beyond` the level, at `rate` MiB per second.
    pub(super) fn start_hog(&self, beyond: u64, rate: u64) -> Result<(Workload, Stamps)> {
        let path = self.node.sandbox.dir().join("stamps");
        let stamps = Stamps::create(&path)?;
        let usage = self.node.kubepods().memory()?.usage;
        let mib = (self.node.level()? + beyond).saturating_sub(usage) / MIB;
        let (mib, rate, path) = (
            mib.to_string(),
            rate.to_string(),
            path.display().to_string(),
        );
        let args = [
            "fill",
            "--mib",
            &mib,
            "--rate",
            &rate,
            "--step-kib",
            "64",
            "--stamps",
            &path,
        ];
        Ok((self.hog.start(&args)?, stamps))
    }

    /// The evictions after event `id`, and the last event's id.
    pub(super) fn evictions(&self, id: u64) -> Result<(Vec<Eviction>, u64)> {
        let events = self.node.agent.events(id)?;
        let last = events.last().map_or(id, |event| event.id);
        let evictions = events.into_iter().filter_map(|event| match event.kind {
            EventKind::Eviction(eviction) => Some(*eviction),
            _ => None,
        });
        Ok((evictions.collect(), last))
    }

    /// The first eviction, once it is reported.
    pub(super) fn first_eviction(&self) -> Result<Eviction> {
        eventually(self.node.limit(), || {
            let (evictions, _) = self.evictions(0)?;
            let first = evictions.into_iter().next();
            first.context("no eviction is reported")
        })
    }

    /// An error when one of the others has ended.
    pub(super) fn ensure_bystanders_alive(&mut self) -> Result<()> {
        for (pod, workload) in &mut self.bystanders {
            ensure!(workload.is_alive(), "{} was killed as well", pod.spec.name);
        }
        Ok(())
    }

    /// Ends everything where the agent has made nothing.
    pub(super) fn finish_observed(self) -> Result<()> {
        let own = self.node.kubepods();
        drop(self.bystanders);
        self.node.finish_with(&own)
    }

    /// Ends everything.
    pub(super) fn finish(self) -> Result<()> {
        drop(self.bystanders);
        self.node.finish()
    }
}

/// The steps follow one another.
fn ensure_monotonic(eviction: &Eviction) -> Result<()> {
    let line = &eviction.timeline;
    let mut steps = vec![line.crossing_nanos, line.wake_nanos, line.verified_nanos];
    steps.extend(line.killed_nanos);
    steps.extend(line.freed_nanos);
    ensure!(
        steps[0] > 0 && steps.is_sorted(),
        "the steps are out of order: {line:?}"
    );
    Ok(())
}

/// What one eviction took, nanoseconds.
#[derive(Default)]
struct Times {
    kill: Vec<u64>,
    freed: Vec<u64>,
    overshoot: Vec<u64>,
}

impl Times {
    fn add(&mut self, eviction: &Eviction, stamps: &Stamps) {
        let line = &eviction.timeline;
        let since = |step: u64| step.saturating_sub(line.crossing_nanos);
        self.kill.extend(line.killed_nanos.map(since));
        self.freed.extend(line.freed_nanos.map(since));
        // What the hog itself stamped between the crossing and its death.
        let stamps = stamps.read();
        let before = stamps
            .iter()
            .rev()
            .find(|stamp| stamp.nanos <= line.crossing_nanos);
        let last = stamps.last().map_or(0, |stamp| stamp.bytes);
        self.overshoot
            .push(last.saturating_sub(before.map_or(0, |stamp| stamp.bytes)));
    }

    fn report(&self, context: &Context) {
        for (name, values, scale, unit) in [
            ("crossing_to_kill", &self.kill, 1e6, "ms"),
            ("crossing_to_freed", &self.freed, 1e6, "ms"),
            ("overshoot", &self.overshoot, MIB as f64, "MiB"),
        ] {
            let values = values.iter().map(|value| *value as f64 / scale);
            context.spread(name, values.collect(), unit);
        }
        let fast = self.kill.iter().filter(|nanos| **nanos < 5_000_000).count();
        context.figure("kills_under_5_ms", fast as f64, "");
        context.figure("kills", self.kill.len() as f64, "");
    }
}

fn eviction_enforce(context: &Context) -> Result<()> {
    let runs = context.repetitions(if context.emulated() { 1 } else { 6 });
    let mut times = Times::default();
    for run in 1..=runs {
        let mut scene = Scene::new(context, &small("enforce"))?;
        evict_once(context, &mut scene, &mut times).with_context(|| format!("run {run}"))?;
        scene.finish().with_context(|| format!("run {run}"))?;
    }
    times.report(context);
    Ok(())
}

fn evict_once(context: &Context, scene: &mut Scene, times: &mut Times) -> Result<()> {
    let level = scene.node.level()?;
    let (mut hog, stamps) = scene.start_hog(96 * MIB, 500)?;
    let status = hog
        .wait(context.limit(30))
        .context("the hog was not killed")?;
    ensure!(!status.success(), "the hog ended by itself");
    let eviction = eventually(scene.node.limit(), || {
        let (evictions, _) = scene.evictions(0)?;
        let eviction = evictions
            .into_iter()
            .next()
            .context("no eviction is reported")?;
        ensure!(
            eviction.timeline.freed_nanos.is_some(),
            "the memory is not seen freed"
        );
        Ok(eviction)
    })?;
    ensure!(
        eviction.pod.uid == scene.hog.uid(),
        "the victim is {:?}",
        eviction.pod
    );
    ensure!(
        eviction.qos_class == "BestEffort" && !eviction.dry_run,
        "{eviction:?}"
    );
    ensure!(
        eviction.timeline.killed_nanos.is_some() && eviction.processes >= 1,
        "{eviction:?}"
    );
    ensure!(!eviction.reason.is_empty(), "no reason is given");
    ensure!(eviction.usage_bytes >= eviction.level_bytes, "{eviction:?}");
    ensure!(
        eviction.level_bytes <= level,
        "the level was {level} bytes: {eviction:?}"
    );
    ensure_monotonic(&eviction)?;
    scene.ensure_bystanders_alive()?;
    scene.node.expect(scene.hog.uid(), |stats| {
        ensure!(stats.phase == "Evicted", "its phase is {}", stats.phase);
        ensure!(
            (stats.exits.total, stats.exits.signaled) == (1, 1),
            "exits {:?}",
            stats.exits
        );
        Ok(())
    })?;
    let (evictions, _) = scene.evictions(0)?;
    ensure!(evictions.len() == 1, "{} evictions", evictions.len());
    times.add(&eviction, &stamps);
    Ok(())
}

fn eviction_observe(context: &Context) -> Result<()> {
    let mut scene = Scene::new(context, &small("observe"))?;
    let before = scene.node.kubepods().settings();
    let (mut hog, _stamps) = scene.start_hog(32 * MIB, 200)?;
    let eviction = scene.first_eviction()?;
    ensure!(eviction.dry_run, "it was no dry run: {eviction:?}");
    ensure!(
        eviction.pod.uid == scene.hog.uid(),
        "the victim is {:?}",
        eviction.pod
    );
    ensure!(
        eviction.processes == 0 && eviction.timeline.killed_nanos.is_none(),
        "{eviction:?}"
    );
    ensure_monotonic(&eviction)?;
    sleep(Duration::from_millis(500))?;
    ensure!(hog.is_alive(), "the hog was killed in observe mode");
    scene.ensure_bystanders_alive()?;
    let after = scene.node.kubepods().settings();
    ensure!(
        before == after,
        "the tree was changed: {before:?} -> {after:?}"
    );
    hog.kill();
    drop(hog);
    scene.finish_observed()
}

fn eviction_takes_burstable_last(context: &Context) -> Result<()> {
    let mut scene = Scene::new(context, &small("enforce"))?;
    // The hog is in the Burstable pod this time, over its request; yet BestEffort pods come first.
    let (burstable, _) = &scene.bystanders[1];
    let mib = (scene
        .node
        .level()?
        .saturating_sub(scene.node.kubepods().memory()?.usage)
        / MIB
        + 8)
    .to_string();
    let mut hog = burstable.start(&["fill", "--mib", &mib, "--rate", "200"])?;
    let first = scene.first_eviction()?;
    ensure!(
        first.qos_class == "BestEffort",
        "the first victim is {:?}",
        first.pod
    );
    ensure!(
        scene.bystanders[0].1.is_alive(),
        "the Guaranteed pod was killed"
    );
    hog.kill();
    drop(hog);
    drop(scene.bystanders);
    scene.bystanders = Vec::new();
    scene.finish()
}
