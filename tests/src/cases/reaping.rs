//! From the kill to the memory: on a busy node, with many processes, with page cache, with a sandbox.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use podwarden::api::types::Eviction;

use super::{Case, Context, case, portable, skip};
use crate::harness::{Node, Options, Pod, PodSpec, Workload, eventually, sleep, until};

pub(super) const CASES: &[Case] = &[
    portable("reaping_saturated", reaping_saturated),
    portable("reaping_sandbox", reaping_sandbox),
    case("reaping_fork_bomb", reaping_fork_bomb),
    case("reaping_page_cache", reaping_page_cache),
    case("reaping_shared_memory", reaping_shared_memory),
];

const MIB: u64 = 1 << 20;

/// Longer than between two looks of the agent at an evicted pod.
const LOOKED_FOR: Duration = Duration::from_millis(200);

/// A node of 512 MiB that evicts with 128 MiB left.
fn options() -> Options {
    super::eviction::small("enforce")
}

/// A node with a BestEffort pod to be evicted, and a Guaranteed one that brings it about: what the
/// victim does itself may take for ever on a busy node.
pub(super) struct Scene {
    pub(super) node: Node,
    pub(super) victim: Pod,
    pub(super) guaranteed: Pod,
}

impl Scene {
    pub(super) fn new(context: &Context, options: &Options) -> Result<Self> {
        let node = Node::start(context, options)?;
        let pods = node.pods(vec![
            PodSpec::best_effort("victim"),
            PodSpec::guaranteed("guaranteed", "400Mi"),
        ])?;
        let [victim, guaranteed] = <[Pod; 2]>::try_from(pods).ok().context("two pods")?;
        Ok(Self {
            node,
            victim,
            guaranteed,
        })
    }

    /// Waits until the victim holds so much.
    pub(super) fn victim_holds(&self, mib: u64) -> Result<()> {
        until(self.node.limit(), "the victim's memory", || {
            let memory = self.victim.cgroup.memory();
            memory.is_ok_and(|memory| memory.usage >= mib * MIB)
        })
    }

    /// Fills the node past its level, from the Guaranteed pod.
    pub(super) fn fill(&self) -> Result<Workload> {
        self.fill_to(self.node.level()? + 8 * MIB)
    }

    /// Fills the node up to so much, bytes, from the Guaranteed pod.
    pub(super) fn fill_to(&self, usage: u64) -> Result<Workload> {
        let now = self.node.kubepods().memory()?.usage;
        let mib = (usage.saturating_sub(now) / MIB).to_string();
        self.guaranteed
            .start(&["fill", "--mib", &mib, "--rate", "400"])
    }

    /// The evictions so far, once there are `count`.
    pub(super) fn evictions(&self, count: usize) -> Result<Vec<Eviction>> {
        eventually(2 * self.node.limit(), || {
            let evictions = self.node.agent.evictions()?;
            ensure!(
                evictions.len() >= count,
                "{} evictions are reported",
                evictions.len()
            );
            Ok(evictions)
        })
    }
}

/// How many processes a fork bomb has at a time. An emulated machine would do nothing else for minutes with more.
pub(super) fn bomb_pids(context: &Context) -> i64 {
    if context.emulated() { 16 } else { 64 }
}

/// Six CPU hogs beside the victim, which has a BestEffort pod's shares.
fn reaping_saturated(context: &Context) -> Result<()> {
    let runs = context.repetitions(if context.emulated() { 1 } else { 2 });
    let shapes = [("sixteen", 16, 16), ("single", 1, 256)];
    let shapes = &shapes[..if context.emulated() { 1 } else { 2 }];
    for &(shape, processes, mib) in shapes {
        let (mut killed, mut freed) = (Vec::new(), Vec::new());
        for _ in 0..runs {
            let eviction = saturated_once(context, processes, mib)?;
            let line = &eviction.timeline;
            let since = |step: u64| step.saturating_sub(line.crossing_nanos) as f64 / 1e6;
            killed.push(since(line.killed_nanos.context("no process was killed")?));
            // Unseen within the agent's own patience.
            freed.push(line.freed_nanos.map_or(f64::INFINITY, since));
        }
        for (what, times) in [("killed", killed), ("freed", freed)] {
            context.spread(&format!("{shape}_crossing_to_{what}"), times, "ms");
        }
    }
    Ok(())
}

fn saturated_once(context: &Context, processes: usize, mib: u64) -> Result<Eviction> {
    let scene = Scene::new(context, &options())?;
    let size = mib.to_string();
    let victims = (0..processes)
        .map(|_| scene.victim.start(&["anon", "--mib", &size]))
        .collect::<Result<Vec<_>>>()?;
    scene.victim_holds(mib * processes as u64)?;
    let hogs = scene.guaranteed.start(&["burn", "--threads", "6"])?;
    sleep(Duration::from_millis(300))?;
    let filler = scene.fill()?;
    let eviction = scene.evictions(1)?.remove(0);
    drop((filler, hogs));
    ensure!(
        eviction.pod.uid == scene.victim.uid() && eviction.processes as usize == processes,
        "{eviction:?}"
    );
    for mut victim in victims {
        let status = victim.wait(context.limit(60))?;
        ensure!(!status.success(), "a process of the victim ended by itself");
    }
    scene.node.finish()?;
    Ok(eviction)
}

/// The sandbox stays, for the network to be taken down; what starts anew in the pod is evicted again.
fn reaping_sandbox(context: &Context) -> Result<()> {
    let scene = Scene::new(context, &options())?;
    let sandbox = scene.victim.cgroup.child("sandbox");
    sandbox.create()?;
    let mut pause = Workload::start(&sandbox, &["pause"])?;
    for round in 1..=2 {
        let mut workload = scene.victim.start(&["anon", "--mib", "128"])?;
        eventually(scene.node.limit(), || {
            // What begins while the agent still looks for the last of the dead ends with them.
            if !workload.is_alive() {
                workload = scene.victim.start(&["anon", "--mib", "128"])?;
            }
            let usage = scene.victim.cgroup.memory()?.usage;
            ensure!(usage >= 128 * MIB, "the victim holds {usage} bytes");
            sleep(LOOKED_FOR)?;
            ensure!(workload.is_alive(), "it was one of them");
            Ok(())
        })?;
        let filler = scene.fill()?;
        let evictions = scene.evictions(round)?;
        let last = evictions.last().context("no eviction")?;
        ensure!(
            last.pod.uid == scene.victim.uid() && last.processes == 1,
            "round {round}: {last:?}"
        );
        ensure!(
            last.timeline.freed_nanos.is_some(),
            "round {round}: not freed: {last:?}"
        );
        ensure!(!workload.wait(context.limit(20))?.success());
        ensure!(pause.is_alive(), "round {round}: the sandbox was killed");
        drop(filler);
    }
    pause.kill();
    scene.node.finish()
}

/// A pod does not escape by forking.
fn reaping_fork_bomb(context: &Context) -> Result<()> {
    let runs = context.repetitions(if context.emulated() { 1 } else { 3 });
    for _ in 0..runs {
        let scene = Scene::new(context, &options())?;
        // The agent takes a limit of the pod's own back.
        scene.victim.main.limit_pids(bomb_pids(context))?;
        let holds = scene.victim.start(&["anon", "--mib", "128"])?;
        let bomb = scene.victim.start(&["forkbomb", "--restless"])?;
        scene.victim_holds(128)?;
        until(scene.node.limit(), "the bomb", || {
            scene.victim.main.procs().len() > 8
        })?;
        let mut filler = scene.fill()?;
        let eviction = scene.evictions(1)?.remove(0);
        ensure!(eviction.pod.uid == scene.victim.uid(), "{eviction:?}");
        until(context.limit(20), "the end of all of it", || {
            scene.victim.main.procs().is_empty()
        })?;
        sleep(Duration::from_millis(100))?;
        let left = scene.victim.main.procs();
        ensure!(left.is_empty(), "it goes on forking: {left:?}");
        let count = scene.node.agent.evictions()?.len();
        ensure!(
            filler.is_alive() && count == 1,
            "{count} evictions: the memory of the dead was not waited for"
        );
        drop((holds, bomb, filler));
        scene.node.finish()?;
    }
    Ok(())
}

/// Page cache that a dead pod leaves is given back, and does not cost another pod its life.
fn reaping_page_cache(context: &Context) -> Result<()> {
    let runs = context.repetitions(1);
    for run in 1..=runs {
        page_cache_once(context).with_context(|| format!("run {run}"))?;
    }
    Ok(())
}

fn page_cache_once(context: &Context) -> Result<()> {
    let scene = Scene::new(context, &options())?;
    let bystander = scene.node.pod(PodSpec::best_effort("well-behaved"))?;
    let mut beside = bystander.start(&["anon", "--mib", "16"])?;
    let file = scene.node.sandbox.dir().join("cached");
    let path = file.display().to_string();
    let cache = scene
        .victim
        .start(&["cache", "--mib", "160", "--file", &path])?;
    scene.victim_holds(160)?;
    // Read twice and more it is on the active list, which counts to the working set.
    // A kernel with generations of pages never does, and the reader takes a CPU.
    let seconds = if context.emulated() { 2 } else { 5 };
    let used = until(context.limit(seconds), "cache in use", || {
        let memory = scene.victim.cgroup.memory();
        memory.is_ok_and(|m| m.working_set() >= 128 * MIB)
    });
    if used.is_err() {
        return skip("this kernel leaves a file that is read again and again on the inactive list");
    }
    let filler = scene.fill()?;
    let eviction = scene.evictions(1)?.remove(0);
    ensure!(eviction.pod.uid == scene.victim.uid(), "{eviction:?}");
    ensure!(
        eviction.timeline.freed_nanos.is_some(),
        "its page cache counts as memory that is not free: {eviction:?}"
    );
    until(context.limit(20), "the page cache back", || {
        let memory = scene.victim.cgroup.memory();
        memory.is_ok_and(|memory| memory.usage < 32 * MIB)
    })?;
    ensure!(beside.is_alive(), "another pod was killed for it");
    let count = scene.node.agent.evictions()?.len();
    ensure!(count == 1, "{count} evictions");
    drop((cache, beside, filler));
    scene.node.finish()
}

/// A volume in memory, as the kubelet mounts it; unmounted by its end at the latest.
struct Volume(PathBuf);

impl Volume {
    fn mount(path: PathBuf) -> Result<Self> {
        fs::create_dir(&path).context("make the volume's directory")?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("tmpfs"), &path, Some("tmpfs"), flags, None::<&str>).context("mount a tmpfs")?;
        Ok(Self(path))
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // One that is left would be seen by what checks the host afterwards.
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
        let _ = fs::remove_dir(&self.0);
    }
}

/// Shared memory of a dead pod is charged until its volume is unmounted: that is promised, and no further pod
/// dies for it.
fn reaping_shared_memory(context: &Context) -> Result<()> {
    let runs = context.repetitions(1);
    for run in 1..=runs {
        shared_memory_once(context).with_context(|| format!("run {run}"))?;
    }
    Ok(())
}

fn shared_memory_once(context: &Context) -> Result<()> {
    let scene = Scene::new(context, &options())?;
    let bystander = scene.node.pod(PodSpec::best_effort("well-behaved"))?;
    let mut beside = bystander.start(&["anon", "--mib", "16"])?;
    let volume = Volume::mount(scene.node.sandbox.dir().join("volume"))?;
    let file = volume.0.join("data").display().to_string();
    let fills = scene
        .victim
        .start(&["cache", "--mib", "80", "--file", &file])?;
    scene.victim_holds(80)?;
    let filler = scene.fill()?;
    let eviction = scene.evictions(1)?.remove(0);
    ensure!(eviction.pod.uid == scene.victim.uid(), "{eviction:?}");
    ensure!(
        eviction.victim_shared_bytes >= 80 * MIB,
        "the volume is no shared memory: {eviction:?}"
    );
    ensure!(
        eviction.reason.contains("of it in shared memory"),
        "{}",
        eviction.reason
    );
    sleep(Duration::from_secs(2))?;
    let left = scene.victim.cgroup.memory()?.usage;
    ensure!(left >= 80 * MIB, "the volume holds {left} bytes");
    let count = scene.node.agent.evictions()?.len();
    ensure!(
        beside.is_alive() && count == 1,
        "{count} evictions for memory that a dead pod's volume holds"
    );
    // What the living fill meanwhile counts: past the level without the volume, and below the limit with it.
    let more = scene.fill_to(scene.node.level()? + 92 * MIB);
    let evictions = scene.evictions(2)?;
    ensure!(evictions[1].pod.uid == bystander.uid(), "{evictions:?}");
    drop(volume);
    until(context.limit(20), "the volume's memory back", || {
        let memory = scene.victim.cgroup.memory();
        memory.is_ok_and(|memory| memory.usage < 32 * MIB)
    })?;
    drop((fills, beside, filler, more));
    scene.node.finish()
}
