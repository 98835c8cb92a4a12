//! What a container sees of its own cgroup when a real runtime has just started it.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::{BATCH_CPU, holds};
use crate::cases::Context;
use crate::cases::apiserver::World;
use crate::containerd::{Containerd, RunningPod, Started, WORKLOAD};
use crate::harness::{Options, PodSpec, eventually, until};

/// How many containers are started, unless it is told.
const STARTS: u32 = 10;
/// Another container of the pod.
const SIDECAR: &str = "sidecar";

/// Looks at its own values first of all, and once more 3 ms later.
fn script(number: u32) -> String {
    format!(
        "cd /sys/fs/cgroup; [ -e cpu.max ] && files='cpu.weight cpu.max memory.max' || \
         files='cpu/cpu.shares cpu/cpu.cfs_quota_us memory/memory.limit_in_bytes'; \
         cat $files > /go/{number}.first; usleep 3000; cat $files > /go/{number}.second; \
         echo > /go/{number}.done; sleep 1000"
    )
}

/// What a container with this much CPU sees, in thousandths, and 64 MiB.
fn wanted(cpu: u64) -> [String; 2] {
    let (shares, quota) = (cpu * 1024 / 1000, cpu * 100);
    // The runtime's map from shares to weights is not podwarden's.
    let weight = 1 + (shares - 2) * 9999 / 262_142;
    [
        format!("{shares}\n{quota}\n67108864\n"),
        format!("{weight}\n{quota} 100000\n67108864\n"),
    ]
}

/// A container that the runtime starts holds its values before its process has run for 5 ms.
pub(super) fn reclaimed_at_start(context: &Context) -> Result<()> {
    let containerd = Containerd::start(context)?;
    let options = Options {
        config: format!(
            "containerRuntimeEndpoint: unix://{}\ncolocation: {{reclaimed: {{enforce: true}}}}\n",
            containerd.socket().display()
        ),
        ..Options::default()
    };
    let mut world = World::with(context, options, |_| Ok(()))?;
    world.ready(context)?;
    let go = world.node.sandbox.dir().join("go");
    fs::create_dir(&go)?;

    let alone = PodSpec::batch("alone", 500, "64Mi");
    let cgroup = world.add(&alone)?;
    until(world.node.limit(), "the pod's cgroup", || cgroup.exists())?;
    let pod = containerd.run_pod(&alone, &cgroup, &go, "sleep 1000")?;
    let starts = context.repetitions(STARTS);
    let mut seen = Seen::default();
    for number in 1..=starts {
        let script = script(number);
        let started = Started {
            name: WORKLOAD,
            attempt: number,
            go: &go,
            script: &script,
        };
        let id = containerd.run_container(&alone, &pod, started)?;
        seen.add(&look(&world, &go, number)?, &wanted(500));
        eventually(world.node.limit(), || holds(&pod.cgroup.child(&id)))?;
        containerd.remove_container(&id)?;
    }
    context.figure("first_look", f64::from(seen.first), "of those started");
    context.figure("second_look", f64::from(seen.second), "of those started");
    context.figure("starts", f64::from(starts), "");
    containerd.remove(&pod)?;
    let two = several(context, &world, &containerd, &go)?;
    containerd.remove(&two)?;
    for name in ["alone", "two"] {
        world
            .server
            .remove_pod(crate::cases::apiserver::NAMESPACE, name)?;
    }
    world.node.expect_pods(&[])?;
    world.node.finish()
}

/// Which container a cgroup is of, the runtime has to tell.
fn several(
    context: &Context,
    world: &World,
    containerd: &Containerd,
    go: &Path,
) -> Result<RunningPod> {
    let spec = PodSpec::batch("two", 500, "64Mi").and(SIDECAR, &PodSpec::batch("", 200, "64Mi"));
    let cgroup = world.add(&spec)?;
    until(world.node.limit(), "the pod's cgroup", || cgroup.exists())?;
    let pod = containerd.run_pod(&spec, &cgroup, go, "sleep 1000")?;
    eventually(world.node.limit(), || {
        holds(&pod.cgroup.child(&pod.container)).context(BATCH_CPU)
    })?;
    let mut seen = Seen::default();
    let starts = context.repetitions(STARTS);
    for attempt in 0..starts {
        let number = 1000 + attempt;
        let script = script(number);
        let started = Started {
            name: SIDECAR,
            attempt,
            go,
            script: &script,
        };
        let id = containerd.run_container(&spec, &pod, started)?;
        seen.add(&look(world, go, number)?, &wanted(200));
        let sidecar = pod.cgroup.child(&id);
        eventually(world.node.limit(), || {
            let files = sidecar
                .dirs()
                .flat_map(|dir| ["cpu.max", "cpu.cfs_quota_us"].map(|name| dir.join(name)));
            let quota = files
                .into_iter()
                .find_map(|file| fs::read_to_string(file).ok());
            let quota = quota.context("it has no quota")?;
            ensure!(quota.trim().starts_with("20000"), "its quota is {quota}");
            Ok(())
        })?;
        containerd.remove_container(&id)?;
    }
    context.figure(
        "sidecar_first_look",
        f64::from(seen.first),
        "of those started",
    );
    context.figure(
        "sidecar_second_look",
        f64::from(seen.second),
        "of those started",
    );
    context.figure("sidecar_starts", f64::from(starts), "");
    Ok(pod)
}

/// How many containers saw their values.
#[derive(Debug, Default)]
struct Seen {
    first: u32,
    second: u32,
}

impl Seen {
    fn add(&mut self, looks: &[String; 2], wanted: &[String]) {
        let [first, second] = looks.each_ref().map(|look| wanted.contains(look));
        self.first += u32::from(first);
        self.second += u32::from(second);
    }
}

/// What a container has written down of its two looks.
fn look(world: &World, go: &Path, number: u32) -> Result<[String; 2]> {
    let file = |look: &str| go.join(format!("{number}.{look}"));
    until(world.node.limit(), "the container's looks", || {
        file("done").exists()
    })?;
    let read = |look: &str| fs::read_to_string(file(look)).with_context(|| look.to_owned());
    let (first, second) = (read("first")?, read("second")?);
    let lines = first.lines().count();
    ensure!(lines == 3, "it saw {first:?}");
    Ok([first, second])
}
