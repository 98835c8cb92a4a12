//! Each alert of `deploy/monitoring/rules.yaml` fires in a real Prometheus, by a real fault.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::super::clients::free;
use super::super::drift::kept_files;
use super::super::eviction::small;
use super::super::eviction_status;
use super::super::reaping::Scene;
use super::super::recorder::{SmallDisk, logging};
use super::super::stuck::{NO_WAY, Waiting};
use super::super::{Context, skip};
use super::{NONE, Prometheus};
use crate::apiserver::Outage;
use crate::harness::{
    Cgroup, Options, PodSpec, Traced, check_interrupt, eventually, fresh_uid, sleep, until,
};

const RULES: &str = include_str!("../../../../deploy/monitoring/rules.yaml");

/// The alerts of [`alerts_of_what_surrounds`].
const OF_WHAT_SURROUNDS: [&str; 8] = [
    "PodwardenDegraded",
    "PodwardenKernelDrops",
    "PodwardenEvicting",
    "PodwardenUnexplainedCgroups",
    "PodwardenPodSourceDown",
    "PodwardenEvictionStatusWaiting",
    "PodwardenReactorDown",
    "PodwardenDown",
];

/// The alerts of [`alerts_of_what_evicts`].
const OF_WHAT_EVICTS: [&str; 6] = [
    "PodwardenRuntimeDown",
    "PodwardenContestedFiles",
    "PodwardenCgroupWritesFail",
    "PodwardenEventLogDropped",
    "PodwardenSlowKill",
    "PodwardenSlowFree",
];

/// The rules as they are shipped, without the time for which each has to hold.
fn impatient() -> Result<Value> {
    let rules: Value = serde_saphyr::from_str(RULES)?;
    let mut rules = rules["spec"].clone();
    let all = rules["groups"][0]["rules"].as_array_mut();
    for rule in all.context("the rules are no list")? {
        if let Some(rule) = rule.as_object_mut() {
            rule.remove("for");
        }
    }
    Ok(rules)
}

/// A Prometheus with the shipped rules, and the alerts that have fired in it after their faults.
struct Alerts {
    prometheus: Prometheus,
    fired: BTreeSet<&'static str>,
}

impl Alerts {
    fn firing(&self) -> Result<BTreeSet<String>> {
        let data = self.prometheus.get("/api/v1/alerts")?;
        let alerts = data["alerts"].as_array().into_iter().flatten();
        let firing = alerts.filter(|alert| alert["state"] == "firing");
        let names = firing.filter_map(|alert| alert["labels"]["alertname"].as_str());
        Ok(names.map(str::to_owned).collect())
    }

    /// Waits until none of these fires: their faults do not exist yet. Without the time for which it has to hold, a
    /// status that is on its way at a scrape is enough for an alert.
    fn until_silent(&self, alerts: &[&str]) -> Result<()> {
        eventually(Duration::from_secs(20), || {
            let firing = self.firing()?;
            let early = alerts.iter().find(|alert| firing.contains(**alert));
            ensure!(early.is_none(), "{early:?} fires before its fault");
            Ok(())
        })
    }

    /// Waits until an alert fires: its fault exists.
    fn expect(&mut self, alert: &'static str) -> Result<()> {
        eventually(Duration::from_secs(60), || {
            let firing = self.firing()?;
            ensure!(
                firing.contains(alert),
                "{alert} does not fire, but {firing:?}"
            );
            Ok(())
        })?;
        self.fired.insert(alert);
        Ok(())
    }

    fn finish(self, context: &Context, alerts: &[&'static str]) -> Result<()> {
        let wanted: BTreeSet<_> = alerts.iter().copied().collect();
        let silent: Vec<_> = wanted.difference(&self.fired).collect();
        ensure!(silent.is_empty(), "{silent:?} did not fire");
        context.figure("alerts_fired", self.fired.len() as f64, "");
        Ok(())
    }
}

impl Prometheus {
    fn with_rules(target: std::net::SocketAddr) -> Result<Option<Alerts>> {
        let prometheus = Self::start(target, Some(&impatient()?))?;
        Ok(prometheus.map(|prometheus| Alerts {
            prometheus,
            fired: BTreeSet::new(),
        }))
    }
}

/// What the agent depends on fails: the container runtime, the API server, the kernel's maps, at last its own
/// reactor and process.
pub(super) fn alerts_of_what_surrounds(context: &Context) -> Result<()> {
    let address = free()?;
    let options = Options {
        args: vec![format!("--listen={address}")],
        env: vec![("PODWARDEN_ACCOUNTS".to_owned(), "8".to_owned())],
        ..small("enforce")
    };
    let specs: Vec<_> = (0..12)
        .map(|n| PodSpec::best_effort(&format!("pod-{n}")))
        .collect();
    let mut world = eviction_status::world(context, options, &[])?;
    let Some(mut alerts) = Prometheus::with_rules(address)? else {
        return skip(NONE);
    };
    alerts.until_silent(&OF_WHAT_SURROUNDS[1..])?;

    // Each pod's cgroup takes an account.
    for spec in &specs {
        world.add(spec)?;
    }
    world.node.expect_pods(&specs.iter().collect::<Vec<_>>())?;
    alerts.expect("PodwardenKernelDrops")?;
    alerts.expect("PodwardenDegraded")?;
    alerts.until_silent(&OF_WHAT_SURROUNDS[2..])?;
    for spec in &specs[..6] {
        eviction_status::evict(context, &world, spec)?;
    }
    alerts.expect("PodwardenEvicting")?;

    let unexplained = world
        .node
        .kubepods()
        .child(&format!("besteffort/pod{}", fresh_uid()));
    alerts.until_silent(&OF_WHAT_SURROUNDS[3..])?;
    unexplained.create()?;
    alerts.expect("PodwardenUnexplainedCgroups")?;
    unexplained.remove()?;

    alerts.until_silent(&OF_WHAT_SURROUNDS[4..])?;
    world.server.go_away(Outage::Refused)?;
    alerts.expect("PodwardenPodSourceDown")?;
    alerts.until_silent(&OF_WHAT_SURROUNDS[5..])?;
    eviction_status::evict(context, &world, &specs[6])?;
    alerts.expect("PodwardenEvictionStatusWaiting")?;
    world.server.come_back()?;

    alerts.until_silent(&OF_WHAT_SURROUNDS[6..])?;
    let stopped = Traced::thread(world.node.agent.pid(), "reactor")?;
    alerts.expect("PodwardenReactorDown")?;
    drop(stopped);
    alerts.until_silent(&OF_WHAT_SURROUNDS[7..])?;
    world.node.agent.stop(Signal::SIGTERM, world.node.limit())?;
    alerts.expect("PodwardenDown")?;
    alerts.finish(context, &OF_WHAT_SURROUNDS)
}

/// What the agent writes and whom it kills stands against it: a foreign writer, cgroups that are read-only, a full
/// disk, a reactor that gets no CPU, a victim that cannot die.
pub(super) fn alerts_of_what_evicts(context: &Context) -> Result<()> {
    let address = free()?;
    let home = tempfile::tempdir_in("/var/tmp")?;
    let disk = SmallDisk::mount(home.path().join("disk"))?;
    disk.fill()?;
    let mut options = Options {
        args: vec![format!("--listen={address}")],
        ..logging(&home.path().join("disk/events.jsonl"))
    };
    options
        .config
        .push_str("containerRuntimeEndpoint: unix:///run/no-such-runtime.sock\n");
    let scene = Scene::new(context, &options)?;
    let Some(mut alerts) = Prometheus::with_rules(address)? else {
        return skip(NONE);
    };
    alerts.expect("PodwardenRuntimeDown")?;
    alerts.until_silent(&OF_WHAT_EVICTS[1..])?;
    contest(&scene, &mut alerts)?;
    alerts.until_silent(&OF_WHAT_EVICTS[2..])?;
    refuse_writes(&scene, &mut alerts)?;
    alerts.until_silent(&OF_WHAT_EVICTS[3..])?;
    evict_late(context, scene, &mut alerts)?;
    alerts.finish(context, &OF_WHAT_EVICTS)
}

/// Another program insists on its value of a pod's limit.
fn contest(scene: &Scene, alerts: &mut Alerts) -> Result<()> {
    let pod = &scene.guaranteed;
    let files = kept_files(&scene.node, std::slice::from_ref(pod))?;
    let own = |path: &PathBuf| pod.cgroup.dirs().any(|dir| path.starts_with(dir));
    let file = files.into_iter().find(|file| own(&file.path));
    let file = file.context("no file of the pod is kept")?;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| -> Result<()> {
            while !done.load(Ordering::Relaxed) {
                check_interrupt()?;
                file.spoil()?;
                thread::sleep(Duration::from_millis(5));
            }
            Ok(())
        });
        let fired = alerts.expect("PodwardenContestedFiles");
        done.store(true, Ordering::Relaxed);
        let wrote = writer.join();
        fired?;
        wrote.unwrap_or_else(|_| Err(anyhow::anyhow!("the writer panicked")))
    })
}

/// A cgroup mounted read-only over itself, as where a container runtime mounts the host's cgroups so.
struct ReadOnly(Vec<PathBuf>);

impl ReadOnly {
    fn mount(cgroup: &Cgroup) -> Result<Self> {
        let mut mounted = Self(Vec::new());
        for dir in cgroup.dirs() {
            let none = None::<&str>;
            mount(Some(&dir), &dir, none, MsFlags::MS_BIND, none)
                .with_context(|| format!("bind {}", dir.display()))?;
            mounted.0.push(dir.clone());
            let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
            mount(none, &dir, none, flags, none)
                .with_context(|| format!("make {} read-only", dir.display()))?;
        }
        Ok(mounted)
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        for dir in &self.0 {
            if let Err(error) = umount2(dir, MntFlags::MNT_DETACH) {
                eprintln!("left mounted: {}: {error}", dir.display());
            }
        }
    }
}

/// New pods' cgroups cannot be made, until they can.
fn refuse_writes(scene: &Scene, alerts: &mut Alerts) -> Result<()> {
    let specs = [0, 1, 2, 3, 4, 5].map(|n| PodSpec::burstable(&format!("burstable-{n}"), "8Mi"));
    let read_only = ReadOnly::mount(&scene.node.tier("burstable")?)?;
    let mut cgroups = Vec::new();
    for spec in &specs {
        cgroups.push(scene.node.manifest(spec)?);
    }
    alerts.expect("PodwardenCgroupWritesFail")?;
    drop(read_only);
    for cgroup in &cgroups {
        until(scene.node.limit(), "a pod's cgroup", || cgroup.exists())?;
    }
    Ok(())
}

/// The reactor stands still while a level is crossed, and then kills a pod with a process that waits inside the
/// kernel; the disk for the event log is full.
fn evict_late(context: &Context, scene: Scene, alerts: &mut Alerts) -> Result<()> {
    let Some(waiting) = Waiting::start(context, &scene, true)? else {
        return skip(NO_WAY);
    };
    let level = scene.node.level()?;
    let stopped = Traced::thread(scene.node.agent.pid(), "reactor")?;
    // Well past it: without kernel programs the time of the crossing is interpolated.
    let filler = scene.fill_to(level + (64 << 20))?;
    until(scene.node.limit(), "a crossed level", || {
        let memory = scene.node.kubepods().memory();
        memory.is_ok_and(|memory| memory.usage > level)
    })?;
    // Longer than the alert allows, shorter than what counts as stuck.
    sleep(Duration::from_secs(1))?;
    drop(stopped);
    alerts.expect("PodwardenSlowKill")?;
    alerts.expect("PodwardenSlowFree")?;
    alerts.expect("PodwardenEventLogDropped")?;
    drop((waiting, filler));
    scene.node.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_alert_has_a_fault() {
        let rules = impatient().unwrap();
        let rules = rules["groups"][0]["rules"].as_array().unwrap();
        let shipped: BTreeSet<_> = rules.iter().filter_map(|r| r["alert"].as_str()).collect();
        let faults: BTreeSet<_> = OF_WHAT_SURROUNDS
            .into_iter()
            .chain(OF_WHAT_EVICTS)
            .collect();
        assert_eq!(shipped, faults);
    }
}
