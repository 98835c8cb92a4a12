//! Part: the reactor's reports, what follows them (recorder, eviction status), the soft threshold, and the
//! plan that the reactor is armed with.

mod cpu;
mod fall;
mod graceful;
mod hold;
mod kill;
mod leave;
mod outside;
mod pressed;
mod recording;
mod reports;
mod unexplained;

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use podwarden_policy::{PodUid, QosClass, reserve};
use tokio::io::{Interest, unix::AsyncFd};

use self::{
    cpu::CpuEvictions,
    graceful::Graceful,
    hold::ToHold,
    outside::Outside,
    pressed::Pressed,
    recording::start_recorder,
    reports::{Evictions, Listeners},
};
use super::{Context, Environment, Fact};
use crate::{
    accounting::index::PodEntry,
    agent::{
        arm::{self, Levels, Tokens, pids::PidThreshold, unexplained::Unexplained},
        best_effort::BestEffortMemory,
        best_effort_cpu::BestEffortCpu,
        soft::Soft,
    },
    api::types::Eviction,
    eviction::{
        pod_killer::PodKiller,
        recorder::{Incident, Recorder},
        status::EvictionStatus,
    },
    reactor::{
        Pulse, Reactor,
        report::{Chosen, Report},
    },
};

/// Between two looks at the reports where they cannot be waited for.
const LOOK: Duration = Duration::from_millis(100);

pub(in crate::agent) struct EvictionManager {
    reactor: Reactor,
    /// Readable after a report.
    bell: Option<AsyncFd<OwnedFd>>,
    tokens: Tokens,
    evictions: Evictions,
    /// `None` without a thread for it.
    recorder: Option<Recorder>,
    /// `None` in observe mode, and without a receiver of evictions.
    status: Option<EvictionStatus>,
    soft: Option<Soft>,
    graceful: Graceful,
    pressed: Pressed,
    best_effort: Option<BestEffortMemory>,
    /// `None` where no strategy is on.
    cpu: Option<BestEffortCpu>,
    cpu_evictions: CpuEvictions,
    numbers: kill::Numbers,
    /// By the tiers' limits and the thresholds.
    levels: Levels,
    /// What the reactor is armed with.
    armed: Levels,
    unexplained: Unexplained,
    reports_lost: u64,
    /// Evicted pods that are to be held dead once their files are open.
    to_hold: BTreeMap<PodUid, ToHold>,
    /// `None` beside a kubelet, in observe mode, and without a container runtime.
    pod_killer: Option<PodKiller>,
}

impl EvictionManager {
    /// Needs a tokio runtime.
    pub(in crate::agent) fn new(
        env: &Environment,
        reactor: Reactor,
        status: Option<EvictionStatus>,
        pod_killer: Option<PodKiller>,
    ) -> Self {
        let bell = reactor.bell().try_clone_to_owned();
        // SAFETY: an `OwnedFd` names the same open file for as long as it lives.
        let bell = bell
            .ok()
            .and_then(|fd| unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.ok());
        let cpu_evictions = CpuEvictions::new(status.as_ref());
        // Without a status no one tells a pod to end.
        let grace = status
            .as_ref()
            .map(|_| env.config.eviction_max_pod_grace_period);
        Self {
            bell,
            tokens: Tokens::default(),
            evictions: Evictions::default(),
            recorder: start_recorder(env, &reactor),
            status,
            best_effort: BestEffortMemory::new(env.config.colocation.memory_evict),
            cpu: BestEffortCpu::new(env.config.colocation.cpu_evict, Instant::now()),
            cpu_evictions,
            numbers: kill::Numbers::default(),
            soft: Soft::new(&env.config, &env.node, Instant::now()),
            graceful: Graceful::new(grace.unwrap_or_default()),
            pressed: Pressed::new(
                env.config.eviction_pressure_transition_period,
                env.published.pressure().clone(),
            ),
            levels: Levels::default(),
            armed: Levels::default(),
            unexplained: Unexplained::default(),
            reports_lost: 0,
            to_hold: BTreeMap::new(),
            pod_killer,
            reactor,
        }
    }

    /// Takes the evictions by agents before this one, each with its time.
    pub(super) fn recall(
        &mut self,
        recorded: &[(String, Eviction)],
        pods: &BTreeMap<PodUid, PodEntry>,
    ) {
        self.evictions.recall(recorded, pods);
        self.recall_dead(recorded);
    }

    /// Completes when the reactor has reported. Cancel-safe.
    pub(super) async fn ready(&self) {
        match &self.bell {
            Some(bell) => {
                if let Ok(mut guard) = bell.readable().await {
                    guard.clear_ready();
                }
            }
            None => tokio::time::sleep(LOOK).await,
        }
    }

    /// Takes every report there is.
    pub(super) fn step(&mut self, cx: Context<'_>) -> Vec<Fact> {
        self.reactor.silence();
        self.take_let_go();
        let lost = self.reactor.lost_reports();
        if lost != self.reports_lost {
            self.reports_lost = lost;
            tracing::warn!(lost, "reports of the reactor found their queue full");
        }
        let mut facts = Vec::new();
        while let Some(report) = self.reactor.next_report() {
            self.take(report, cx, &mut facts);
        }
        facts
    }

    /// Passes one report on.
    fn take(&mut self, report: Report, cx: Context<'_>, facts: &mut Vec<Fact>) {
        let Context { env, known, .. } = cx;
        let outside = Outside {
            tree: &env.tree,
            kubepods: env.layout.path(&env.layout.kubepods),
        };
        let is_noted = self.note_kill(&report);
        // Before its status is queued: a pod whose status cannot be written is let go.
        self.hold_dead(&known.set());
        if is_noted {
            facts.push(Fact::ReactorReported);
            return;
        }
        if let Some(scope) = pressed::scope_of(&report) {
            self.pressed.sign(scope, Instant::now());
        }
        let (reactor, tokens) = (&self.reactor, &self.tokens);
        let pod_of = |token| Some(known.identities.get(tokens.uid(token)?).pod);
        let mut listeners = Listeners {
            published: &env.published,
            outside: &outside,
            recorder: &mut self.recorder,
            status: &mut self.status,
            sources: known.sources,
            pods: cx.entries,
        };
        let incident = |chosen: &Chosen| {
            let readings = reactor.trace().read();
            Incident::of_choice(chosen, &reactor.armed(), readings, pod_of)
        };
        if (self.evictions).take(report, &mut listeners, pod_of, incident) {
            facts.push(Fact::Reconcile);
        }
        facts.push(Fact::ReactorReported);
    }

    /// How long until [`EvictionManager::on_time`] has something to look at.
    pub(super) fn due(&self, now: Instant) -> Duration {
        let soft = self.soft.as_ref().map(|soft| soft.due(now));
        let status = self.status.as_ref().and_then(|status| status.due(now));
        let best_effort = self.best_effort.as_ref().map(|memory| memory.due(now));
        soft.into_iter()
            .chain(best_effort)
            .chain(self.cpu.as_ref().map(|cpu| cpu.due(now)))
            .chain(self.cpu_evictions.due())
            .chain(self.graceful.due())
            .chain(status)
            .chain(self.unexplained.due(now))
            .chain(self.pressed.due(now))
            .min()
            .unwrap_or(Duration::MAX)
    }

    /// Looks at best effort's CPU and memory and at the soft threshold, and whether pressure is over.
    pub(super) fn on_time(&mut self, now: Instant, cx: Context<'_>) -> Vec<Fact> {
        let env = cx.env;
        self.reactor.tidy();
        self.take_let_go();
        let mut facts = self.relieve_cpu(cx, now);
        if let Some(memory) = &mut self.best_effort
            && memory.due(now).is_zero()
        {
            let tier = env
                .layout
                .path(&env.layout.kubepods.tier(QosClass::BestEffort));
            if memory.look(&env.tree, &tier, env.node.memory_capacity, now) {
                facts.push(Fact::Arm);
            }
        }
        let mut changed = false;
        if let Some(soft) = &mut self.soft
            && soft.due(now).is_zero()
        {
            let kubepods = env.layout.path(&env.layout.kubepods);
            changed = soft.look(&env.tree, &kubepods, now);
        }
        facts.extend(self.evict_gracefully(cx, now));
        // The reactor does not report pressure that goes on without a candidate.
        let is_due = |due: Option<Duration>| due.is_some_and(|due| due.is_zero());
        if let Some(status) = &mut self.status
            && is_due(status.due(now))
        {
            let figures = env.published.latest();
            if figures.node.tiers.iter().any(pressed::is_at_level) {
                status.pressed(now);
            }
            status.look(now);
        }
        if is_due(self.pressed.due(now)) {
            let figures = env.published.latest();
            self.pressed
                .look(now, pressed::pods_are_at_level(&figures.node.tiers));
        }
        changed |= self.unexplained_are_due(env, now);
        facts.extend(changed.then_some(Fact::Reconcile));
        facts
    }

    /// Hands the reactor its levels and victims; returns the levels.
    pub(super) fn arm(&mut self, cx: Context<'_>) -> Levels {
        let (env, known, entries) = (cx.env, cx.known, cx.entries);
        let config = &env.config;
        let set = known.set();
        let specs: Vec<_> = set.pods.iter().map(|p| &p.pod).collect();
        let mut levels = Levels::of(&env.node, specs.iter().copied());
        levels.node = env.node_level;
        if let Some(soft) = &mut self.soft {
            soft.follow(&env.node);
            if !self.graceful.is_on() {
                levels.kubepods = soft.level(levels.kubepods);
            }
        }
        if let Some(status) = &mut self.status {
            status.resized(reserve::allocatable(&env.node).kubepods_memory.as_u64());
        }
        let before = self.reactor.armed();
        fall::hold(&mut levels, &before, env);
        // Limits that others write wait for no tier to shrink.
        let levels = levels.within(env.tier_bounds);
        self.levels = levels;
        // What the node's memory leaves the tier is the reactor's alone: no tier is limited by it.
        let (armed, best_effort_target) = self.with_best_effort(levels);
        self.armed = armed;
        let now = Instant::now();
        let is_unknown = |uid: &&PodUid| !set.mentions(uid);
        // What its status calls ended runs on for a while, and goes first at a hard level.
        let mut candidates = specs;
        let ended = set.ended.iter().map(|p| &p.pod);
        candidates.extend(ended.filter(|pod| self.graceful.is_ending(&pod.uid)));
        let unexplained: Vec<_> = self.unexplained.settled(now).filter(is_unknown).collect();
        let strangers: Vec<_> = self.unexplained.strangers(now).filter(is_unknown).collect();
        let inputs = arm::Inputs {
            tree: &env.tree,
            entries,
            runtime: &known.identities.runtime().state,
            layout: &env.layout,
            levels: armed,
            minimum_reclaim: config.minimum_reclaim(&env.node),
            best_effort_target,
            pods: &candidates,
            unexplained: &unexplained,
            strangers: &strangers,
            pressure: config.pressure,
            pids: PidThreshold::of(config, &env.node),
            exemptions: &env.exemptions,
            ranking: config.ranking,
            mode: config.mode,
            frozen: env.frozen.as_ref(),
        };
        let plan = arm::plan(&inputs, &before, &mut self.tokens);
        drop(before);
        self.reactor.arm(plan);
        self.hold_dead(&set);
        self.follow_usage(env, entries);
        levels
    }

    /// The besteffort tier's level by the node's memory, where that is lower than its own, and its target.
    fn with_best_effort(&self, levels: Levels) -> (Levels, Option<u64>) {
        let by_node = self.best_effort.as_ref().and_then(BestEffortMemory::level);
        match by_node {
            Some(by_node) if levels.besteffort.is_none_or(|own| by_node.level < own) => {
                let besteffort = Some(by_node.level);
                (
                    Levels {
                        besteffort,
                        ..levels
                    },
                    Some(by_node.target),
                )
            }
            Some(_) | None => (levels, None),
        }
    }

    /// The levels by the tiers' limits and the thresholds.
    pub(super) fn levels(&self) -> Levels {
        self.levels
    }

    /// The levels in force.
    pub(super) fn armed(&self) -> Levels {
        self.armed
    }

    /// The pods that were evicted and whose cgroup is still there.
    pub(super) fn evicted(&self) -> &BTreeSet<PodUid> {
        &self.evictions.evicted
    }

    /// The pod's cgroup is gone or another.
    pub(super) fn forget(&mut self, uid: &PodUid) {
        self.tokens.forget(uid);
        self.evictions.evicted.remove(uid);
        self.to_hold.remove(uid);
        self.graceful.forget(uid);
    }

    /// The reactor's beat.
    pub(super) fn pulse(&self) -> Pulse {
        self.reactor.pulse()
    }

    /// Ends the reactor, and takes its last reports: each kill is in the event log.
    pub(super) fn stop(&mut self, cx: Context<'_>) {
        self.reactor.stop();
        let _no_part_runs = self.step(cx);
    }

    /// Ends all that works on evictions; the status is returned to end last.
    pub(super) fn finish(&mut self) -> Option<EvictionStatus> {
        self.reactor.end_reaping();
        self.recorder = None;
        self.pod_killer = None;
        self.status.take()
    }
}
