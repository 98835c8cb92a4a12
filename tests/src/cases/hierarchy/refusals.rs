//! Files that refuse what is written to them: the pod is named, all others are handled, and what was
//! refused is done once the obstacle is gone.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use podwarden_cgroup::Controller;
use podwarden_policy::{MilliCpu, Pod, PodUid, QosClass};

use super::simple_pod;
use super::world::World;
use crate::cases::Context;
use crate::harness::{Cgroup, eventually, values};

/// The agent's log has this in the line of a refusal.
const NOT_IN_FORCE: &str = "is not in force";

pub(super) fn refusing_files_do_not_stop_others(context: &Context) -> Result<()> {
    let mut world = World::start(context, "cgroupfs", 1)?;
    for class in QosClass::ALL.into_iter().cycle().take(30) {
        world.add(class)?;
    }
    let pod = simple_pod("refusing");
    world.put(pod.clone())?;
    world.settled()?;
    read_only(&mut world, &pod)?;
    if world
        .cgroup_of(&pod.uid)?
        .mounts()
        .is_on_v2(Controller::Cpu)
    {
        // v2 takes a quota above the parent's.
        context.figure("refusals", 2.0, "");
    } else {
        quota_above_parent(&mut world, &pod)?;
        context.figure("refusals", 3.0, "");
    }
    not_removable(&mut world, &pod.uid)?;
    for uid in world.live().keys().cloned().collect::<Vec<_>>() {
        world.remove(&uid)?;
    }
    world.settled()?;
    world.finish()
}

/// A pod's cgroup cannot be written.
fn read_only(world: &mut World, pod: &Pod) -> Result<()> {
    let cgroup = world.cgroup_of(&pod.uid)?;
    let quota = quota_file(&cgroup)?;
    let dir = quota.parent().context("a file has a directory")?;
    let obstacle = Bound::read_only(dir)?;
    let mut changed = pod.clone();
    changed.containers[0].resources.cpu_limit = Some(MilliCpu(1700));
    world.put(changed)?;
    let why = "Read-only file system";
    // Quota or period, whichever was tried first.
    let words = [NOT_IN_FORCE, &shown(dir), why];
    refused(world, pod, &[cgroup], &words)?;
    drop(obstacle);
    recovered(world).context("written to again")
}

/// v1 refuses a quota above the parent's.
fn quota_above_parent(world: &mut World, pod: &Pod) -> Result<()> {
    let cgroup = world.cgroup_of(&pod.uid)?;
    let burstable = world.tier(QosClass::Burstable);
    let tier = quota_file(&burstable)?;
    // Above all that the other pods have.
    set(&tier, "5000000")?;
    let mut changed = pod.clone();
    changed.containers[0].resources.cpu_limit = Some(MilliCpu(60_000));
    world.put(changed)?;
    let quota = quota_file(&cgroup)?;
    let words = [NOT_IN_FORCE, &shown(&quota), "3000000", "Invalid argument"];
    let refused = refused(world, pod, &[cgroup, burstable], &words);
    set(&tier, "-1")?;
    refused?;
    recovered(world).context("with the parent's quota lifted")
}

/// A cgroup that the kernel does not let go: something is mounted on it.
fn not_removable(world: &mut World, uid: &PodUid) -> Result<()> {
    let cgroup = world.cgroup_of(uid)?;
    let pod = world.live()[uid].clone();
    let quota = quota_file(&cgroup)?;
    let dir = quota.parent().context("a file has a directory")?;
    let obstacle = Bound::read_only(dir)?;
    world.remove(uid)?;
    let words = ["stays behind", &shown(dir), "busy"];
    refused(world, &pod, std::slice::from_ref(&cgroup), &words)?;
    drop(obstacle);
    recovered(world).context("with nothing mounted on it")?;
    ensure!(
        cgroup.dirs().all(|dir| !dir.exists()),
        "{} is still there",
        cgroup.path()
    );
    Ok(())
}

/// Expects that what happens to `pod` is said once, in one line with `words` that names the pod, and
/// counted as often as it happens; and that pods that come and change meanwhile are handled.
/// `but` are the cgroups that are not what they ought to be meanwhile.
fn refused(world: &mut World, pod: &Pod, but: &[Cgroup], words: &[&str]) -> Result<()> {
    let limit = world.node().limit();
    let name = format!("{}/{} (uid {})", pod.namespace, pod.name, pod.uid);
    let agent =
        |world: &World| -> Result<u64> { Ok(world.node().agent.node()?.cgroup_writes.failed) };
    let said = |world: &World| {
        let log = world.node().agent.log.text();
        let lines = log.lines().filter(|line| line.contains(&name));
        let lines = lines.filter(|line| words.iter().all(|word| line.contains(word)));
        lines.count()
    };
    eventually(limit, || {
        ensure!(
            said(world) > 0,
            "no line of the log has {name} and {words:?}"
        );
        Ok(())
    })?;
    let failed = agent(world)?;
    ensure!(failed > 0, "nothing failed by the agent's count");
    let others: Vec<_> = world
        .live()
        .keys()
        .filter(|uid| **uid != pod.uid)
        .cloned()
        .collect();
    for uid in others.iter().step_by(3) {
        world.resize(uid)?;
    }
    world.remove(&others[0])?;
    world.add(QosClass::Burstable)?;
    world.settled_but(but).context("the other pods")?;
    world.pass()?;
    eventually(limit, || {
        let now = agent(world)?;
        ensure!(
            now > failed,
            "{now} failures by the agent's count, as before"
        );
        Ok(())
    })?;
    let count = said(world);
    ensure!(count == 1, "{count} lines of the log say the same");
    Ok(())
}

/// With the obstacle gone the agent is to try again by itself.
fn recovered(world: &World) -> Result<()> {
    world.settled()
}

fn quota_file(cgroup: &Cgroup) -> Result<PathBuf> {
    let on_v2 = cgroup.mounts().is_on_v2(Controller::Cpu);
    let file = if on_v2 { "cpu.max" } else { "cpu.cfs_quota_us" };
    values::path(cgroup, file)
}

fn set(file: &Path, value: &str) -> Result<()> {
    fs::write(file, value).with_context(|| format!("write {value} to {}", file.display()))
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// A directory bound onto itself, which makes it one that cannot be removed; undone when it goes out of
/// scope.
struct Bound(PathBuf);

impl Bound {
    /// And that cannot be written.
    fn read_only(dir: &Path) -> Result<Self> {
        let none = None::<&str>;
        mount(Some(dir), dir, none, MsFlags::MS_BIND, none)
            .with_context(|| format!("bind {}", dir.display()))?;
        let bound = Self(dir.to_owned());
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
        mount(none, dir, none, flags, none)
            .with_context(|| format!("remount {}", dir.display()))?;
        Ok(bound)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Err(error) = umount2(&self.0, MntFlags::MNT_DETACH) {
            eprintln!("left mounted: {}: {error}", self.0.display());
        }
    }
}
