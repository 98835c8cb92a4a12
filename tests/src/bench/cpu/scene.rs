//! One run: a node with a protected pod and a best-effort pod.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podwarden_policy::settings::Controller;

use super::laws::Laws;
use super::{App, Keeper, Limit, Load, Setting, client, mechanism};
use crate::cases::Context;
use crate::harness::{Cgroup, Node, Options, Pod, PodSpec, Qos, Workload, eventually, sleep};

/// The protected pod's limit in a period of 100 ms, microseconds, and its request.
const LIMIT_US: u64 = 50_000;
const REQUEST: &str = "500m";
/// The best-effort pod runs this long before anything is measured.
const WARM_UP: Duration = Duration::from_secs(2);

/// What one run gave.
#[derive(Debug)]
pub(super) struct Measured {
    /// From when each piece of work was due until it was done, microseconds.
    pub(super) late_us: Vec<u64>,
    /// CPU time of the best-effort pod, seconds.
    pub(super) best_effort: f64,
    /// CPU time that was free for it, seconds.
    pub(super) free: f64,
}

/// CPU time so far.
struct Used {
    at: Instant,
    node: Duration,
    best_effort: Duration,
}

pub(super) fn measure(context: &Context, setting: Setting, seconds: u32) -> Result<Measured> {
    let mut node = Node::start(context, &options(setting))?;
    let protected = node.pod(match setting.limit {
        Limit::None => PodSpec::new("web", Qos::Burstable, REQUEST, "64Mi"),
        Limit::Half => PodSpec::new("web", Qos::Guaranteed, REQUEST, "64Mi"),
    })?;
    let best_effort = node.pod(PodSpec::best_effort("batch"))?;
    let tier = node.tier("besteffort")?;
    if setting.limit == Limit::Half {
        // As the runtime does; the pod's own is the agent's.
        set_quota(&protected.main, LIMIT_US)?;
        eventually(node.limit(), || {
            let quota = quota(&protected.cgroup)?;
            ensure!(quota == LIMIT_US.to_string(), "the pod's quota is {quota}");
            Ok(())
        })?;
    }
    let without_agent = !matches!(setting.keeper, Keeper::Burst | Keeper::Wait);
    if without_agent {
        let limit = node.limit();
        node.agent.stop(Signal::SIGTERM, limit)?;
    }
    mechanism::prepare(setting.keeper, &tier)?;
    let loads = match setting.keeper {
        Keeper::Alone => Vec::new(),
        _ => vec![start_load(&best_effort, setting.load)?],
    };
    if setting.keeper == Keeper::SchedIdle {
        mechanism::make_idle(&best_effort.main)?;
    }
    let laws = match setting.keeper {
        Keeper::Koordlet => Some(Laws::start(&node, &protected, &tier)?),
        _ => None,
    };
    sleep(WARM_UP)?;
    let before = Used::now(&tier)?;
    let late_us = work(&node, &protected, setting, seconds)?;
    let after = Used::now(&tier)?;
    if let Some(laws) = laws {
        laws.end()?;
    }
    drop(loads);
    finish(node, without_agent, &[protected, best_effort])?;
    Ok(Used::between(&before, &after, late_us))
}

fn options(setting: Setting) -> Options {
    let config = match setting.keeper {
        Keeper::Burst => "colocation:\n  cpuBurstStrategy: {policy: auto}\n",
        Keeper::Wait => {
            "colocation:\n  cpuBurstStrategy: {policy: auto}\n  \
             cpuWaitStrategy: {enable: true, objective: 1ms}\n"
        }
        _ => "",
    };
    Options {
        // One name for each run, as long as the benchmark.
        cpu: cpus().to_string().leak(),
        config: config.to_owned(),
        ..Options::default()
    }
}

pub(super) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

fn start_load(pod: &Pod, load: Load) -> Result<Workload> {
    pod.start(match load {
        Load::Hogs => &["burn", "--threads", "6", "--for-ms", "10000000"],
        Load::Threads => &["burn", "--threads", "64", "--for-ms", "10000000"],
        Load::Forks => &[
            "storm",
            "--count",
            "1000000000",
            "--busy-us",
            "2000",
            "--parallel",
            "32",
        ],
    })
}

/// Lets the protected pod work for so long.
fn work(node: &Node, pod: &Pod, setting: Setting, seconds: u32) -> Result<Vec<u64>> {
    let out = node.sandbox.dir().join("late.json");
    let path = out.to_str().context("a path that is not UTF-8")?;
    let limit = Duration::from_secs(u64::from(seconds) * 4 + 60);
    let probe = |every_us: u32, work_us: u32| {
        let count = (seconds * 1_000_000 / every_us).max(1);
        let numbers = [every_us, work_us, count].map(|number| number.to_string());
        let [every_us, work_us, count] = &numbers;
        let mut probe = pod.start(&[
            "probe",
            "--every-us",
            every_us,
            "--work-us",
            work_us,
            "--count",
            count,
            "--out",
            path,
        ])?;
        began(pod, setting)?;
        let status = probe.wait(limit)?;
        ensure!(status.success(), "the probe ended with {status}");
        Ok(serde_json::from_str(&fs::read_to_string(&out)?)?)
    };
    match setting.app {
        App::Probe => probe(2_000, 500),
        App::Bursts => probe(500_000, 90_000),
        App::Server => {
            let _server = pod.start(&["serve", "--port-file", path])?;
            began(pod, setting)?;
            let port = eventually(Duration::from_secs(20), || {
                let text = fs::read_to_string(&out).context("the server has no port yet")?;
                Ok(text.parse()?)
            })?;
            client::measure(port, seconds as usize * 500)
        }
    }
}

/// The protected pod's work has begun.
fn began(pod: &Pod, setting: Setting) -> Result<()> {
    match setting.keeper {
        Keeper::Slice => mechanism::shorten_slices(&pod.main),
        _ => Ok(()),
    }
}

impl Used {
    fn now(tier: &Cgroup) -> Result<Self> {
        Ok(Self {
            at: Instant::now(),
            node: busy()?,
            best_effort: Duration::from_nanos(tier.cpu_ns()?),
        })
    }

    fn between(before: &Self, after: &Self, late_us: Vec<u64>) -> Measured {
        let all = after.at.duration_since(before.at) * u32::try_from(cpus()).unwrap_or(1);
        let best_effort = after.best_effort.saturating_sub(before.best_effort);
        // More than there is where the host took time: nothing was idle then.
        let idle = all.saturating_sub(after.node.saturating_sub(before.node));
        Measured {
            late_us,
            best_effort: best_effort.as_secs_f64(),
            free: (idle + best_effort).as_secs_f64(),
        }
    }
}

/// How long the machine's CPUs were busy in all (`proc_stat(5)`).
pub(super) fn busy() -> Result<Duration> {
    let text = fs::read_to_string("/proc/stat").context("read /proc/stat")?;
    let line = text.lines().next().context("/proc/stat is empty")?;
    let fields: Vec<u64> = line
        .split_ascii_whitespace()
        .skip(1)
        .map_while(|field| field.parse().ok())
        .collect();
    // All but idle and iowait; guests are in user already. In hundredths of a second.
    let busy = fields.iter().take(8).enumerate();
    let busy = busy.filter(|(at, _)| !matches!(at, 3 | 4));
    Ok(Duration::from_millis(
        busy.map(|(_, ticks)| ticks * 10).sum(),
    ))
}

fn finish(mut node: Node, without_agent: bool, pods: &[Pod]) -> Result<()> {
    let limit = node.limit();
    node.empty()?;
    if !without_agent {
        node.agent.stop(Signal::SIGTERM, limit)?;
    }
    pods.iter()
        .filter(|pod| pod.cgroup.exists())
        .try_for_each(|pod| eventually(limit, || pod.cgroup.remove()))
}

/// A file of a controller by its name on v1 and on v2.
pub(super) fn file(
    cgroup: &Cgroup,
    controller: Controller,
    (v1, v2): (&str, &str),
) -> Result<std::path::PathBuf> {
    let mounts = cgroup.mounts();
    let mount = mounts.of(controller).context("no such controller")?;
    let name = match mounts.is_on_v2(controller) {
        true => v2,
        false => v1,
    };
    Ok(mount.join(cgroup.path()).join(name))
}

const QUOTA: (&str, &str) = ("cpu.cfs_quota_us", "cpu.max");

/// The quota in force, microseconds; `-1` or `max` for none.
fn quota(cgroup: &Cgroup) -> Result<String> {
    let text = fs::read_to_string(file(cgroup, Controller::Cpu, QUOTA)?)?;
    let first = text.split_ascii_whitespace().next();
    Ok(first.unwrap_or_default().to_owned())
}

fn set_quota(cgroup: &Cgroup, quota_us: u64) -> Result<()> {
    let path = file(cgroup, Controller::Cpu, QUOTA)?;
    fs::write(&path, quota_us.to_string())
        .with_context(|| format!("write {quota_us} to {}", path.display()))
}
