//! How much is evicted, and when: minimum reclaim, soft threshold, the limit in a minute.

use anyhow::{Context as _, Result, ensure};
use podwarden::api::types::EventKind;
use podwarden_policy::signal::ScopeName;

use super::{Case, Context, eviction::small, portable, reaping::Scene, worth::meminfo};
use crate::harness::{Options, Pod, PodSpec, Workload, eventually, until};

pub(super) const CASES: &[Case] = &[
    portable("relief_minimum_reclaim", relief_minimum_reclaim),
    portable("relief_soft", relief_soft),
    portable("relief_limit", relief_limit),
    portable("relief_best_effort", relief_best_effort),
];

const MIB: u64 = 1 << 20;

fn options(config: &str) -> Options {
    Options {
        config: config.to_owned(),
        ..small("enforce")
    }
}

/// A scene with a second BestEffort pod; both hold `mib`.
fn two_victims(
    context: &Context,
    options: &Options,
    mib: u64,
) -> Result<(Scene, Pod, [Workload; 2])> {
    let scene = Scene::new(context, options)?;
    let other = scene.node.pod(PodSpec::best_effort("other"))?;
    let size = mib.to_string();
    let workloads = [&scene.victim, &other].map(|pod| pod.start(&["anon", "--mib", &size]));
    let [first, second] = workloads;
    scene.victim_holds(mib)?;
    until(scene.node.limit(), "the other's memory", || {
        let memory = other.cgroup.memory();
        memory.is_ok_and(|memory| memory.usage >= mib * MIB)
    })?;
    Ok((scene, other, [first?, second?]))
}

/// One pod would be enough for the threshold; for the reclaim it takes both.
fn relief_minimum_reclaim(context: &Context) -> Result<()> {
    let options = options("evictionMinimumReclaim: {memory.available: 100Mi}\n");
    let (scene, other, workloads) = two_victims(context, &options, 64)?;
    let level = scene.node.level()?;
    let mut filler = scene.fill()?;
    let evictions = scene.evictions(2)?;
    let mut evicted: Vec<_> = evictions.iter().map(|e| e.pod.uid.as_str()).collect();
    evicted.sort_unstable();
    let mut both = [scene.victim.uid(), other.uid()];
    both.sort_unstable();
    ensure!(evicted == both, "evicted: {evictions:?}");
    until(context.limit(10), "the minimum reclaim", || {
        let memory = scene.node.kubepods().memory();
        memory.is_ok_and(|memory| memory.working_set() < level - 100 * MIB)
    })?;
    ensure!(filler.is_alive(), "the Guaranteed pod was killed");
    drop((filler, workloads));
    scene.node.finish()
}

/// Between the soft and the hard threshold a pod is evicted once the grace is over, and then the hard
/// level counts again.
fn relief_soft(context: &Context) -> Result<()> {
    let options = options(
        "evictionSoft: {memory.available: 256Mi}\n\
         evictionSoftGracePeriod: {memory.available: 2s}\n",
    );
    let scene = Scene::new(context, &options)?;
    let hard = scene.node.level()?;
    let soft = 256 * MIB;
    let workload = scene.victim.start(&["anon", "--mib", "128"])?;
    scene.victim_holds(128)?;
    let mut filler = scene.fill_to(soft + 32 * MIB)?;
    let eviction = scene.evictions(1)?.remove(0);
    ensure!(
        eviction.pod.uid == scene.victim.uid()
            && eviction.level_bytes == soft
            && eviction.usage_bytes < hard,
        "the level was {hard}: {eviction:?}"
    );
    eventually(context.limit(10), || {
        let level = scene.node.level()?;
        ensure!(level == hard, "the level is still {level}");
        Ok(())
    })?;
    ensure!(filler.is_alive(), "the Guaranteed pod was killed");
    let count = scene.node.agent.evictions()?.len();
    ensure!(count == 1, "{count} evictions");
    drop((filler, workload));
    scene.node.finish()
}

/// Two would have to go; one may.
fn relief_limit(context: &Context) -> Result<()> {
    let options = options("reactor: {maxEvictionsPerMinute: 1}\n");
    let (scene, _other, mut workloads) = two_victims(context, &options, 32)?;
    let filler = scene.fill_to(scene.node.level()? + 48 * MIB)?;
    eventually(context.limit(20), || {
        let events = scene.node.agent.events(0)?;
        let said = events.iter().any(|event| match &event.kind {
            EventKind::Degraded { message } => message.contains("maxEvictionsPerMinute"),
            _ => false,
        });
        said.then_some(()).context("the limit is not mentioned")
    })?;
    // Sent its signal, a process may take a moment on a busy machine.
    eventually(context.limit(20), || {
        let alive = workloads
            .iter_mut()
            .filter_map(|w| w.is_alive().then_some(()));
        let alive = alive.count();
        ensure!(alive == 1, "{alive} are alive");
        Ok(())
    })?;
    ensure!(scene.evictions(1)?.len() == 1);
    drop((filler, workloads));
    scene.node.finish()
}

/// The node's memory comes to `memoryEvictThresholdPercent`: the best-effort pod that fills it goes, and no other. What
/// other work on the machine takes or gives meanwhile moves the moment, not the victim.
fn relief_best_effort(context: &Context) -> Result<()> {
    let used = meminfo("MemTotal:")?.saturating_sub(meminfo("MemAvailable:")?);
    // 70 % of this is 384 MiB above what is used now.
    let capacity = (used + 384 * MIB) * 100 / 70;
    let options = Options {
        memory: capacity.to_string(),
        config: "colocation: {memoryEvictThresholdPercent: 70}\n".to_owned(),
        ..Options::default()
    };
    let scene = Scene::new(context, &options)?;
    let other = scene.node.pod(PodSpec::best_effort("other"))?;
    let mut small = other.start(&["anon", "--mib", "16"])?;
    let mut guaranteed = scene.guaranteed.start(&["anon", "--mib", "64"])?;
    let mut filler = scene
        .victim
        .start(&["fill", "--mib", "3072", "--rate", "100"])?;
    let eviction = scene.evictions(1)?.remove(0);
    ensure!(
        eviction.pod.uid == scene.victim.uid() && eviction.scope == ScopeName::BestEffort,
        "{eviction:?}"
    );
    let ended = filler.wait(scene.node.limit())?;
    ensure!(!ended.success(), "the filler ended by itself");
    ensure!(small.is_alive(), "the small pod was killed");
    ensure!(guaranteed.is_alive(), "the Guaranteed pod was killed");
    let count = scene.node.agent.evictions()?.len();
    ensure!(count == 1, "{count} evictions");
    drop((small, guaranteed));
    scene.node.finish()
}
