//! Best-effort pods that are evicted for the CPU, `colocation.cpuEvict...`, and for what they request of memory.
//!
//! | strategy | pods are evicted | until |
//! |---|---|---|
//! | `BECPUEvict` | where what best effort may use is at most the lower percentage of its requests, and it uses that, in the window and now | the requests that are left have the upper percentage |
//! | `CPUAllocatableEvict` | where they request more of what the node has to spare than the threshold | their requests are at the lower percentage |
//! | `MemoryAllocatableEvict` | the same of memory | the same |
//! | `CPUEvict` | where the node's CPUs are in use to the threshold | their usage is below the lower percentage |
//!
//! The laws, the order and the cool-down are the koordlet's ([`podwarden_policy::colocation::evict_cpu`]). Figures are
//! read once a second; without one of them nothing is evicted.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::{Duration, Instant},
};

use podwarden_cgroup::{CgroupPath, KernelCpu, Tree};
use podwarden_policy::{
    Bytes, MilliCpu, PodUid,
    colocation::{
        class::Band,
        evict_cpu::{
            self, AllocatableThreshold, BandRequest, BestEffort, Candidate, Cause, covers_window,
            release_for_allocatable, release_for_satisfaction, release_for_usage,
        },
        memory_evict,
        reclaimed::Amounts,
    },
    convert::quota_to_milli,
    limits::Limit,
};

use crate::{
    colocation::{busy, rate},
    config::CpuEvictConfig,
};

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// After a start and after an eviction none follows for so long (`CPUEvictCoolTimeSeconds` of the koordlet).
const COOL: Duration = Duration::from_secs(20);

#[derive(Debug, Clone)]
pub(super) struct BestEffortPod {
    pub(super) uid: PodUid,
    pub(super) path: CgroupPath,
    pub(super) priority: i32,
    pub(super) band: Band,
    /// What it requests of reclaimed CPU.
    pub(super) request: MilliCpu,
    /// What it requests of reclaimed memory.
    pub(super) memory_request: Bytes,
    /// The evictions that it accepts.
    pub(super) accepts: evict_cpu::AcceptedEvictions,
    /// It carries [`evict_cpu::EVICTION_ENABLED_LABEL`].
    pub(super) enabled: bool,
}

/// What a look goes by.
#[derive(Debug)]
pub(super) struct Inputs<'a> {
    pub(super) tree: &'a Tree,
    pub(super) tier: &'a CgroupPath,
    pub(super) capacity: MilliCpu,
    /// What the node has to spare for batch pods, whatever they hold; `None` where that is not computed.
    pub(super) spare: Option<Amounts>,
    /// Those that were not evicted.
    pub(super) pods: &'a [BestEffortPod],
}

/// Pods are to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shortage {
    pub(super) cause: Cause,
    /// What has to be released, by [`Cause::gain`] and in its unit.
    pub(super) release: u64,
    /// The first to go first.
    pub(super) candidates: Vec<Candidate>,
}

#[derive(Debug)]
pub(super) struct BestEffortCpu {
    config: CpuEvictConfig,
    looked: Option<Instant>,
    /// The last eviction, or the start.
    evicted: Instant,
    tier: Meter,
    /// CPU time of the machine at the last look.
    node: Option<(Instant, Duration)>,
    pods: HashMap<PodUid, Meter>,
    window: VecDeque<(Instant, BestEffort)>,
}

impl BestEffortCpu {
    /// `None` where no strategy is on.
    pub(super) fn new(config: CpuEvictConfig, now: Instant) -> Option<Self> {
        config.is_on().then(|| Self {
            config,
            looked: None,
            evicted: now,
            tier: Meter::default(),
            node: None,
            pods: HashMap::new(),
            window: VecDeque::new(),
        })
    }

    /// How long until the next look.
    pub(super) fn due(&self, now: Instant) -> Duration {
        let since = |at: Instant| now.saturating_duration_since(at);
        self.looked
            .map_or(Duration::ZERO, |at| LOOK.saturating_sub(since(at)))
    }

    /// Pods were evicted.
    pub(super) fn evicted(&mut self, now: Instant) {
        self.evicted = now;
    }

    /// Reads the figures; what is short, unless pods were evicted a short time ago.
    pub(super) fn look(&mut self, inputs: &Inputs<'_>, now: Instant) -> Option<Shortage> {
        self.looked = Some(now);
        let used = self.measure(inputs, now);
        let node = self.node(now);
        let shortage = self
            .satisfaction(inputs, now)
            .or_else(|| self.allocatable(inputs))
            .or_else(|| self.memory_allocatable(inputs))
            .or_else(|| self.usage(inputs, node));
        if now.saturating_duration_since(self.evicted) < COOL {
            return None;
        }
        let (cause, release) = shortage?;
        let mut candidates: Vec<Candidate> = inputs
            .pods
            .iter()
            .filter(|pod| self.may_go(pod, cause))
            .map(|pod| Candidate {
                uid: pod.uid.clone(),
                priority: pod.priority,
                request: pod.request,
                used: used.get(&pod.uid).copied().unwrap_or_default(),
                memory_request: pod.memory_request,
            })
            .filter(|candidate| cause.gain(candidate) > 0)
            .collect();
        cause.sort(&mut candidates);
        Some(Shortage {
            cause,
            release,
            candidates,
        })
    }

    fn may_go(&self, pod: &BestEffortPod, cause: Cause) -> bool {
        let accepts = pod.accepts.allows(cause.strategy());
        let is_counted = match cause {
            Cause::Allocatable { .. } => is_counted(pod, self.config.allocatable),
            Cause::MemoryAllocatable { .. } => is_counted(pod, self.config.memory_allocatable),
            Cause::Satisfaction { .. } | Cause::Usage { .. } => true,
        };
        accepts && is_counted && (pod.enabled || !cause.needs_label())
    }

    /// What each pod has used since the last look; the tier's figures join the window.
    fn measure(&mut self, inputs: &Inputs<'_>, now: Instant) -> HashMap<PodUid, MilliCpu> {
        let present: HashSet<&PodUid> = inputs.pods.iter().map(|pod| &pod.uid).collect();
        self.pods.retain(|uid, _| present.contains(uid));
        let mut used = HashMap::new();
        for pod in inputs.pods {
            let meter = self.pods.entry(pod.uid.clone()).or_default();
            if let Some(cpu) = meter.read(inputs.tree, &pod.path, now) {
                used.insert(pod.uid.clone(), cpu);
            }
        }
        let since = |at: &Instant| now.saturating_duration_since(*at);
        let window = self.config.window;
        self.window.retain(|(at, _)| since(at) < window);
        let tier = self.tier.read(inputs.tree, inputs.tier, now);
        if let (Some(used), Some(limit)) = (tier, limit(inputs)) {
            let request = inputs.pods.iter().map(|pod| pod.request);
            let figures = BestEffort {
                limit,
                used,
                request: request.fold(MilliCpu::ZERO, MilliCpu::saturating_add),
            };
            self.window.push_back((now, figures));
        }
        used
    }

    /// What the machine used since the last look.
    fn node(&mut self, now: Instant) -> Option<MilliCpu> {
        let busy = busy()?;
        let (at, before) = self.node.replace((now, busy))?;
        rate(
            busy.saturating_sub(before),
            now.saturating_duration_since(at),
        )
    }

    fn satisfaction(&self, inputs: &Inputs<'_>, now: Instant) -> Option<(Cause, u64)> {
        let thresholds = self.config.satisfaction.as_ref()?;
        let (_, latest) = self.window.back().filter(|(at, _)| *at == now)?;
        let figures = self.window.len() as u64;
        let covers = covers_window(figures, LOOK.as_secs(), self.config.window.as_secs());
        let average = covers.then(|| average(&self.window));
        let release = release_for_satisfaction(average, *latest, thresholds);
        let cause = Cause::Satisfaction {
            limit: latest.limit,
            request: latest.request,
            lower_percent: thresholds.lower_percent(),
            upper_percent: thresholds.upper_percent(),
        };
        (!release.is_zero() && !inputs.pods.is_empty()).then_some((cause, release.0))
    }

    fn usage(&self, inputs: &Inputs<'_>, node: Option<MilliCpu>) -> Option<(Cause, u64)> {
        let levels = self.config.usage?;
        let used = node?;
        let (threshold, lower) = (levels.threshold, levels.lower);
        let release = release_for_usage(inputs.capacity, used, threshold, lower);
        let cause = Cause::Usage {
            used,
            capacity: inputs.capacity,
            threshold_percent: evict_cpu::small(threshold),
        };
        (!release.is_zero()).then_some((cause, release.0))
    }

    /// What is not known, or nothing, is no reason to evict.
    fn allocatable(&self, inputs: &Inputs<'_>) -> Option<(Cause, u64)> {
        let threshold = self.config.allocatable?;
        let offered = inputs.spare?.cpu;
        if offered.is_zero() {
            return None;
        }
        let requests: Vec<BandRequest> = inputs
            .pods
            .iter()
            .filter(|pod| is_counted(pod, self.config.allocatable))
            .map(|pod| BandRequest {
                band: pod.band,
                priority: pod.priority,
                request: pod.request,
            })
            .collect();
        let offer = [(Band::Batch, offered)].into();
        let release = release_for_allocatable(&offer, &requests, &threshold);
        let sum = requests.iter().map(|pod| pod.request);
        let cause = Cause::Allocatable {
            requested: sum.fold(MilliCpu::ZERO, MilliCpu::saturating_add),
            offered,
            threshold_percent: evict_cpu::small(threshold.percent),
        };
        Some((cause, release.get(&Band::Batch)?.0))
    }

    /// The same of memory.
    fn memory_allocatable(&self, inputs: &Inputs<'_>) -> Option<(Cause, u64)> {
        let threshold = self.config.memory_allocatable?;
        let offered = inputs.spare?.memory;
        let counted = inputs.pods.iter();
        let counted = counted.filter(|pod| is_counted(pod, Some(threshold)));
        let requested = counted.map(|pod| pod.memory_request).sum();
        let [threshold_percent, lower] =
            [threshold.percent, threshold.lower_percent].map(evict_cpu::small);
        let release = memory_evict::overcommitted(
            Some(offered),
            requested,
            threshold_percent.into(),
            lower.into(),
        )?;
        let cause = Cause::MemoryAllocatable {
            requested,
            offered,
            threshold_percent,
        };
        Some((cause, release.0))
    }
}

/// Whether a pod's request is one against what the node has to spare.
fn is_counted(pod: &BestEffortPod, threshold: Option<AllocatableThreshold>) -> bool {
    let is_low = threshold.is_some_and(|threshold| pod.priority <= threshold.priority);
    is_low && pod.band == Band::Batch
}

fn average(window: &VecDeque<(Instant, BestEffort)>) -> BestEffort {
    let count = u64::try_from(window.len()).unwrap_or(u64::MAX).max(1);
    let mean = |of: fn(&BestEffort) -> MilliCpu| {
        let sum = window
            .iter()
            .fold(0_u64, |sum, (_, figures)| sum.saturating_add(of(figures).0));
        MilliCpu(sum / count)
    };
    BestEffort {
        limit: mean(|figures| figures.limit),
        used: mean(|figures| figures.used),
        request: mean(|figures| figures.request),
    }
}

/// What the tier may use: its quota and its CPUs, by any writer; `None` where neither can be read.
fn limit(inputs: &Inputs<'_>) -> Option<MilliCpu> {
    let quota = match inputs.tree.cpu_max(inputs.tier).ok()? {
        max if max.quota_us == Limit::Unlimited => None,
        max => Some(quota_to_milli(max.quota_us.bound(), max.period_us)),
    };
    let cpus = inputs.tree.effective_cpus(inputs.tier).ok();
    let cpus = cpus.map_or(inputs.capacity, |cpus| MilliCpu(cpus.0.len() as u64 * 1000));
    Some(quota.map_or(cpus, |quota| quota.min(cpus)))
}

/// CPU time of one cgroup.
#[derive(Debug, Default)]
struct Meter {
    open: Option<KernelCpu>,
    last: Option<(Instant, u64)>,
}

impl Meter {
    /// What it has used since the last reading; `None` at the first, and where it cannot be read.
    fn read(&mut self, tree: &Tree, path: &CgroupPath, now: Instant) -> Option<MilliCpu> {
        if self.open.is_none() {
            self.open = KernelCpu::open(tree, path).ok();
            self.last = None;
        }
        let Ok(used) = self.open.as_ref()?.usage_nanos() else {
            // Gone, or made anew.
            *self = Self::default();
            return None;
        };
        let (at, before) = self.last.replace((now, used))?;
        let used = Duration::from_nanos(used.saturating_sub(before));
        rate(used, now.saturating_duration_since(at))
    }
}

#[cfg(test)]
mod tests;
