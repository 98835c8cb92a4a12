//! An eviction has to be worth it: growth that is no candidate's costs one pod at the kubelet's pace, and a
//! candidate that fills goes before small pods that rank ahead of it.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use podwarden::api::types::{EventKind, Eviction};

use super::{Case, Context, case, portable, skip};
use crate::harness::{Node, Options, Pod, PodSpec, Workload, eventually, sleep, until};

pub(super) const CASES: &[Case] = &[
    portable("worth_outside", worth_outside),
    portable("worth_exempt", worth_exempt),
    case("worth_filler", worth_filler),
    portable("worth_slow_filler", worth_slow_filler),
];

const MIB: u64 = 1 << 20;
/// Small pods in a scene, and what each holds, MiB.
const SMALL: usize = 20;
const HOLDS: &str = "4";

/// BestEffort pods that hold little and do not grow.
struct Small {
    pods: Vec<Pod>,
    workloads: Vec<Workload>,
}

impl Small {
    fn start(node: &Node, count: usize) -> Result<Self> {
        let specs = (0..count).map(|i| PodSpec::best_effort(&format!("small-{i}")));
        let pods = node.pods(specs.collect())?;
        let workloads = pods.iter().map(|pod| pod.start(&["anon", "--mib", HOLDS]));
        let workloads = workloads.collect::<Result<Vec<_>>>()?;
        for pod in &pods {
            until(node.limit(), "a small pod's memory", || {
                pod.cgroup
                    .memory()
                    .is_ok_and(|memory| memory.usage >= 4 * MIB)
            })?;
        }
        Ok(Self { pods, workloads })
    }

    fn alive(&mut self) -> usize {
        let workloads = self.workloads.iter_mut();
        workloads
            .map(Workload::is_alive)
            .filter(|alive| *alive)
            .count()
    }
}

fn was_said(node: &Node, text: &str) -> Result<bool> {
    let events = node.agent.events(0)?;
    Ok(events.iter().any(
        |event| matches!(&event.kind, EventKind::Degraded { message } if message.contains(text)),
    ))
}

/// After the first eviction no second one follows within the kubelet's pace.
fn ensure_paced(node: &Node, small: &mut Small) -> Result<()> {
    let evictions = |count: usize| {
        eventually(node.limit(), || {
            let evictions = node.agent.evictions()?;
            ensure!(evictions.len() >= count, "{} evictions", evictions.len());
            Ok::<Vec<Eviction>, _>(evictions)
        })
    };
    evictions(1)?;
    until(node.limit(), "the reason", || {
        was_said(node, "what grew is no pod that may be evicted").unwrap_or(false)
    })?;
    sleep(Duration::from_secs(4))?;
    let evicted = node.agent.evictions()?;
    ensure!(
        evicted.len() == 1,
        "{} evictions for memory that no candidate fills: {evicted:?}",
        evicted.len()
    );
    let (alive, all) = (small.alive(), small.pods.len());
    ensure!(alive + 1 >= all, "{alive} of {all} small pods are alive");
    Ok(())
}

/// A line of `/proc/meminfo`, bytes; `name` ends with its colon.
pub(super) fn meminfo(name: &str) -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").context("read /proc/meminfo")?;
    let line = text.lines().find(|line| line.starts_with(name));
    let kib = line.and_then(|line| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok());
    kib.map(|kib| kib << 10)
        .with_context(|| format!("{name} of /proc/meminfo"))
}

/// A daemon outside the pods fills the node past its own level.
fn worth_outside(context: &Context) -> Result<()> {
    if !context.emulated() {
        return skip("other work on this machine moves the node's memory; it runs in a machine");
    }
    // 256 MiB from now the node is at its level, which takes the small pods' 80 MiB and more.
    let threshold = meminfo("MemAvailable:")?.saturating_sub(256 * MIB);
    let options = Options {
        memory: meminfo("MemTotal:")?.to_string(),
        eviction_hard: Some(threshold.to_string()),
        ..Options::default()
    };
    let node = Node::start(context, &options)?;
    let mut small = Small::start(&node, SMALL)?;
    // Growth is what is seen against samples that are half a second apart.
    sleep(Duration::from_millis(1500))?;
    let outside = node.sandbox.root.child("daemon");
    outside.create()?;
    let daemon = Workload::start(&outside, &["fill", "--mib", "512", "--rate", "100"])?;
    ensure_paced(&node, &mut small)?;
    let name = format!("/{}/daemon ", node.sandbox.root.path());
    until(node.limit(), "the daemon's name", || {
        was_said(&node, &name).unwrap_or(false)
    })?;
    drop((daemon, small));
    outside.remove()?;
    node.finish()
}

/// A critical pod, which is never evicted, fills the pods' level.
fn worth_exempt(context: &Context) -> Result<()> {
    let node = Node::start(context, &super::eviction::small("enforce"))?;
    let filler = node.pod(PodSpec::best_effort("critical").critical())?;
    let mut small = Small::start(&node, SMALL)?;
    sleep(Duration::from_millis(1500))?;
    let level = node.level()?;
    let room = level.saturating_sub(node.kubepods().memory()?.usage) / MIB;
    let mut fill = filler.start(&["fill", "--mib", &(room + 48).to_string(), "--rate", "100"])?;
    ensure_paced(&node, &mut small)?;
    ensure!(fill.is_alive(), "the critical pod was killed");
    drop((fill, small));
    node.finish()
}

/// A Burstable pod over its request holds `holds` MiB and fills `rate` MiB per second; BestEffort pods rank ahead of it
/// and hold 4 MiB each.
fn fills(context: &Context, holds: &str, rate: &str) -> Result<()> {
    let node = Node::start(context, &super::eviction::small("enforce"))?;
    let filler = node.pod(PodSpec::burstable("filler", "8Mi"))?;
    let mut small = Small::start(&node, SMALL)?;
    let held = filler.start(&["anon", "--mib", holds])?;
    let least = holds.parse::<u64>()? * MIB;
    until(node.limit(), "the filler's memory", || {
        filler
            .cgroup
            .memory()
            .is_ok_and(|memory| memory.usage >= least)
    })?;
    sleep(Duration::from_millis(1500))?;
    let mut fill = filler.start(&["fill", "--mib", "480", "--rate", rate])?;
    let ended = fill.wait(node.limit())?;
    ensure!(!ended.success(), "the filler ended by itself");
    let killed = || -> Result<Vec<Eviction>> {
        let mut evicted = node.agent.evictions()?;
        let killed = |one: &Eviction| one.timeline.killed_nanos;
        ensure!(
            evicted.iter().all(|one| killed(one).is_some()),
            "{evicted:?}"
        );
        // Each is told once its memory is free: of two the smaller one may come later.
        evicted.sort_by_key(killed);
        Ok(evicted)
    };
    let position =
        |evicted: &[Eviction]| evicted.iter().position(|one| one.pod.uid == filler.uid());
    eventually(node.limit(), || {
        let evicted = killed()?;
        let told = position(&evicted).is_some();
        ensure!(told, "the filler's eviction is not told: {evicted:?}");
        Ok(())
    })?;
    sleep(Duration::from_millis(500))?;
    // One may have gone before it was seen to fill; none goes after it.
    let evicted = killed()?;
    let before = position(&evicted);
    ensure!(
        before.is_some_and(|before| before <= 1 && evicted.len() == before + 1),
        "{} evictions: {evicted:?}",
        evicted.len()
    );
    let alive = small.alive();
    ensure!(
        alive + 1 >= SMALL,
        "{alive} of {SMALL} small pods are alive"
    );
    drop((fill, held, small));
    node.finish()
}

fn worth_filler(context: &Context) -> Result<()> {
    fills(context, "1", "400")
}

/// Each small pod would last a moment.
fn worth_slow_filler(context: &Context) -> Result<()> {
    fills(context, "240", "12")
}
