//! Part: the accounts, the sampling passes, and the degradations of this agent and node.

mod near_limit;
mod notices;
mod refused_forks;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use arcstr::ArcStr;
use podwarden_abi::NearLimitEvent;
use podwarden_cgroup::{CgroupPath, Tree};
use podwarden_policy::{
    PodUid,
    colocation::{reclaimed::Inputs, strategies::Strategies},
    reserve,
};

use self::{near_limit::NearLimits, notices::Notices, refused_forks::RefusedForks};
use super::{Environment, Fact};
use crate::{
    accounting::{
        Accounting, KernelSide,
        figures::{Asked, Extent, Named, Names, Sampler, TierInfo},
        index::{CgroupIndex, PodEntry},
        network::PodNetworks,
        node_usage::NodeUsage,
        walked::{self, PassStats},
    },
    api::{
        published::Figures,
        types::{
            BestEffortCpuStats, ForeignWriteStats, NodeStats, NodeUsageStats, PodStats,
            ReclaimedStats, RuntimeStats, SamplingStats, TierConvergence, TierStats,
        },
    },
    base::{clock, cpus},
    colocation::{proactive::Given, reclaimed::Reclaimer},
    pods::{Identities, PodSet},
    reactor::plan::ScopeName,
};

/// Time between two passes over all pods without a reader.
const IDLE_SAMPLING: Duration = Duration::from_secs(10);

/// Time between two looks for pods that ran, without a reader.
const IDLE_LOOK: Duration = Duration::from_secs(1);

/// Said until the agent ends: who has no account keeps none.
const ACCOUNTS_FULL: &str = "the kernel programs have no account left: CPU time, waits and exits of some cgroups count \
     to the one above them; every pod is seen and may be evicted all the same; raise maxPods and restart the agent";

pub(in crate::agent) struct FiguresPublisher {
    accounting: Accounting,
    sampler: Sampler,
    networks: PodNetworks,
    node_usage: NodeUsage,
    /// The last pass over all pods.
    sampled: Option<Instant>,
    /// The last pass, and the last look that found nothing to read.
    looked: Option<Instant>,
    /// The last pass over all pods was without a reader: a pass may read less than all.
    is_idle: bool,
    notices: Notices,
    near_limits: NearLimits,
    refused_forks: RefusedForks,
    /// The node's figures that do not change, and the capabilities that are missing.
    stats: NodeStats,
    /// `None` where it is switched off.
    reclaimer: Option<Reclaimer>,
}

/// What the other parts add to a sampling pass.
pub(super) struct OfOthers<'a> {
    pub(super) identities: &'a Identities,
    pub(super) set: Arc<PodSet>,
    /// uids of pods that were evicted.
    pub(super) evicted: &'a BTreeSet<PodUid>,
    pub(super) tiers: [TierInfo; 3],
    pub(super) convergence: Vec<(ScopeName, TierConvergence)>,
    pub(super) drift: ForeignWriteStats,
    pub(super) runtime: Option<RuntimeStats>,
    /// Pods' cgroups that no source explains.
    pub(super) unexplained: usize,
    /// What pods gave back of their page cache.
    pub(super) given: Option<&'a Given>,
    pub(super) best_effort_cpu: Option<BestEffortCpuStats>,
    pub(super) cpu_strategies: Option<Strategies>,
}

impl FiguresPublisher {
    pub(in crate::agent) fn new(
        tree: &Tree,
        accounting: Accounting,
        stats: NodeStats,
        reclaimer: Option<Reclaimer>,
    ) -> Self {
        Self {
            sampler: Sampler::new(accounting.kernel.as_ref()),
            networks: PodNetworks::default(),
            node_usage: NodeUsage::open(tree.hierarchies()),
            accounting,
            sampled: None,
            looked: None,
            is_idle: false,
            notices: Notices::default(),
            near_limits: NearLimits::default(),
            refused_forks: RefusedForks::default(),
            stats,
            reclaimer,
        }
    }

    /// Completes when the kernel has reported. Cancel-safe.
    pub(super) async fn ready(&self) {
        self.accounting.ready().await;
    }

    /// Detaches the kernel programs; what they counted stays where it is pinned.
    pub(super) fn detach(&mut self) {
        self.accounting.kernel = None;
    }

    /// So many cgroups are to be made at once: the kernel programs have accounts for them.
    pub(super) fn expect(&mut self, cgroups: usize) {
        self.accounting.expect(cgroups);
    }

    /// Takes every record of the kernel.
    pub(super) fn step(&mut self, env: &Environment) -> Vec<Fact> {
        let occurrences = self.accounting.drain(&env.tree);
        let full = self.accounting.is_full().then(|| ACCOUNTS_FULL.to_owned());
        env.published.set_standing("accounts", full);
        occurrences.into_iter().map(Fact::Occurred).collect()
    }

    /// How long until figures are to be read again.
    pub(super) fn sampling_due(&self, env: &Environment) -> Duration {
        let (Some(sampled), Some(looked)) = (self.sampled, self.looked) else {
            return Duration::ZERO;
        };
        let interval = env.published.sampling_interval();
        if env.published.has_reader() {
            interval.saturating_sub(sampled.elapsed())
        } else if self.accounting.kernel.is_some() {
            IDLE_LOOK.max(interval).saturating_sub(looked.elapsed())
        } else {
            IDLE_SAMPLING.saturating_sub(sampled.elapsed())
        }
    }

    /// What the pass reads that is due now; `None` where nothing has changed.
    fn extent(&mut self, env: &Environment) -> Option<Extent> {
        if env.published.has_reader() {
            return Some(Extent::Read);
        }
        if self.accounting.kernel.is_none() {
            return Some(Extent::Idle);
        }
        let (index, gathered) = (&self.accounting.index, self.accounting.gathered());
        // Also where the answer is known: the next look compares with this one.
        let looked = self.sampler.look(index, &gathered);
        let is_whole_due = self
            .sampled
            .is_none_or(|sampled| sampled.elapsed() >= IDLE_SAMPLING);
        if is_whole_due || !self.is_idle {
            Some(Extent::Idle)
        } else {
            looked
        }
    }

    /// A capability is missing; reported once.
    pub(super) fn degraded(&mut self, message: String, env: &Environment) {
        let degradations = &mut self.stats.degradations;
        if degradations.contains(&message) {
            return;
        }
        tracing::warn!("{message}");
        degradations.push(message.clone());
        env.published.degraded(message);
    }

    /// Replaces the notices.
    pub(super) fn notice(&mut self, now: BTreeSet<String>, env: &Environment) {
        self.notices.update(now, &env.published);
    }

    /// The pods' cgroups, by uid.
    pub(super) fn pods(&self) -> &BTreeMap<PodUid, PodEntry> {
        self.accounting.index.pods()
    }

    /// The pods' cgroups and their accounts.
    pub(super) fn index(&self) -> &CgroupIndex {
        &self.accounting.index
    }

    /// A cgroup is gone: closes its files.
    pub(super) fn close(&mut self, path: &CgroupPath) {
        self.sampler.close(path);
    }

    /// The pod, or container by its id, that a kernel program has seen near its limit, and the percent of it, unless
    /// that has been reported. Tiers and what is nested in containers are neither.
    pub(super) fn near_limit(
        &mut self,
        env: &Environment,
        event: &NearLimitEvent,
    ) -> Option<(PodUid, Option<String>, u32)> {
        let (below, id) = (event.header.cgroup, event.memory_cgroup);
        let (uid, container) = self.accounting.index.by_memory_id(&env.tree, below, id)?;
        let pages = [event.usage_pages, event.limit_pages];
        let [usage, limit] = pages.map(walked::bytes);
        let percent = self.near_limits.news(uid, container, usage, limit)?;
        Some((uid.clone(), container.map(str::to_owned), percent))
    }

    /// A pod is gone, or one of its containers: what was reported of its limits is over.
    pub(super) fn forget_limits(&mut self, uid: &PodUid, container: Option<&str>) {
        self.near_limits.forget(uid, container);
        if container.is_none() {
            self.refused_forks.forget(uid);
        }
    }

    /// Reads the figures that are due and publishes them all.
    pub(super) fn sample(&mut self, env: &Environment, others: OfOthers<'_>) {
        self.accounting.gather();
        let Some(extent) = self.extent(env) else {
            self.looked = Some(Instant::now());
            return;
        };
        let kernel = self.accounting.kernel.as_ref();
        if let (Some(walker), Some(root)) = (
            kernel.and_then(KernelSide::walker),
            others.tiers.iter().find(|t| t.name == ScopeName::Kubepods),
        ) && let Some(message) = self.sampler.walk(&env.tree, walker, &root.path)
        {
            self.degraded(message, env);
        }
        let last = env.published.latest();
        let asked = Asked {
            extent,
            last: &last.pods,
        };
        let mut sample = self.sampler.sample(
            asked,
            &env.tree,
            &self.accounting.index,
            &self.accounting.gathered(),
            &others,
            &others.tiers,
        );
        drop(last);
        if env.config.sampling_network {
            let entries = self.accounting.index.pods();
            let has_reader = extent == Extent::Read;
            self.networks.pass(
                Instant::now(),
                &env.tree,
                entries,
                &mut sample.pods,
                has_reader,
            );
        }
        if let Some(given) = others.given {
            given.put(&mut sample.pods);
        }
        let now = Instant::now();
        for pod in &sample.pods {
            let refused = self.refused_forks.of_pod(pod, now);
            for kind in self.near_limits.of_pod(pod).into_iter().chain(refused) {
                let time = clock::now_text();
                env.published.event(time, Some(pod.pod_ref.clone()), kind);
            }
        }
        self.refused_forks.passed();
        let (reclaimed, inputs) = self.reclaimed(env, extent, &others.set, &sample.pods);
        let mut tiers = sample.tiers;
        add_convergence(others.convergence, &mut tiers);
        let mut stats = self.stats.clone();
        stats.degradations.extend(self.notices.iter().cloned());
        stats.degradations.extend(env.published.standing());
        let trouble = env.published.trouble();
        stats.degradations.extend(trouble.map(str::to_owned));
        let node = NodeStats {
            runtime: others.runtime,
            time: clock::now_text(),
            cpus: cpus::online(),
            allocatable_memory_bytes: reserve::allocatable(&env.node).memory.as_u64(),
            reclaimed,
            best_effort_cpu: others.best_effort_cpu,
            usage: self.node_usage(env, extent),
            tiers,
            kernel_drops: self.accounting.drops(),
            foreign_writes: others.drift,
            unexplained_cgroups: others.unexplained as u64,
            sampling: sampling(self.sampler.last_walk()),
            ..stats
        };
        let figures = Figures::new(node, sample.pods)
            .with_reclaimed(inputs)
            .with_cpu_strategies(others.cpu_strategies);
        if env.published.has_list_reader() {
            // Written now, not while a request waits.
            let _ = figures.listed();
        }
        env.published.publish(figures);
        let now = Some(Instant::now());
        self.looked = now;
        if extent != Extent::Ran {
            self.sampled = now;
            self.is_idle = extent == Extent::Idle;
        }
        env.published.set_ready(true);
    }

    /// What the whole node uses; a pass over some of the pods leaves it as it is.
    fn node_usage(&mut self, env: &Environment, extent: Extent) -> Option<NodeUsageStats> {
        match extent {
            Extent::Ran => env.published.latest().node.usage.clone(),
            Extent::Read | Extent::Idle => self.node_usage.read(env.node.memory_capacity.as_u64()),
        }
    }

    /// What the node has to spare, and what that is from: a pass over some of the pods leaves it as it is.
    fn reclaimed(
        &mut self,
        env: &Environment,
        extent: Extent,
        set: &PodSet,
        pods: &[PodStats],
    ) -> (Option<ReclaimedStats>, Option<Arc<Inputs>>) {
        if extent == Extent::Ran {
            let last = env.published.latest();
            return (last.node.reclaimed, last.reclaimed.clone());
        }
        let reclaimer = self.reclaimer.as_mut();
        let (stats, inputs) = reclaimer.and_then(|r| r.pass(&env.node, set, pods)).unzip();
        (stats, inputs.map(Arc::new))
    }
}

/// Where the pods' memory came from.
fn sampling(walk: Option<PassStats>) -> SamplingStats {
    match walk {
        Some(pass) => SamplingStats {
            source: "iterator".to_owned(),
            cgroups: pass.cgroups,
            without_room: pass.lost,
            duration_nano_seconds: u64::try_from(pass.duration.as_nanos()).ok(),
        },
        None => SamplingStats {
            source: "files".to_owned(),
            ..SamplingStats::default()
        },
    }
}

/// Puts how far the tiers have come beside their figures.
fn add_convergence(convergence: Vec<(ScopeName, TierConvergence)>, tiers: &mut [TierStats]) {
    for (scope, mut figures) in convergence {
        let Some(tier) = tiers.iter_mut().find(|tier| tier.name == scope.as_str()) else {
            continue;
        };
        // The converger looks when something changes; this was read just now.
        if let (Some(memory), Some(target)) = (&tier.memory, figures.target_bytes) {
            figures.gap_bytes = memory.usage_bytes.saturating_sub(target);
        }
        tier.convergence = Some(figures);
    }
}

impl Names for OfOthers<'_> {
    fn pod(&self, uid: &PodUid) -> Named {
        let identity = self.identities.get(uid);
        Named {
            pod: identity.pod,
            source: identity.known_by.text(),
            evicted: self.evicted.contains(uid),
        }
    }

    fn container(&self, uid: &PodUid, id: &str) -> Option<&ArcStr> {
        self.identities.container_name(uid, id)
    }

    fn is_sandbox(&self, uid: &PodUid, id: &str) -> bool {
        self.identities.is_sandbox(uid, id)
    }
}
