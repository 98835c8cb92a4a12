//! A Guaranteed pod arrives while the BestEffort tier uses more than its reserve will leave it, and
//! wants still more: what becomes of the tier's limits and of its processes, seen from outside.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use podwarden::api::Eviction;
use serde::Serialize;

use crate::cases::Context;
use crate::harness::{
    Cgroup, Node, Options, PodSpec, Sandbox, Workload, eventually, monotonic, sleep, until,
};

const MIB: u64 = 1 << 20;

/// What the agent is configured with: the BestEffort tier has 640 MiB, and with the pod that arrives
/// 256 MiB.
pub(crate) const CONFIG: &str =
    "qosReserved: {memory: 100%}\nevictionHard: {}\nsampling: {interval: 100ms}\n";
const NODE_MIB: u64 = 640;
const ARRIVES_MIB: u64 = 384;
/// The tier's limit once the pod is there.
pub(crate) const TARGET: u64 = (NODE_MIB - ARRIVES_MIB) * MIB;
/// What is kept between usage and a hard limit.
pub(crate) const MARGIN: u64 = 16 * MIB;
/// Between two readings from outside.
const GRAIN: Duration = Duration::from_micros(500);

/// What the tier's memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Load {
    /// Anonymous: falls when a process ends.
    Anonymous,
    /// Page cache: falls when the kernel drops it.
    Cache,
    /// Half of each.
    Mixed,
}

impl Load {
    pub(crate) const ALL: [Self; 3] = [Self::Anonymous, Self::Cache, Self::Mixed];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Anonymous => "anonymous",
            Self::Cache => "cache",
            Self::Mixed => "mixed",
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Who writes the tier's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Writer {
    /// The agent.
    Podwarden,
    /// The target at once, and where the kernel refuses that, usage, as the kubelet does on v1.
    Naive,
}

impl Writer {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Podwarden => "podwarden",
            Self::Naive => "naive",
        }
    }
}

/// What the tier wants more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Growth {
    /// So much in all, MiB.
    pub(crate) mib: u64,
    /// So fast, MiB a second.
    pub(crate) rate: u64,
}

impl Growth {
    /// More than there is room for, whatever becomes of page cache.
    pub(crate) fn beyond(rate: u64) -> Self {
        Self { mib: 320, rate }
    }
}

/// What came of it. Times in milliseconds, sizes in MiB.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Outcome {
    /// Processes that the kernel's OOM killer took from the tier.
    pub(crate) oom_kills: u64,
    /// Pods that podwarden evicted.
    pub(crate) evictions: usize,
    /// From when the agent knew of the pod, its source having told of it, until it had written the
    /// limit that keeps the tier from growing; by the agent's own clock.
    pub(crate) known_to_capped_ms: Option<f64>,
    /// From the pod's arrival (its manifest is in place) until a file of the tier kept it from growing.
    pub(crate) capped_ms: Option<f64>,
    /// From the pod's arrival until the tier grew by less than a tenth of what it asked for.
    pub(crate) stopped_ms: Option<f64>,
    /// How much it grew after the pod's arrival.
    pub(crate) grown_mib: f64,
    /// From when the tier used a margin less than its target until that was its limit.
    pub(crate) reached_ms: Option<f64>,
}

/// One reading from outside.
#[derive(Debug, Clone, Copy)]
struct Sample {
    at: u64,
    usage: u64,
    max: u64,
    high: u64,
}

/// The tier's files, read again and again.
struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Sample>>,
}

/// A limit's file; `max` and what is no limit on v1 are the largest number.
pub(crate) fn limit(path: &Path) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.trim().parse().unwrap_or(u64::MAX)
}

fn file(tier: &Cgroup, v1: &str, v2: &str) -> PathBuf {
    let mounts = tier.mounts();
    let name = if mounts.memory_on_v2() { v2 } else { v1 };
    mounts.memory().join(tier.path()).join(name)
}

/// The tier's hard limit.
pub(crate) fn hard_limit(tier: &Cgroup) -> PathBuf {
    file(tier, "memory.limit_in_bytes", "memory.max")
}

impl Watch {
    fn start(tier: &Cgroup) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let usage = file(tier, "memory.usage_in_bytes", "memory.current");
        let (max, high) = (hard_limit(tier), file(tier, "none", "memory.high"));
        let thread = thread::spawn(move || {
            let mut samples = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                samples.push(Sample {
                    at: monotonic(),
                    usage: limit(&usage),
                    max: limit(&max),
                    high: limit(&high),
                });
                thread::sleep(GRAIN);
            }
            samples
        });
        Self { stop, thread }
    }

    fn end(self) -> Result<Vec<Sample>> {
        self.stop.store(true, Ordering::Relaxed);
        let samples = self.thread.join();
        samples.map_err(|_| anyhow::anyhow!("the thread that watches has panicked"))
    }
}

/// Processes that the kernel's OOM killer took in a cgroup and below.
pub(crate) fn oom_kills(cgroup: &Cgroup) -> Result<u64> {
    let text = fs::read_to_string(file(cgroup, "memory.oom_control", "memory.events"))?;
    let own = text
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill "))
        .context("no oom_kill")?
        .parse::<u64>()?;
    if cgroup.mounts().memory_on_v2() {
        return Ok(own);
    }
    // v1 counts each cgroup alone.
    cgroup
        .children()
        .iter()
        .try_fold(own, |sum, child| Ok(sum + oom_kills(child)?))
}

/// The tier with two pods: one whose memory is let go of in the end, and one that wants more and more.
pub(crate) struct Scene {
    pub(crate) node: Option<Node>,
    sandbox: Option<Sandbox>,
    pub(crate) tier: Cgroup,
    growth: Growth,
    held: Option<Workload>,
    base: Workload,
    grows: Option<Workload>,
    grower: Cgroup,
}

impl Scene {
    /// Starts the agent where there is one, and fills the tier to 320 MiB.
    pub(crate) fn new(
        context: &Context,
        writer: Writer,
        load: Load,
        growth: Growth,
        config: &str,
    ) -> Result<Self> {
        let specs = || vec![PodSpec::best_effort("held"), PodSpec::best_effort("grows")];
        let (node, sandbox, tier, containers) = match writer {
            Writer::Podwarden => {
                let options = Options {
                    memory: format!("{NODE_MIB}Mi"),
                    config: format!("{CONFIG}{config}"),
                    ..Options::default()
                };
                let node = Node::start(context, &options)?;
                let pods = node.pods(specs())?;
                let tier = node.tier("besteffort")?;
                let containers: Vec<_> = pods.into_iter().map(|pod| pod.main).collect();
                (Some(node), None, tier, containers)
            }
            Writer::Naive => {
                let sandbox = Sandbox::new()?;
                let tier = sandbox.root.child("kubepods").child("besteffort");
                let containers: Vec<_> = specs()
                    .iter()
                    .map(|spec| tier.child(&format!("pod{}", spec.uid)).child("main"))
                    .collect();
                for container in &containers {
                    container.create_below(&sandbox.root)?;
                }
                (None, Some(sandbox), tier, containers)
            }
        };
        let dir = match (&node, &sandbox) {
            (Some(node), _) => node.sandbox.dir(),
            (None, Some(sandbox)) => sandbox.dir(),
            (None, None) => anyhow::bail!("neither an agent nor a sandbox"),
        };
        let [held, grower] = <[Cgroup; 2]>::try_from(containers)
            .map_err(|_| anyhow::anyhow!("two pods have two containers"))?;
        let cache = |cgroup: &Cgroup, name: &str, mib: &str| {
            let path = dir.join(name).display().to_string();
            Workload::start(cgroup, &["cache", "--mib", mib, "--file", &path])
        };
        let anon = |cgroup: &Cgroup, mib: &str| Workload::start(cgroup, &["anon", "--mib", mib]);
        let (first, base) = match load {
            Load::Anonymous => (anon(&held, "160")?, anon(&grower, "160")?),
            Load::Cache => (cache(&held, "held", "160")?, cache(&grower, "base", "160")?),
            Load::Mixed => (anon(&held, "160")?, cache(&grower, "base", "160")?),
        };
        let scene = Self {
            node,
            sandbox,
            tier,
            growth,
            held: Some(first),
            base,
            grows: None,
            grower,
        };
        until(context.limit(60), "the tier's memory", || {
            let memory = scene.tier.memory();
            memory.is_ok_and(|memory| memory.usage >= 320 * MIB)
        })?;
        Ok(scene)
    }

    /// The tier begins to grow.
    fn grow(&mut self) -> Result<()> {
        let Growth { mib, rate } = self.growth;
        let (mib, rate) = (mib.to_string(), rate.to_string());
        let args = ["fill", "--mib", &mib, "--rate", &rate, "--step-kib", "64"];
        self.grows = Some(Workload::start(&self.grower, &args)?);
        Ok(())
    }

    /// The Guaranteed pod arrives; when that was.
    fn arrive(&self) -> Result<u64> {
        let at = monotonic();
        match &self.node {
            Some(node) => {
                let memory = format!("{ARRIVES_MIB}Mi");
                node.manifest(&PodSpec::guaranteed("arrives", &memory))?;
            }
            None => naive(&self.tier),
        }
        Ok(at)
    }

    /// The tier's memory falls below its target.
    pub(crate) fn let_go(&mut self) {
        self.grows = None;
        self.held = None;
    }

    /// What podwarden told of each pod that it evicted.
    pub(crate) fn evictions(&self) -> Result<Vec<Eviction>> {
        let node = self.node.as_ref();
        node.map_or(Ok(Vec::new()), |node| node.agent.evictions())
    }

    /// Plays it through. `meanwhile` is called while the tier is above its target.
    pub(crate) fn play(
        &mut self,
        context: &Context,
        meanwhile: impl FnOnce(&Self) -> Result<()>,
    ) -> Result<Outcome> {
        let watch = Watch::start(&self.tier);
        self.grow()?;
        sleep(Duration::from_millis(if context.emulated() {
            400
        } else {
            200
        }))?;
        let arrived = self.arrive()?;
        sleep(Duration::from_millis(if context.emulated() {
            1500
        } else {
            600
        }))?;
        meanwhile(self)?;
        self.let_go();
        let reached = until(context.limit(5), "the target", || {
            limit(&hard_limit(&self.tier)) == TARGET
        });
        let samples = watch.end()?;
        // The naive writer does not come back; what it leaves is told by the figures.
        if self.node.is_some() {
            reached?;
        }
        ensure!(!samples.is_empty(), "nothing was seen");
        Ok(Outcome {
            oom_kills: oom_kills(&self.tier)?,
            evictions: self.evictions()?.len(),
            known_to_capped_ms: self.known_to_capped(context)?,
            ..measure(&samples, arrived, self.growth.rate)
        })
    }

    /// By the agent's figures, which are published at intervals: those that are there at once may be older.
    fn known_to_capped(&self, context: &Context) -> Result<Option<f64>> {
        let Some(node) = &self.node else {
            return Ok(None);
        };
        eventually(context.limit(5), || {
            let tiers = node.agent.node()?.tiers;
            let tier = tiers.into_iter().find(|tier| tier.name == "besteffort");
            let nanos = tier.and_then(|tier| tier.convergence?.cap_nano_seconds);
            let nanos = nanos.context("the agent does not tell when it capped the tier")?;
            Ok(Some(nanos as f64 / 1e6))
        })
    }

    /// Ends every process and then the agent, and looks that it left nothing.
    pub(crate) fn end(self) -> Result<()> {
        let Self {
            node,
            sandbox,
            held,
            base,
            grows,
            ..
        } = self;
        drop((held, base, grows));
        drop(sandbox);
        node.map_or(Ok(()), Node::finish)
    }
}

/// What a writer does that knows only the target.
fn naive(tier: &Cgroup) {
    let path = hard_limit(tier);
    if fs::write(&path, TARGET.to_string()).is_err()
        && let Ok(memory) = tier.memory()
    {
        // `EBUSY`: "retry with usage" of kubelet `pkg/kubelet/cm/qos_container_manager_linux.go`.
        let _ = fs::write(&path, memory.usage.to_string());
    }
}

/// What is seen from outside.
fn measure(samples: &[Sample], arrived: u64, rate: u64) -> Outcome {
    let ms = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6;
    let after: Vec<_> = samples
        .iter()
        .filter(|s| s.at >= arrived)
        .copied()
        .collect();
    let start = after.first().map_or(0, |sample| sample.usage);
    let capped = after.iter().find(|sample| {
        sample.high <= sample.usage || sample.max <= sample.usage.saturating_add(3 * MARGIN)
    });
    let fits = after.iter().find(|sample| sample.usage + MARGIN <= TARGET);
    let until_fits = fits.map_or(u64::MAX, |sample| sample.at);
    let before: Vec<_> = after.iter().filter(|s| s.at < until_fits).collect();
    // A tenth of what it asks for, over a tenth of a second.
    let window = 100_000_000;
    let little = rate * MIB / 100;
    let stopped = before.iter().enumerate().find(|(index, sample)| {
        let later = before[*index..]
            .iter()
            .find(|later| later.at >= sample.at + window);
        later.is_some_and(|later| later.usage.saturating_sub(sample.usage) < little)
    });
    let peak = before.iter().map(|sample| sample.usage).max();
    let reached = after.iter().find(|sample| sample.max == TARGET);
    Outcome {
        oom_kills: 0,
        evictions: 0,
        known_to_capped_ms: None,
        capped_ms: capped.map(|sample| ms(arrived, sample.at)),
        stopped_ms: stopped.map(|(_, sample)| ms(arrived, sample.at)),
        grown_mib: peak.unwrap_or(start).saturating_sub(start) as f64 / MIB as f64,
        reached_ms: fits
            .zip(reached)
            .map(|(fits, reached)| ms(fits.at, reached.at)),
    }
}
