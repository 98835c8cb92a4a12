//! The slow loop: follows pods and kernel records, keeps the hierarchy, samples, arms the reactor.

mod converge;
mod drift;
mod notices;
mod oom_score;
mod pace;
mod recording;
mod records;
mod runtime;
mod vigil;
mod wake;

use std::{convert::Infallible, sync::Arc, time::Instant};

use podwarden_cgroup::Tree;
use podwarden_policy::{
    Bytes, Node, desired, drift::Judgement, evict::Immunity, limits::Limit, name::CgroupName, plan,
    reserve,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::watch,
};

use self::{notices::Notices, pace::Pace, wake::Woke};
use super::{
    evictions::{Evictions, KnownNames, Listeners},
    soft::Soft,
    watchdog::Watchdog,
};
use crate::{
    accounting::{Accounting, figures::Sampler, index::Change},
    agent::arm::{self, Levels, Tokens},
    api::{
        published::{Figures, Published},
        types::{Eviction, NodeStats},
    },
    base::clock,
    config::{Config, Mode},
    eviction::{
        recorder::{Draft, Recorder},
        status::Marks,
    },
    hierarchy::{
        act::Actor,
        converge::Converger,
        drift::Drift,
        oom_score::OomScores,
        recorded::Recorded,
        sense::{self, Naming, Wanted},
    },
    pods::{Identities, PodSet, SourceError},
    reactor::{Reactor, plan::ScopeName, report::Chosen},
    runtime::Follower,
};

/// What the loop owns.
pub(super) struct Parts {
    pub(super) config: Config,
    pub(super) node: Node,
    /// See [`Levels::node`].
    pub(super) node_level: Option<u64>,
    pub(super) tree: Tree,
    pub(super) naming: Naming,
    pub(super) immunity: Immunity,
    pub(super) published: Arc<Published>,
    pub(super) accounting: Accounting,
    pub(super) actor: Actor,
    pub(super) reactor: Reactor,
    pub(super) pods: watch::Receiver<Arc<PodSet>>,
    /// `None` in observe mode, and where it has no thread.
    pub(super) converger: Option<Converger>,
    /// `None` where no runtime is configured.
    pub(super) runtime: Option<Follower>,
    /// `None` in observe mode, and where there is nobody to be told of evictions.
    pub(super) marks: Option<Marks>,
    /// The parts of the node's figures that do not change.
    pub(super) stats: NodeStats,
}

/// See the module's text.
pub(super) struct SlowLoop {
    parts: Parts,
    identities: Identities,
    tokens: Tokens,
    evictions: Evictions,
    sampler: Sampler,
    levels: Levels,
    sampled: Option<Instant>,
    pace: Pace,
    /// `None` in observe mode: nothing is ours then that could drift.
    drift: Option<Drift>,
    converger: Option<Converger>,
    /// The tiers' hard limits as they ought to be; `None` where somebody else decides.
    targets: [(ScopeName, Option<Limit<Bytes>>); 2],
    notices: Notices,
    oom_scores: OomScores,
    scores_settled: Option<Instant>,
    recorder: Option<Recorder>,
    /// The set of pods or cgroups changed: reconcile and arm before waiting again.
    stale: bool,
    /// What victims are killed by changed: arm before waiting again.
    rearm: bool,
    /// What is wrong with pods, so that it is said once.
    pod_errors: Vec<SourceError>,
    pods_open: bool,
    reactor_ended: bool,
    watchdog: Watchdog,
    soft: Option<Soft>,
    reports_lost: u64,
}

impl SlowLoop {
    /// `recorded` are evictions by agents before this one, each with its time.
    pub(super) fn new(
        mut parts: Parts,
        changes: Vec<Change>,
        recorded: &[(String, Eviction)],
    ) -> Self {
        let mut this = Self {
            converger: parts.converger.take(),
            targets: converge::NO_TARGETS,
            identities: Identities::default(),
            tokens: Tokens::default(),
            evictions: Evictions::default(),
            sampler: Sampler::new(parts.accounting.kernel.is_none()),
            levels: Levels::default(),
            sampled: None,
            pace: Pace::new(Instant::now()),
            drift: None,
            notices: Notices::default(),
            oom_scores: OomScores::default(),
            scores_settled: None,
            recorder: recording::start(&parts),
            stale: true,
            rearm: false,
            pod_errors: Vec::new(),
            pods_open: true,
            reactor_ended: false,
            watchdog: Watchdog::new(Instant::now()),
            soft: Soft::new(&parts.config, &parts.node, Instant::now()),
            reports_lost: 0,
            parts,
        };
        if this.parts.config.mode == Mode::Enforce {
            this.notice_writes();
        }
        this.take_pods();
        for change in changes {
            this.changed(change);
        }
        let entries = this.parts.accounting.index.pods();
        this.evictions.recall(recorded, entries);
        this
    }

    /// Runs for ever; dropping the future stops it between two steps.
    pub(super) async fn run(&mut self) -> Infallible {
        let bell = self.parts.reactor.bell().try_clone_to_owned();
        // SAFETY: an `OwnedFd` names the same open file for as long as it lives.
        let bell = bell
            .ok()
            .and_then(|fd| unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.ok());
        loop {
            if self.stale {
                self.reconcile();
            }
            if self.stale || self.rearm {
                self.arm();
                self.stale = false;
                self.rearm = false;
            }
            if self.sampling_due().is_zero() {
                tokio::task::block_in_place(|| self.sample());
            }
            match self.wait(bell.as_ref()).await {
                Woke::Records => self.take_records(),
                Woke::Reports => self.take_reports(),
                Woke::Notices => self.take_notices(),
                Woke::Convergence(report) => self.take_convergence(report),
                Woke::Pods => {
                    self.take_pods();
                    self.cap();
                    self.settle_all(true);
                    self.stale = true;
                }
                Woke::Runtime => self.take_runtime(),
                Woke::Time => {}
            }
            self.settle_all(false);
            if self.pace.due(Instant::now()).is_zero() {
                self.stale = true;
            }
            self.parts.reactor.tidy();
            self.vigil(Instant::now());
        }
    }

    fn take_pods(&mut self) {
        let set = self.parts.pods.borrow_and_update().clone();
        let said = std::mem::replace(&mut self.pod_errors, set.errors.clone());
        for error in set.errors.iter().filter(|error| !said.contains(error)) {
            tracing::warn!("{error}");
            self.parts.published.degraded(error.to_string());
        }
        self.identities.learn(&set);
        self.parts.actor.learn(&set);
    }

    fn take_reports(&mut self) {
        let Self {
            parts,
            identities,
            tokens,
            evictions,
            recorder,
            ..
        } = self;
        parts.reactor.silence();
        let lost = parts.reactor.lost_reports();
        if lost != self.reports_lost {
            self.reports_lost = lost;
            tracing::warn!(lost, "reports of the reactor found their queue full");
        }
        while let Some(report) = parts.reactor.next_report() {
            let pod_of = |token| Some(identities.get(tokens.uid(token)?).pod);
            let mut listeners = Listeners {
                published: &parts.published,
                recorder,
                marks: &mut parts.marks,
                pods: &parts.pods,
                entries: parts.accounting.index.pods(),
            };
            let draft = |chosen: &Chosen| {
                let readings = parts.reactor.trace().read();
                Draft::of_choice(chosen, &parts.reactor.armed(), readings, pod_of)
            };
            self.stale |= evictions.take(report, &mut listeners, pod_of, draft);
            if let Some(converger) = &self.converger {
                converger.look();
            }
        }
    }

    /// Brings the cgroups to what the pods need.
    fn reconcile(&mut self) {
        let Parts {
            config,
            node,
            tree,
            naming,
            accounting,
            actor,
            pods,
            immunity,
            ..
        } = &mut self.parts;
        let wanted = Wanted::from(&**pods.borrow());
        let existing: Vec<CgroupName> = accounting
            .index
            .pods()
            .iter()
            .map(|(uid, entry)| (entry.class, uid.as_str().into()))
            // The entries lose sight of a cgroup that is gone from the hierarchy that identifies it.
            .chain(actor.made_pods())
            .map(|(class, uid)| naming.kubepods.pod(class, &uid))
            .collect();
        let mut snapshot = sense::snapshot(tree, naming, config, node, wanted, &existing, |rel| {
            actor.made(rel)
        });
        snapshot.immunity = immunity.clone();
        let desired = desired::tree(&snapshot);
        let actions = plan::towards(&snapshot, &desired);
        // Before the rest is done: who is to grow no more does so meanwhile.
        self.set_targets(&desired);
        self.know_ours(&snapshot.cgroups);
        let Parts {
            tree,
            naming,
            published,
            ..
        } = &self.parts;
        let judgement = match &mut self.drift {
            Some(drift) => drift.judge_plan(&snapshot, &desired, actions),
            None => Judgement::of(actions),
        };
        let mut shortcomings = self.runtime_problem();
        shortcomings.extend(sense::shortcomings(tree, naming, &snapshot));
        self.notices.update(shortcomings, published);
        let version = sense::version(tree);
        let planned = Recorded::new(clock::now_text(), version, naming.driver, snapshot);
        published.publish_planned(planned);
        let (performed, findings) = self.carry_out(judgement, Actor::reconcile);
        self.pace.passed(Instant::now(), performed.is_incomplete());
        self.follow(desired);
        self.tell(findings);
    }

    /// Hands the reactor its levels and victims.
    fn arm(&mut self) {
        let parts = &mut self.parts;
        let set = parts.pods.borrow().clone();
        let pods: Vec<_> = set.pods.iter().map(|p| &p.pod).collect();
        let mut levels = Levels::of(&parts.node, pods.iter().copied());
        levels.node = parts.node_level;
        if let Some(soft) = &self.soft {
            levels.kubepods = soft.level(levels.kubepods);
        }
        let before = parts.reactor.armed();
        self.hold(&mut levels, &before);
        self.levels = levels;
        let parts = &mut self.parts;
        let inputs = arm::Inputs {
            tree: &parts.tree,
            entries: parts.accounting.index.pods(),
            runtime: &self.identities.runtime().state,
            naming: &parts.naming,
            levels: self.levels,
            minimum_reclaim: parts.config.minimum_reclaim(&parts.node),
            pods: &pods,
            pressure: parts.config.pressure,
            immunity: &parts.immunity,
            ranking: parts.config.ranking,
            mode: parts.config.mode,
        };
        let plan = arm::plan(&inputs, &before, &mut self.tokens);
        drop(before);
        parts.reactor.arm(plan);
        self.aim();
        self.follow_usage();
    }

    /// Reads all figures and publishes them.
    fn sample(&mut self) {
        let parts = &mut self.parts;
        parts.accounting.flush();
        let names = KnownNames {
            identities: &self.identities,
            evictions: &self.evictions,
        };
        let sample = self.sampler.sample(
            &parts.tree,
            &parts.accounting.index,
            &parts.accounting.kernel,
            &names,
            &self.levels.tiers(&parts.naming),
        );
        let mut tiers = sample.tiers;
        if let Some(converger) = &self.converger {
            converge::add_figures(converger, &mut tiers);
        }
        let mut stats = parts.stats.clone();
        stats.degradations.extend(self.notices.iter().cloned());
        let runtime = self.runtime_stats();
        let parts = &mut self.parts;
        let node = NodeStats {
            runtime,
            time: clock::now_text(),
            cpus: std::thread::available_parallelism()
                .map_or(0, |n| u32::try_from(n.get()).unwrap_or(u32::MAX)),
            allocatable_memory_bytes: reserve::allocatable(&parts.node).memory.as_u64(),
            tiers,
            drops: parts.accounting.drops(),
            drift: self.drift.as_ref().map(Drift::stats).unwrap_or_default(),
            ..stats
        };
        parts.published.publish(Figures::new(node, sample.pods));
        self.sampled = Some(Instant::now());
        parts.published.set_ready(true);
    }

    /// Leaves the node as it was: nothing attached, no empty cgroup that the agent made.
    pub(super) fn finish(self) {
        let Parts {
            mut actor,
            tree,
            reactor,
            accounting,
            ..
        } = self.parts;
        // The limits are left as they are to be left; then flights that are not finished yet end.
        drop(self.converger);
        drop(self.recorder);
        drop(reactor);
        drop(accounting);
        drop(self.sampler);
        actor.remove_unused(&tree);
    }
}
