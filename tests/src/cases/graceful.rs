//! Pods that have time to end when a soft threshold evicts them, and do not: a hard level does not wait for it, and the
//! next agent goes on with it.

use anyhow::{Context as _, Result, ensure};
use podwarden::api::types::Eviction;

use super::apiserver::World;
use super::eviction::small;
use super::eviction_status::{expect_delivered, expect_status};
use super::recorder::{logging, restart};
use super::{Case, Context, case};
use crate::harness::{Options, PodSpec, Workload, eventually, until};

pub(super) const CASES: &[Case] = &[
    case("graceful_cut_short", graceful_cut_short),
    case("graceful_goes_on", graceful_goes_on),
];

const MIB: u64 = 1 << 20;
/// What the agent says once it has told the pod to end.
const TOLD: &str = "the pod is evicted and has time to end";

/// A node whose soft threshold is 128 MiB before the hard one, and a pod that holds memory between the two and was told
/// to end.
struct Scene {
    world: World,
    spec: PodSpec,
    victim: Workload,
}

impl Scene {
    fn new(context: &Context, mut options: Options, most: u32) -> Result<Self> {
        options.config += &format!(
            "evictionSoft: {{memory.available: 256Mi}}\n\
             evictionSoftGracePeriod: {{memory.available: 1s}}\n\
             evictionMaxPodGracePeriod: {most}\n"
        );
        let mut world = World::with(context, options, |_| Ok(()))?;
        world.ready(context)?;
        let spec = PodSpec::best_effort("victim");
        let held = world.node.level()? / MIB - 64;
        let victim = start(&world, &spec, &["anon", "--mib", &held.to_string()])?;
        until(world.node.limit(), "a pod that is told to end", || {
            world.node.agent.log.text().contains(TOLD)
        })?;
        Ok(Self {
            world,
            spec,
            victim,
        })
    }

    /// Waits until the victim's memory is free, of its one eviction.
    fn ended(&mut self, context: &Context) -> Result<Eviction> {
        let status = self.victim.wait(context.limit(60));
        ensure!(
            !status.context("it lives on")?.success(),
            "it ended by itself"
        );
        expect_status(&self.world, &self.spec)?;
        eventually(self.world.node.limit(), || {
            let evictions = self.world.node.agent.evictions()?;
            let [eviction] = &evictions[..] else {
                anyhow::bail!("{} evictions are reported", evictions.len());
            };
            ensure!(*eviction.pod.uid == *self.spec.uid, "{eviction:?}");
            Ok(eviction.clone())
        })
    }

    fn says(&self, text: &str) -> bool {
        self.world.node.agent.log.text().contains(text)
    }
}

/// Starts a pod with one process.
fn start(world: &World, spec: &PodSpec, args: &[&str]) -> Result<Workload> {
    let cgroup = world.add(spec)?;
    until(world.node.limit(), "the pod's cgroup", || cgroup.exists())?;
    let main = cgroup.child("main");
    main.create()?;
    Workload::start(&main, args)
}

/// A pod that has time to end is killed at once when a hard level is reached, and evicted once.
fn graceful_cut_short(context: &Context) -> Result<()> {
    let mut scene = Scene::new(context, small("enforce"), 600)?;
    ensure!(scene.victim.is_alive(), "it was killed at once");
    let filler = PodSpec::guaranteed("filler", "256Mi");
    let fill = ["fill", "--mib", "128", "--rate", "200", "--step-kib", "64"];
    let mut filler = start(&scene.world, &filler, &fill)?;
    let eviction = scene.ended(context)?;
    ensure!(scene.says("a hard level was reached"), "{eviction:?}");
    // What it asks for, which is less than is allowed.
    ensure!(eviction.grace_seconds == Some(30), "{eviction:?}");
    ensure!(filler.is_alive(), "the Guaranteed pod was killed");
    expect_delivered(&scene.world, &[&scene.spec])?;
    drop(filler);
    scene.world.node.finish()
}

/// An agent that is killed meanwhile: the next one leaves the pod the rest of its time, and kills it then.
fn graceful_goes_on(context: &Context) -> Result<()> {
    // Longer than an agent takes to start.
    let most = 8;
    let kept = tempfile::tempdir()?;
    let options = logging(&kept.path().join("events.jsonl"));
    let mut scene = Scene::new(context, options, most)?;
    expect_status(&scene.world, &scene.spec)?;
    scene.world.node.kill_agent()?;
    let options = scene.world.options.clone();
    restart(context, &mut scene.world.node, &options)?;
    ensure!(scene.victim.is_alive(), "the next agent killed it at once");
    let status = scene.victim.wait(context.limit(60));
    ensure!(
        !status.context("it lives on")?.success(),
        "it ended by itself"
    );
    until(scene.world.node.limit(), "the end of its time", || {
        scene.says("its time to end is over")
    })?;
    ensure!(!scene.says(TOLD), "it was told again");
    expect_delivered(&scene.world, &[&scene.spec])?;
    scene.world.node.finish()
}
