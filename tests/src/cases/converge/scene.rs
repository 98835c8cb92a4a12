//! A Guaranteed pod arrives while the BestEffort tier uses more than its reserve will leave it, and
//! wants still more: what becomes of the tier's limits and of its processes, seen from outside.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use podwarden::api::types::Eviction;
use serde::Serialize;

use super::seen::{Outcome, Watch, hard_limit, high, limit, measure};
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
/// Files whose page cache is the tier's memory.
const HELD: &str = "held";
const BASE: &str = "base";

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

/// The tier with two pods: one whose memory is let go of in the end, and one that wants more and more.
pub(crate) struct Scene {
    pub(crate) node: Option<Node>,
    sandbox: Option<Sandbox>,
    pub(crate) tier: Cgroup,
    load: Load,
    growth: Growth,
    /// The containers of the one and of the other.
    holder: Cgroup,
    grower: Cgroup,
    memory: Option<Memory>,
    arrives: PodSpec,
}

/// The processes that have the tier's memory.
struct Memory {
    held: Option<Workload>,
    /// Kept to the end.
    _base: Workload,
    grows: Option<Workload>,
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
        let [holder, grower] = <[Cgroup; 2]>::try_from(containers)
            .map_err(|_| anyhow::anyhow!("two pods have two containers"))?;
        let mut scene = Self {
            node,
            sandbox,
            tier,
            load,
            growth,
            holder,
            grower,
            memory: None,
            arrives: PodSpec::guaranteed("arrives", &format!("{ARRIVES_MIB}Mi")),
        };
        scene.fill(context)?;
        Ok(scene)
    }

    /// The file of a cache.
    fn file(&self, name: &str) -> Result<PathBuf> {
        match (&self.node, &self.sandbox) {
            (Some(node), _) => Ok(node.sandbox.dir().join(name)),
            (None, Some(sandbox)) => Ok(sandbox.dir().join(name)),
            (None, None) => anyhow::bail!("neither an agent nor a sandbox"),
        }
    }

    fn fill(&mut self, context: &Context) -> Result<()> {
        let cache = |cgroup: &Cgroup, name: &str| {
            let path = self.file(name)?.display().to_string();
            Workload::start(cgroup, &["cache", "--mib", "160", "--file", &path])
        };
        let anon = |cgroup: &Cgroup| Workload::start(cgroup, &["anon", "--mib", "160"]);
        let (held, base) = match self.load {
            Load::Anonymous => (anon(&self.holder)?, anon(&self.grower)?),
            Load::Cache => (cache(&self.holder, HELD)?, cache(&self.grower, BASE)?),
            Load::Mixed => (anon(&self.holder)?, cache(&self.grower, BASE)?),
        };
        self.memory = Some(Memory {
            held: Some(held),
            _base: base,
            grows: None,
        });
        until(context.limit(60), "the tier's memory", || {
            let memory = self.tier.memory();
            memory.is_ok_and(|memory| memory.usage >= 320 * MIB)
        })
    }

    /// As it was before the pod arrived, for one more time; not after an eviction.
    pub(crate) fn again(&mut self, context: &Context) -> Result<()> {
        self.memory = None;
        for name in [HELD, BASE] {
            // With the file goes its page cache.
            match fs::remove_file(self.file(name)?) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error.into());
                }
                _ => {}
            }
        }
        match &self.node {
            Some(node) => node.withdraw(&self.arrives)?,
            None => {
                let none = if self.tier.mounts().memory_on_v2() {
                    "max"
                } else {
                    "-1"
                };
                fs::write(hard_limit(&self.tier), none).context("take the tier's limit away")?;
            }
        }
        eventually(context.limit(20), || {
            let usage = self.tier.memory()?.usage;
            let max = limit(&hard_limit(&self.tier));
            let high = limit(&high(&self.tier));
            ensure!(
                usage < 32 * MIB && max.min(high) >= NODE_MIB * MIB - MARGIN,
                "the tier has no room: usage {usage}, limit {max}, memory.high {high}"
            );
            Ok(())
        })?;
        self.fill(context)
    }

    /// The tier begins to grow.
    fn grow(&mut self) -> Result<()> {
        let Growth { mib, rate } = self.growth;
        let (mib, rate) = (mib.to_string(), rate.to_string());
        let args = ["fill", "--mib", &mib, "--rate", &rate, "--step-kib", "64"];
        let memory = self.memory.as_mut().context("no workload has memory")?;
        memory.grows = Some(Workload::start(&self.grower, &args)?);
        Ok(())
    }

    /// The Guaranteed pod arrives; when that was.
    fn arrive(&self) -> Result<u64> {
        let at = monotonic();
        match &self.node {
            Some(node) => {
                node.manifest(&self.arrives)?;
            }
            None => naive(&self.tier),
        }
        Ok(at)
    }

    /// The tier's memory falls below its target.
    pub(crate) fn let_go(&mut self) {
        if let Some(memory) = &mut self.memory {
            memory.grows = None;
            memory.held = None;
        }
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
        let killed = self.tier.oom_kills()?;
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
            oom_kills: self.tier.oom_kills()? - killed,
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
            let figures = tier.and_then(|tier| tier.convergence);
            let figures = figures.filter(|figures| figures.target_bytes == Some(TARGET));
            let nanos = figures.and_then(|figures| figures.cap_nano_seconds);
            let nanos = nanos.context("the agent does not tell when it capped the tier")?;
            Ok(Some(nanos as f64 / 1e6))
        })
    }

    /// Ends every process and then the agent, and looks that it left nothing.
    pub(crate) fn end(self) -> Result<()> {
        let Self {
            node,
            sandbox,
            memory,
            ..
        } = self;
        drop(memory);
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
