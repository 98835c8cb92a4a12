//! How long a protected pod stands still until what relieves it is written, alone and beside 64 threads.

use std::fs;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use podwarden::api::types::EventKind;
use podwarden_policy::settings::Controller;
use workload::latency::read_gaps;

use super::scene::Scene;
use super::{BASE_US, bandwidth, limited, options, quota, spec};
use crate::cases::Context;
use crate::harness::{
    Cgroup, Node, Options, PodSpec, Qos, eventually, make_fifo, monotonic, sleep,
};

/// How long a pod works at its limit: a step of its quota takes some milliseconds.
const WORKS_MS: u64 = 1500;

/// A quota above the one before.
#[derive(Debug, Clone, Copy)]
struct Raise {
    /// When it was written, `CLOCK_MONOTONIC`, nanoseconds.
    at: u64,
}

/// Each pod's quota rises in steps to three times its limit. Before a step the pod stands still, as it sees itself; the
/// step is seen by inotify.
pub(super) fn throttled_until_relieved(context: &Context) -> Result<()> {
    let pods = context.repetitions(16);
    for (name, threads) in [("idle", None), ("64_threads", Some("64"))] {
        let node = Node::start(
            context,
            &options("policy: auto, sharePoolThresholdPercent: 100"),
        )?;
        let batch = node.pod(PodSpec::best_effort("batch"))?;
        let load = threads.map(|threads| batch.start(&["burn", "--threads", threads]));
        let load = load.transpose()?;
        let mut delays = Vec::new();
        for number in 0..pods {
            let found = relieved(&node, &format!("web-{number}"));
            delays.extend(found.with_context(|| format!("pod {number}, {name}"))?);
        }
        let enough = delays.len() >= usize::try_from(pods)?;
        ensure!(enough, "{} steps of {pods} pods", delays.len());
        show(context, &format!("throttled_{name}"), delays);
        drop(load);
        node.finish()?;
    }
    Ok(())
}

/// For how long one pod stood still before each step of its quota, nanoseconds.
fn relieved(node: &Node, name: &str) -> Result<Vec<u64>> {
    let pod = limited(node, spec(name))?;
    // Its burst says that the agent follows it.
    eventually(node.limit(), || {
        let (_, burst) = bandwidth(&pod.main)?;
        ensure!(burst > 0, "it is not followed yet");
        Ok(())
    })?;
    let out = node.sandbox.dir().join(format!("{name}.json"));
    let path = out.to_str().context("a path that is not UTF-8")?;
    let raises = watch(&pod.main, || {
        let works = WORKS_MS.to_string();
        let mut work = pod.start(&["gaps", "--for-ms", &works, "--out", path])?;
        let status = work.wait(node.limit())?;
        ensure!(status.success(), "the workload ended with {status}");
        Ok(())
    })?;
    let gaps = read_gaps(&out)?;
    node.withdraw(&pod.spec)?;
    for container in pod.cgroup.children() {
        eventually(node.limit(), || container.remove())?;
    }
    ensure!(!raises.is_empty(), "its quota was not raised");
    let mut before = 0;
    Ok(raises
        .iter()
        .map(|raise| longest(&gaps, std::mem::replace(&mut before, raise.at)..raise.at))
        .collect())
}

/// The longest time in `between` in which it did not run.
fn longest(gaps: &[(u64, u64)], between: std::ops::Range<u64>) -> u64 {
    let within = gaps.iter().map(|(from, to)| {
        let (from, to) = ((*from).max(between.start), (*to).min(between.end));
        to.saturating_sub(from)
    });
    within.max().unwrap_or_default()
}

/// The raises of a container's quota while `work` runs.
fn watch(cgroup: &Cgroup, work: impl FnOnce() -> Result<()>) -> Result<Vec<Raise>> {
    let file = quota_file(cgroup)?;
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
    inotify.add_watch(&file, AddWatchFlags::IN_MODIFY)?;
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            make_fifo(60).context("SCHED_FIFO for the watcher")?;
            let (mut raises, mut last) = (Vec::new(), BASE_US);
            while !ends.load(Ordering::Relaxed) {
                let mut ready = [PollFd::new(inotify.as_fd(), PollFlags::POLLIN)];
                poll(&mut ready, PollTimeout::from(20u8))?;
                let at = monotonic();
                if inotify.read_events().is_err() {
                    continue;
                }
                let now = quota(cgroup)?.context("its quota is gone")?;
                if now > last {
                    raises.push(Raise { at });
                }
                last = now;
            }
            anyhow::Ok(raises)
        });
        let worked = work();
        ends.store(true, Ordering::Relaxed);
        let raises = watcher.join();
        worked?;
        raises.map_err(|_| anyhow!("the watcher has panicked"))?
    })
}

fn quota_file(cgroup: &Cgroup) -> Result<PathBuf> {
    let mounts = cgroup.mounts();
    let name = match mounts.is_on_v2(Controller::Cpu) {
        true => "cpu.max",
        false => "cpu.cfs_quota_us",
    };
    let mount = mounts.of(Controller::Cpu).context("no cpu controller")?;
    let path = mount.join(cgroup.path()).join(name);
    ensure!(fs::exists(&path)?, "{} is not there", path.display());
    Ok(path)
}

/// From the end of a wait, as the kernel stamps it, until less of the CPU for best effort is written; as the agent's events
/// tell it.
pub(super) fn waiting_until_relieved(context: &Context) -> Result<()> {
    let strategy = "cpuWaitStrategy: {enable: true, objective: 1s}";
    let options = Options {
        config: format!("colocation:\n  {strategy}\n"),
        ..Options::default()
    };
    let seconds = u64::from(context.repetitions(20));
    for (name, threads) in [("2_threads", "2"), ("64_threads", "64")] {
        let web = PodSpec::new("web", Qos::Burstable, "500m", "64Mi");
        let web = web.annotated("podwarden.io/cpu-wait-objective", "100us");
        let mut scene = Scene::start(context, &options, web)?;
        scene.work = vec![
            scene.batch.start(&["burn", "--threads", threads])?,
            scene
                .web
                .start(&["burn", "--threads", "2", "--duty", "20"])?,
        ];
        scene.held()?;
        sleep(Duration::from_secs(seconds))?;
        let events = scene.node.agent.events(0)?;
        let delays: Vec<u64> = events
            .iter()
            .filter_map(|event| match event.kind {
                EventKind::BestEffortHeld { delay_nanos, .. } => Some(delay_nanos),
                _ => None,
            })
            .collect();
        ensure!(!delays.is_empty(), "no event of a wait");
        show(context, &format!("waiting_{name}"), delays);
        scene.finish()?;
    }
    Ok(())
}

fn show(context: &Context, name: &str, mut delays: Vec<u64>) {
    delays.sort_unstable();
    let at = |hundredths: usize| {
        let rank = (delays.len() * hundredths).div_ceil(100).max(1) - 1;
        delays.get(rank).copied().unwrap_or_default() as f64 / 1e6
    };
    context.figure(format!("{name}_steps"), delays.len() as f64, "");
    for (what, hundredths) in [("p50", 50), ("p99", 99), ("most", 100)] {
        context.figure(format!("{name}_{what}"), at(hundredths), "ms");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standstill_counts_until_the_write_and_from_the_write_before() {
        let gaps = [(10, 20), (30, 90), (100, 105)];
        assert_eq!(longest(&gaps, 0..25), 10);
        assert_eq!(longest(&gaps, 25..60), 30);
        assert_eq!(longest(&gaps, 60..95), 30);
        assert_eq!(longest(&gaps, 91..99), 0);
    }
}
