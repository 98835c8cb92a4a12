//! One run: a node with a protected pod and a best-effort pod.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use nix::sys::signal::Signal;
use podwarden_policy::settings::Controller;
use podwarden_policy::{MilliCpu, convert};
use serde::Serialize;
use workload::latency::{EVERY_US, Lateness, Piece, WORKS_A_SECOND};

use super::laws::Laws;
use super::{App, Keeper, Limit, Load, Setting, client, mechanism};
use crate::cases::Context;
use crate::harness::{
    Agent, Cgroup, Node, Options, Pod, PodSpec, Qos, Workload, eventually, monotonic, sleep,
};

/// The protected pod's limit in a period of 100 ms, microseconds, and its request.
const LIMIT_US: u64 = 50_000;
const REQUEST: &str = "500m";
/// The protected pod works this long, seconds, before best-effort work begins.
const LEAD: u32 = 1;
/// The best-effort pod runs this long, seconds, before what the quantiles are of.
const WARM_UP: u32 = 2;

/// What one run gave.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Measured {
    /// The protected pod's, from when best-effort work began, in the order in which it was due.
    #[serde(skip)]
    pub(super) pieces: Vec<Piece>,
    /// When best-effort work began, `CLOCK_MONOTONIC`, nanoseconds.
    #[serde(skip)]
    pub(super) began: u64,
    /// What is due from then on is what the quantiles are of.
    #[serde(skip)]
    pub(super) steady: u64,
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

/// Best-effort work that runs.
struct Beside {
    /// Ends with it.
    _work: Option<Workload>,
    began: u64,
    steady: u64,
    used: Used,
}

pub(super) fn measure(context: &Context, setting: Setting, seconds: u32) -> Result<Measured> {
    let mut node = Node::start(context, &options(setting))?;
    weigh(&node.sandbox.root, setting.root_weight)?;
    let protected = node.pod(match setting.limit {
        Limit::None => PodSpec::new("web", Qos::Burstable, REQUEST, "64Mi"),
        Limit::Half => PodSpec::new("web", Qos::Guaranteed, REQUEST, "64Mi"),
    })?;
    let best_effort = node.pod(match setting.load {
        Load::Batch => PodSpec::batch("batch", all_cpus().0, "1Gi"),
        _ => PodSpec::best_effort("batch"),
    })?;
    let tier = node.tier("besteffort")?;
    if setting.limit == Limit::Half {
        // As the runtime does; the pod's own is the agent's.
        set_quota(&protected.main, Some(LIMIT_US))?;
        eventually(node.limit(), || {
            let quota = quota(&protected.cgroup)?;
            ensure!(quota == LIMIT_US.to_string(), "the pod's quota is {quota}");
            Ok(())
        })?;
    }
    if !matches!(setting.keeper, Keeper::Own | Keeper::Wait) {
        let limit = node.limit();
        node.agent.stop(Signal::SIGTERM, limit)?;
    }
    if setting.keeper == Keeper::Assist {
        let options = Options {
            assist: true,
            ..options(setting)
        };
        node.agent = Agent::spawn(context.agent(), &node.sandbox, &options)?;
        node.agent.wait_ready(node.limit())?;
    }
    if setting.load == Load::Batch {
        batch_weight(&node, &best_effort, setting.keeper)?;
    }
    mechanism::prepare(setting.keeper, &tier)?;
    let laws = match setting.keeper {
        Keeper::Koordlet => Some(Laws::start(&node, &protected, &tier)?),
        _ => None,
    };
    let (pieces, beside) = thread::scope(|scope| {
        let pieces = scope.spawn(|| work(&node, &protected, setting, LEAD + WARM_UP + seconds));
        // Here: a workload ends with the thread that started it.
        let beside = begin_beside(&best_effort, &tier, setting);
        let pieces = pieces.join();
        let pieces = pieces.map_err(|_| anyhow!("what starts the protected pod's work panicked"));
        anyhow::Ok((pieces??, beside?))
    })?;
    let after = Used::now(&tier)?;
    if let Some(laws) = laws {
        laws.end()?;
    }
    let measured = beside.until(&after, pieces);
    drop(beside);
    finish(node, setting, &[protected, best_effort])?;
    Ok(measured)
}

/// Begins it while the protected pod works, and returns once the quantiles are to begin.
fn begin_beside(pod: &Pod, tier: &Cgroup, setting: Setting) -> Result<Beside> {
    sleep(Duration::from_secs(LEAD.into()))?;
    let work = match setting.keeper {
        Keeper::Alone => None,
        _ => Some(start_load(pod, setting.load)?),
    };
    let began = monotonic();
    match setting.keeper {
        Keeper::SchedIdle => mechanism::make_idle(&pod.main)?,
        Keeper::Slices => mechanism::shorten_slices(&pod.main)?,
        _ => {}
    }
    sleep(Duration::from_secs(WARM_UP.into()))?;
    Ok(Beside {
        _work: work,
        began,
        steady: monotonic(),
        used: Used::now(tier)?,
    })
}

/// Gives the cgroup above all pods so many times the weight beside the node's other processes that a kubelet gives
/// `kubepods` on a machine of so many CPUs; a new cgroup has that of one.
fn weigh(root: &Cgroup, times: u64) -> Result<()> {
    let shares = convert::milli_to_shares(MilliCpu(all_cpus().0 * times));
    let path = file(root, Controller::Cpu, WEIGHT)?;
    let wanted = match path.ends_with(WEIGHT.0) {
        true => shares.0,
        false => convert::shares_to_weight(shares).0,
    };
    fs::write(&path, wanted.to_string()).with_context(|| format!("write {}", path.display()))
}

/// Gives the best-effort pod and its container the weight of all CPUs, where it is not podwarden that does, and no quota:
/// the koordlet takes that away as well where the tier is to have one, which v1 refuses below a child's.
fn batch_weight(node: &Node, pod: &Pod, keeper: Keeper) -> Result<()> {
    let shares = convert::milli_to_shares(all_cpus());
    let weight = convert::shares_to_weight(shares);
    for cgroup in [&pod.cgroup, &pod.main] {
        let path = file(cgroup, Controller::Cpu, WEIGHT)?;
        let wanted = match path.ends_with(WEIGHT.0) {
            true => shares.0,
            false => weight.0,
        };
        if !keeper.is_podwarden() {
            fs::write(&path, wanted.to_string())
                .with_context(|| format!("write {}", path.display()))?;
            set_quota(cgroup, None)?;
        }
        eventually(node.limit(), || {
            let found: u64 = fs::read_to_string(&path)?.trim().parse()?;
            ensure!(found >= wanted, "{} holds {found}", path.display());
            Ok(())
        })?;
    }
    Ok(())
}

fn options(setting: Setting) -> Options {
    let mut keys = Vec::new();
    if setting.keeper.is_podwarden() {
        keys.push("cpuBurstStrategy: {policy: auto}");
    }
    if setting.keeper == Keeper::Wait {
        keys.push("cpuWaitStrategy: {enable: true, objective: 1ms}");
    }
    if setting.load == Load::Batch {
        keys.push("reclaimed: {enforce: true}");
    }
    let config = match keys.is_empty() {
        true => String::new(),
        false => format!("colocation: {{{}}}\n", keys.join(", ")),
    };
    Options {
        // One name for each run, as long as the benchmark.
        cpu: cpus().to_string().leak(),
        config,
        ..Options::default()
    }
}

/// Every CPU: what the pod of [`Load::Batch`] asks for.
fn all_cpus() -> MilliCpu {
    MilliCpu(cpus() as u64 * 1000)
}

pub(super) fn cpus() -> usize {
    thread::available_parallelism().map_or(1, Into::into)
}

fn start_load(pod: &Pod, load: Load) -> Result<Workload> {
    pod.start(match load {
        Load::Hogs | Load::Batch => &["burn", "--threads", "6", "--for-ms", "10000000"],
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
        Load::Streams => &[
            "burn",
            "--threads",
            "6",
            "--stream-mib",
            "64",
            "--for-ms",
            "10000000",
        ],
    })
}

/// Lets the protected pod work for so long.
fn work(node: &Node, pod: &Pod, setting: Setting, seconds: u32) -> Result<Vec<Piece>> {
    let out = node.sandbox.dir().join("late.json");
    let path = out.to_str().context("a path that is not UTF-8")?;
    let limit = Duration::from_secs(u64::from(seconds) * 4 + 60);
    let probe = |every_us: u64, work_us: u64| {
        let count = (u64::from(seconds) * 1_000_000 / every_us).max(1);
        let [every, work, count] = [every_us, work_us, count].map(|number| number.to_string());
        let mut probe = pod.start(&[
            "probe",
            "--every-us",
            &every,
            "--work-us",
            &work,
            "--count",
            &count,
            "--out",
            path,
        ])?;
        began(pod, setting)?;
        let status = probe.wait(limit)?;
        ensure!(status.success(), "the probe ended with {status}");
        Ok(Lateness::read(&out, every_us)?.pieces().collect())
    };
    match setting.app {
        App::Probe => probe(EVERY_US, 500),
        App::Bursts => probe(500_000, 90_000),
        App::Server => {
            let _server = pod.start(&["serve", "--port-file", path])?;
            began(pod, setting)?;
            let port = eventually(Duration::from_secs(20), || {
                let text = fs::read_to_string(&out).context("the server has no port yet")?;
                Ok(text.parse()?)
            })?;
            client::measure(port, (seconds * WORKS_A_SECOND) as usize)
        }
    }
}

/// The protected pod's work has begun.
fn began(pod: &Pod, setting: Setting) -> Result<()> {
    match setting.keeper {
        Keeper::Slice | Keeper::Slices => mechanism::shorten_slices(&pod.main),
        Keeper::RealTime => mechanism::make_real_time(&pod.main),
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
}

impl Beside {
    fn until(&self, after: &Used, mut pieces: Vec<Piece>) -> Measured {
        let before = &self.used;
        let all = after.at.duration_since(before.at) * u32::try_from(cpus()).unwrap_or(1);
        let best_effort = after.best_effort.saturating_sub(before.best_effort);
        // More than there is where the host took time: nothing was idle then.
        let idle = all.saturating_sub(after.node.saturating_sub(before.node));
        pieces.retain(|piece| piece.due >= self.began);
        Measured {
            pieces,
            began: self.began,
            steady: self.steady,
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

fn finish(mut node: Node, setting: Setting, pods: &[Pod]) -> Result<()> {
    let limit = node.limit();
    node.empty()?;
    if setting.keeper.is_podwarden() {
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

const WEIGHT: (&str, &str) = ("cpu.shares", "cpu.weight");
const QUOTA: (&str, &str) = ("cpu.cfs_quota_us", "cpu.max");

/// The quota in force, microseconds; `-1` or `max` for none.
fn quota(cgroup: &Cgroup) -> Result<String> {
    let text = fs::read_to_string(file(cgroup, Controller::Cpu, QUOTA)?)?;
    let first = text.split_ascii_whitespace().next();
    Ok(first.unwrap_or_default().to_owned())
}

/// Microseconds; none takes it away.
fn set_quota(cgroup: &Cgroup, quota_us: Option<u64>) -> Result<()> {
    let path = file(cgroup, Controller::Cpu, QUOTA)?;
    let none = match path.ends_with(QUOTA.0) {
        true => "-1",
        false => "max",
    };
    let text = quota_us.map_or_else(|| none.to_owned(), |us| us.to_string());
    fs::write(&path, &text).with_context(|| format!("write {text} to {}", path.display()))
}
