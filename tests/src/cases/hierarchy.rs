//! The whole hierarchy under pods that come, change and go: after every step the kernel's files are
//! what policy says of exactly these pods, and nothing else was written.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use podwarden_policy::{Bytes, Container, MilliCpu, Pod, PodUid, QosClass, Resources};

use super::{Case, Context, case, portable, systemd::needs_systemd};
use crate::harness::fresh_uid;

mod refusals;
mod world;

use world::World;

pub(super) const CASES: &[Case] = &[
    portable("hierarchy_churn", |context| churn(context, "cgroupfs")),
    case("hierarchy_churn_systemd", churn_systemd),
    portable(
        "one_changed_pod_writes_only_that",
        one_changed_pod_writes_only_that,
    ),
    portable(
        "refusing_files_do_not_stop_others",
        refusals::refusing_files_do_not_stop_others,
    ),
];

fn churn_systemd(context: &Context) -> Result<()> {
    needs_systemd()?;
    churn(context, "systemd")
}

fn churn(context: &Context, driver: &'static str) -> Result<()> {
    let seed = context.seed();
    churn_with(context, driver, seed).with_context(|| format!("with --seed {seed}"))
}

/// How much a churn does.
#[derive(Debug, Clone, Copy)]
struct Size {
    /// Different pods in one run.
    pods: usize,
    /// Pods at a time, at most.
    peak: usize,
}

impl Size {
    fn of(context: &Context) -> Self {
        let (pods, peak) = if context.emulated() {
            (80, 50)
        } else {
            (200, 120)
        };
        Self { pods, peak }
    }
}

fn churn_with(context: &Context, driver: &'static str, seed: u64) -> Result<()> {
    let mut world = World::start(context, driver, seed)?;
    world.settled().context("before the first pod")?;
    let size = Size::of(context);
    let mut done = Done::default();
    let (mut steps, mut peak) = (0_u32, 0);
    // Emulated, a step costs more and an operation hardly less: fewer and larger ones there.
    let most = if context.emulated() { 80 } else { 16 };
    loop {
        let operations = world.random().usize(most / 4..=most);
        for _ in 0..operations {
            operate(&mut world, &mut done, size)?;
        }
        steps += 1;
        peak = peak.max(world.live().len());
        let at = format!("step {steps}, after {done:?}, {} pods", world.live().len());
        world.settled().with_context(|| at.clone())?;
        world
            .only_changed_were_written()
            .with_context(|| at.clone())?;
        world.second_pass_writes_nothing().context(at)?;
        if done.added == size.pods && world.live().is_empty() {
            break;
        }
    }
    context.figure("steps", f64::from(steps), "");
    context.figure("resizes", done.resized as f64, "");
    context.figure("pods_at_peak", peak as f64, "");
    ensure!(peak > size.pods / 4, "only {peak} pods at a time");
    world.finish()
}

/// How many pods were made, changed and removed.
#[derive(Debug, Default)]
struct Done {
    added: usize,
    resized: usize,
    removed: usize,
}

/// One pod comes, changes or goes; without waiting for what the agent makes of it.
fn operate(world: &mut World, done: &mut Done, size: Size) -> Result<()> {
    let live = world.live().len();
    let dice = world.random().u32(..100);
    // First the node fills up, then it empties.
    let (add, resize) = if done.added == size.pods {
        (0, 40)
    } else if live >= size.peak {
        (0, 50)
    } else if live == 0 {
        (100, 0)
    } else {
        (50, 30)
    };
    if dice < add {
        let class = *world.random().choice(&QosClass::ALL).context("a class")?;
        world.add(class)?;
        done.added += 1;
    } else if let Some(uid) = one_of(world) {
        if dice < add + resize {
            world.resize(&uid)?;
            done.resized += 1;
        } else {
            if done.removed.is_multiple_of(2) {
                world.leave_container(&uid)?;
            }
            world.remove(&uid)?;
            done.removed += 1;
        }
    }
    Ok(())
}

fn one_of(world: &mut World) -> Option<PodUid> {
    let live: Vec<_> = world.live().keys().cloned().collect();
    world.random().choice(&live).cloned()
}

/// What changes, how many files that changes at least, and how: beside the pod's own those of the
/// tiers, whose values are sums.
type Change = (&'static str, usize, fn(&mut Resources));

const CHANGES: [Change; 4] = [
    ("CPU limit", 1, |r| r.cpu_limit = Some(MilliCpu(1500))),
    ("CPU request", 2, |r| r.cpu_request = Some(MilliCpu(900))),
    ("memory limit", 1, |r| {
        r.memory_limit = Some(Bytes::mebi(512));
    }),
    // On v1 the pod's own request stands in no file.
    ("memory request", 1, |r| {
        r.memory_request = Some(Bytes::mebi(256));
    }),
];

fn one_changed_pod_writes_only_that(context: &Context) -> Result<()> {
    const PODS: usize = 100;
    let mut world = World::start(context, "cgroupfs", 1)?;
    for class in QosClass::ALL.into_iter().cycle().take(PODS - 1) {
        world.add(class)?;
    }
    let mut pod = simple_pod("one-changed");
    world.put(pod.clone())?;
    world.settled()?;
    world.only_changed_were_written()?;
    world.second_pass_writes_nothing()?;
    for (what, least, change) in CHANGES {
        let before = (world.files()?, world.node().agent.node()?.cgroup_writes);
        change(&mut pod.containers[0].resources);
        world.put(pod.clone())?;
        world
            .settled()
            .with_context(|| format!("after another {what}"))?;
        let after = world.files()?;
        let differ = after
            .iter()
            .filter(|(file, v)| before.0.get(*file) != Some(v));
        let differ: BTreeSet<_> = differ.map(|(file, _)| file.clone()).collect();
        // A pass that is seen has begun, so all before it have ended.
        world.pass()?;
        let written = world.written()?;
        ensure!(
            written == differ,
            "another {what} changes {differ:?}, and {written:?} were written"
        );
        ensure!(
            least <= differ.len(),
            "another {what} changes only {differ:?}"
        );
        let mut wanted = before.1;
        wanted.updated += differ.len() as u64;
        let counted = world.node().agent.node()?.cgroup_writes;
        ensure!(
            counted == wanted,
            "another {what}: the agent counts {counted:?}, not {wanted:?}"
        );
        context.figure(format!("writes for a {what}"), written.len() as f64, "");
    }
    for uid in world.live().keys().cloned().collect::<Vec<_>>() {
        world.remove(&uid)?;
    }
    world.settled()?;
    world.finish()
}

/// A Burstable pod with one container that has everything.
fn simple_pod(name: &str) -> Pod {
    Pod {
        uid: PodUid::new(fresh_uid()),
        name: name.to_owned(),
        namespace: "e2e".to_owned(),
        containers: vec![Container {
            name: "main".to_owned(),
            resources: Resources {
                cpu_request: Some(MilliCpu(100)),
                cpu_limit: Some(MilliCpu(1000)),
                memory_request: Some(Bytes::mebi(64)),
                memory_limit: Some(Bytes::mebi(300)),
                ..Resources::default()
            },
            ..Container::default()
        }],
        ..Pod::default()
    }
}
