//! Pods that have time to end when a soft threshold evicts them, and do not: a hard level does not wait for it, and the
//! next agent goes on with it.

use anyhow::{Context as _, Result, bail, ensure};
use podwarden::api::types::Eviction;

use super::apiserver::World;
use super::eviction::small;
use super::eviction_status::{expect_delivered, expect_status, start};
use super::recorder::{logging, restart};
use super::{Case, Context, case};
use crate::apiserver::ApiServer;
use crate::harness::{Options, PodSpec, Workload, eventually, until};

pub(super) const CASES: &[Case] = &[
    case("graceful_cut_short", graceful_cut_short),
    case("graceful_goes_on", graceful_goes_on),
    case("graceful_held", graceful_held),
];

const MIB: u64 = 1 << 20;
/// What the agent says once it has told the pod to end.
const TOLD: &str = "the pod is evicted and has time to end";

/// Configuration of a soft threshold, MiB, that evicts after a second and gives pods so many seconds at most.
pub(super) fn soft(mib: u32, most: u32) -> String {
    format!(
        "evictionSoft: {{memory.available: {mib}Mi}}\n\
         evictionSoftGracePeriod: {{memory.available: 1s}}\n\
         evictionMaxPodGracePeriod: {most}\n"
    )
}

/// A node whose soft threshold is 128 MiB before the hard one, and a pod that holds memory between the two and was told
/// to end.
struct Scene {
    world: World,
    spec: PodSpec,
    victim: Workload,
}

impl Scene {
    fn new(context: &Context, options: Options, most: u32) -> Result<Self> {
        Self::with(context, options, most, |_| ())
    }

    /// `before` it is told to end something is done to the server.
    fn with(
        context: &Context,
        mut options: Options,
        most: u32,
        before: impl FnOnce(&mut ApiServer),
    ) -> Result<Self> {
        options.config += &soft(256, most);
        let mut world = World::with(context, options, |_| Ok(()))?;
        world.ready(context)?;
        let spec = PodSpec::best_effort("victim");
        let held = world.node.level()? / MIB - 64;
        world.add(&spec)?;
        let victim = start(&world, &spec, &["anon", "--mib", &held.to_string()])?;
        before(&mut world.server);
        until(world.node.limit(), "a pod that is told to end", || {
            world.node.agent.log.text().contains(TOLD)
        })?;
        Ok(Self {
            world,
            spec,
            victim,
        })
    }

    /// Waits until the victim is killed.
    fn killed(&mut self, context: &Context) -> Result<()> {
        let status = self.victim.wait(context.limit(60));
        let status = status.context("it lives on")?;
        ensure!(!status.success(), "it ended by itself");
        Ok(())
    }

    /// Waits until its one eviction is reported.
    fn evicted(&self) -> Result<Eviction> {
        eventually(self.world.node.limit(), || {
            let evictions = self.world.node.agent.evictions()?;
            let [eviction] = &evictions[..] else {
                bail!("{} evictions are reported", evictions.len());
            };
            ensure!(*eviction.pod.uid == *self.spec.uid, "{eviction:?}");
            Ok(eviction.clone())
        })
    }

    fn says(&self, text: &str) -> bool {
        self.world.node.agent.log.text().contains(text)
    }
}

/// A pod that has time to end is killed at once when a hard level is reached, and evicted once.
fn graceful_cut_short(context: &Context) -> Result<()> {
    let mut scene = Scene::new(context, small("enforce"), 600)?;
    ensure!(scene.victim.is_alive(), "it was killed at once");
    let filler = PodSpec::guaranteed("filler", "256Mi");
    let fill = ["fill", "--mib", "128", "--rate", "200", "--step-kib", "64"];
    scene.world.add(&filler)?;
    let mut filler = start(&scene.world, &filler, &fill)?;
    scene.killed(context)?;
    expect_status(&scene.world, &scene.spec)?;
    let eviction = scene.evicted()?;
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
    scene.killed(context)?;
    until(scene.world.node.limit(), "the end of its time", || {
        scene.says("its time to end is over")
    })?;
    ensure!(!scene.says(TOLD), "it was told again");
    expect_delivered(&scene.world, &[&scene.spec])?;
    scene.world.node.finish()
}

/// While the API server is away, what is started in the pod once its time is over is killed, as its kubelet does not know
/// of the eviction.
fn graceful_held(context: &Context) -> Result<()> {
    let mut scene = Scene::with(context, small("enforce"), 4, ApiServer::stop)?;
    scene.killed(context)?;
    let mut again = start(&scene.world, &scene.spec, &["sleep"])?;
    let status = again.wait(context.limit(10));
    status.context("what was started in the evicted pod lives on")?;
    scene.world.server.resume()?;
    expect_delivered(&scene.world, &[&scene.spec])?;
    scene.world.node.finish()
}
