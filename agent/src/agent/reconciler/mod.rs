//! The reconciler: a struct of parts, and the facts that it passes from one to the next.
//!
//! | part | state that it owns | wakes for |
//! |---|---|---|
//! | [`pods`] | sources, identities, runtime state | another set of pods, another runtime state |
//! | [`hierarchy`] | actor, drift, convergence, `oom_score_adj`, pace | convergence, foreign writes |
//! | [`colocation`] | CPU quotas of protected pods | reports of its thread |
//! | [`eviction`] | reactor, recorder, eviction status, soft threshold | reports of the reactor |
//! | [`kubelet`] | limits that another program writes, reserves of the Node object | writes to these limits |
//! | [`figures`] | accounts, sampler, notices, degradations, health | kernel records |
//!
//! A part offers `ready()`, which completes when its `step()` has work, `due()` for work that comes with
//! time, which its `on_time()` does, and returns a [`Fact`] for what the others need.

pub(super) mod colocation;
pub(super) mod eviction;
pub(super) mod figures;
pub(super) mod hierarchy;
pub(super) mod kubelet;
mod occurrences;
pub(super) mod pods;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use podwarden_cgroup::{CgroupLayout, FreezeRecord, Tree};
use podwarden_policy::{Node, PodUid, QosClass, evict::Exemptions, name};

use self::{
    colocation::Colocation,
    eviction::EvictionManager,
    figures::FiguresPublisher,
    hierarchy::Hierarchy,
    kubelet::KubeletFacts,
    pods::{Known, Pods},
};
use crate::{
    accounting::{
        Occurrence,
        index::{Change, PodEntry},
    },
    agent::arm::TierBounds,
    api::{
        published::Published,
        types::{EventKind, Eviction, PodRef},
    },
    base::{clock, heartbeat::Heartbeat},
    config::Config,
    hierarchy::drift::Finding,
    reactor::{Pulse, plan::ScopeName},
};

/// The tiers, by class and by the reactor's name.
const TIERS: [(QosClass, ScopeName); 2] = [
    (QosClass::Burstable, ScopeName::Burstable),
    (QosClass::BestEffort, ScopeName::BestEffort),
];

/// It goes round at least this often, so that the watchdog sees it.
const BEAT: Duration = Duration::from_secs(2);

const STUCK: &str = "the reconciler is stuck: cgroups, levels and victims stay as they are, and figures with them; see \
     what its thread waits for (/proc/PID/task/*/wchan), and restart the agent";

/// What holds for all parts, and the published state.
pub(super) struct Environment {
    pub(super) config: Config,
    /// Follows the limits in force where another program writes them.
    pub(super) node: Node,
    pub(super) tier_bounds: TierBounds,
    /// See [`crate::agent::arm::Levels::node`].
    pub(super) node_level: Option<u64>,
    pub(super) tree: Tree,
    pub(super) layout: CgroupLayout,
    pub(super) exemptions: Exemptions,
    /// Where freezes are noted, where pods are frozen to be killed.
    pub(super) frozen: Option<Arc<FreezeRecord>>,
    pub(super) published: Arc<Published>,
}

/// What a step of a part may read besides the part's own state.
#[derive(Clone, Copy)]
struct Context<'a> {
    env: &'a Environment,
    known: Known<'a>,
    /// The pods' cgroups, by uid.
    entries: &'a BTreeMap<PodUid, PodEntry>,
}

impl<'a> Context<'a> {
    fn of(env: &'a Environment, pods: &'a Pods, figures: &'a FiguresPublisher) -> Self {
        Self {
            env,
            known: pods.known(),
            entries: figures.pods(),
        }
    }
}

/// What a step of one part means to the others.
#[derive(Debug)]
pub(super) enum Fact {
    /// There is another set of pods.
    PodsChanged,
    /// Pods, cgroups or levels changed: reconcile and arm before waiting again.
    Reconcile,
    /// What victims are killed by changed: arm before waiting again.
    Arm,
    /// A tier uses less: the reactor's level follows at once.
    TierFell,
    /// The reactor reported: usage may have fallen.
    ReactorReported,
    /// The kernel reported a change.
    Occurred(Occurrence),
    /// Another writer changed a file of ours, or rests again.
    ForeignWrite(Finding),
    /// The gap between a tier's usage and its target opened or closed at `at`.
    Gap {
        scope: ScopeName,
        at: u64,
        kind: EventKind,
    },
    /// A capability is missing.
    Degraded(String),
}

/// The part that is ready.
enum Wake {
    Eviction,
    Figures,
    Hierarchy(hierarchy::Wake),
    Kubelet,
    Colocation(colocation::Told),
    Pods(pods::Wake),
    Time,
}

pub(super) struct Reconciler {
    env: Environment,
    pods: Pods,
    hierarchy: Hierarchy,
    colocation: Colocation,
    eviction: EvictionManager,
    kubelet: KubeletFacts,
    figures: FiguresPublisher,
    /// See [`Fact::Reconcile`].
    reconcile_due: bool,
    /// See [`Fact::Arm`].
    arm_due: bool,
    heartbeat: Heartbeat,
}

/// What there is before the first step.
pub(super) struct AtStart<'a> {
    /// The cgroups that are there.
    pub(super) changes: Vec<Change>,
    /// The evictions by agents before this one, each with its time.
    pub(super) recorded: &'a [(String, Eviction)],
}

/// The parts that write to cgroups.
pub(super) struct Writers {
    pub(super) hierarchy: Hierarchy,
    pub(super) colocation: Colocation,
}

impl Reconciler {
    pub(super) fn new(
        env: Environment,
        pods: Pods,
        Writers {
            hierarchy,
            colocation,
        }: Writers,
        eviction: EvictionManager,
        kubelet: KubeletFacts,
        figures: FiguresPublisher,
        AtStart { changes, recorded }: AtStart<'_>,
    ) -> Self {
        let mut this = Self {
            env,
            pods,
            hierarchy,
            colocation,
            eviction,
            kubelet,
            figures,
            reconcile_due: true,
            arm_due: false,
            heartbeat: Heartbeat::new(STUCK),
        };
        let unwatched = this.hierarchy.watch_writes(&this.env);
        this.apply(unwatched);
        this.pods.take_set(&this.env);
        this.hierarchy.learn(&this.pods.set());
        for change in changes {
            this.changed(change);
        }
        this.eviction.recall(recorded, this.figures.pods());
        this
    }

    /// The reactor's beat, for the watchdog.
    pub(super) fn pulse(&self) -> Pulse {
        self.eviction.pulse()
    }

    /// Runs for ever; dropping the future stops it between two steps.
    pub(super) async fn run(&mut self) -> Infallible {
        loop {
            self.heartbeat.beat();
            self.catch_up();
            let wake = self.wait().await;
            let facts = self.step(wake);
            self.apply(facts);
            self.on_time();
        }
    }

    /// Brings cgroups and levels up to date; the reactor works from then on.
    pub(super) fn settle(&mut self) {
        if self.reconcile_due {
            self.reconcile();
        }
        if self.reconcile_due || self.arm_due {
            self.arm();
            self.reconcile_due = false;
            self.arm_due = false;
        }
    }

    /// Does what earlier steps found to be due.
    fn catch_up(&mut self) {
        self.settle();
        if self.figures.sampling_due(&self.env).is_zero() {
            tokio::task::block_in_place(|| self.sample());
        }
    }

    /// Completes when a part is ready, the reactor's reports before all else.
    async fn wait(&mut self) -> Wake {
        let now = Instant::now();
        let sampling = self.figures.sampling_due(&self.env);
        let due = [self.hierarchy.due(now), self.eviction.due(now)];
        let due = due.into_iter().fold(sampling.min(BEAT), Duration::min);
        // A request ends an idle pause; it changes nothing once sampling is at its full pace.
        let idle = !self.env.published.has_reader();
        tokio::select! {
            biased;
            () = self.eviction.ready() => Wake::Eviction,
            () = self.figures.ready() => Wake::Figures,
            wake = self.hierarchy.ready() => Wake::Hierarchy(wake),
            () = self.kubelet.ready() => Wake::Kubelet,
            report = self.colocation.ready() => Wake::Colocation(report),
            wake = self.pods.ready() => Wake::Pods(wake),
            () = self.env.published.demanded(), if idle => Wake::Time,
            () = tokio::time::sleep(due) => Wake::Time,
        }
    }

    /// The step of the part that is ready.
    fn step(&mut self, wake: Wake) -> Vec<Fact> {
        let cx = Context::of(&self.env, &self.pods, &self.figures);
        match wake {
            Wake::Eviction => self.eviction.step(cx),
            Wake::Figures => self.figures.step(&self.env),
            Wake::Kubelet => self.kubelet.step(&self.env.tree).into_iter().collect(),
            Wake::Hierarchy(wake) => self.hierarchy.step(wake, cx, &self.colocation),
            Wake::Colocation(report) => self.colocation.step(report, &self.env),
            Wake::Pods(wake) => self.pods.step(wake, &self.env),
            Wake::Time => Vec::new(),
        }
    }

    /// The work of each part that comes with time, whatever the reconciler woke for.
    fn on_time(&mut self) {
        let now = Instant::now();
        let cx = Context::of(&self.env, &self.pods, &self.figures);
        let mut facts = self.hierarchy.on_time(now, cx);
        facts.extend(self.eviction.on_time(now, cx));
        self.apply(facts);
    }

    /// Passes facts to the parts that need them.
    fn apply(&mut self, facts: impl IntoIterator<Item = Fact>) {
        for fact in facts {
            match fact {
                Fact::PodsChanged => self.pods_changed(),
                Fact::Reconcile => self.reconcile_due = true,
                Fact::Arm => self.arm_due = true,
                Fact::TierFell => self.arm(),
                Fact::ReactorReported => self.hierarchy.usage_may_have_fallen(),
                Fact::Occurred(occurrence) => self.occurred(occurrence),
                Fact::ForeignWrite((cgroup, kind)) => {
                    let uid = cgroup.last().and_then(name::parse_pod).map(|(_, uid)| uid);
                    let pod = uid.map(|uid| self.pods.identity(&uid));
                    self.event(pod, kind);
                }
                Fact::Gap { scope, at, kind } => {
                    let id = self.env.published.event(clock::text_of(at), None, kind);
                    self.eviction.record_gap(scope, id, at);
                }
                Fact::Degraded(message) => self.figures.degraded(message, &self.env),
            }
        }
    }

    fn pods_changed(&mut self) {
        let set = self.pods.set();
        self.hierarchy.learn(&set);
        if (self.hierarchy).make_room(&self.env, &set, self.eviction.levels()) {
            self.arm();
        }
        let cx = Context::of(&self.env, &self.pods, &self.figures);
        let facts = self.hierarchy.settle_all(cx);
        self.apply(facts);
        self.reconcile_due = true;
    }

    /// Brings the cgroups to what the pods need.
    fn reconcile(&mut self) {
        self.kubelet.read(&self.env.tree);
        self.env.node = self.kubelet.node();
        self.env.tier_bounds = self.kubelet.tiers();
        let cx = Context::of(&self.env, &self.pods, &self.figures);
        let mut pass = (self.hierarchy).plan(cx, self.eviction.levels(), &self.colocation);
        pass.shortcomings.extend(self.pods.runtime_problem());
        pass.shortcomings.extend(self.kubelet.mismatches());
        pass.shortcomings
            .extend(self.eviction.look_for_unexplained(cx));
        self.figures
            .notice(std::mem::take(&mut pass.shortcomings), &self.env);
        self.figures.expect(pass.makes());
        let facts = self.hierarchy.act(pass, &self.env);
        self.apply(facts);
    }

    /// Hands the reactor its levels and victims.
    fn arm(&mut self) {
        let cx = Context::of(&self.env, &self.pods, &self.figures);
        let levels = self.eviction.arm(cx);
        self.hierarchy.aim(&self.env, levels, &cx.known.set());
        let facts = self.colocation.aim(cx, self.figures.index());
        self.apply(facts);
    }

    /// Reads all figures and publishes them.
    fn sample(&mut self) {
        let known = self.pods.known();
        self.figures.sample(
            &self.env,
            figures::OfOthers {
                identities: known.identities,
                set: known.set(),
                evicted: self.eviction.evicted(),
                tiers: self.eviction.armed().tiers(&self.env.layout),
                convergence: self.hierarchy.convergence(),
                drift: self.hierarchy.drift_stats(),
                runtime: self.pods.runtime_stats(),
                unexplained: self.eviction.unexplained(),
                given: self.colocation.given(),
                best_effort_cpu: self.colocation.best_effort_cpu(&self.env),
                cpu_strategies: self.colocation.cpu_strategies(&self.env),
            },
        );
    }

    /// Publishes an event of now.
    fn event(&self, pod: Option<PodRef>, kind: EventKind) {
        self.env.published.event(clock::now_text(), pod, kind);
    }

    /// Leaves the node as it was: nothing attached, no empty cgroup that the agent made. A `successor` finds the tiers'
    /// limits and the cgroups as they are. The answer is when the reactor ended, `CLOCK_MONOTONIC` nanoseconds. What is left
    /// is open files, which may take the kernel tens of milliseconds to close.
    pub(super) fn finish(&mut self, successor: bool) -> u64 {
        self.colocation.end();
        // The limits reach what `onExit` says; then records that are not finished yet end.
        self.hierarchy.end_threads(successor);
        // Meanwhile the reactor goes on: it reads usage itself.
        self.figures.detach();
        let cx = Context::of(&self.env, &self.pods, &self.figures);
        self.eviction.stop(cx);
        let ended = clock::monotonic();
        let status = self.eviction.finish();
        if !successor {
            self.hierarchy.remove_unused(&self.env.tree);
        }
        drop(status);
        if let Some(frozen) = &self.env.frozen {
            frozen.remove();
        }
        ended
    }
}
