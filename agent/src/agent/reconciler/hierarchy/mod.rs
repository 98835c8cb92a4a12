//! Part: what the cgroups hold. A pass over the tree is sense, plan, act; between two passes foreign
//! writes, the tiers' convergence and `oom_score_adj` are followed.

mod convergence;
mod foreign_writes;
mod oom_score;
mod pace;
mod reclaimed;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use podwarden_cgroup::{CgroupPath, Tree};
use podwarden_policy::{
    Bytes,
    desired::{self, Desired},
    drift::Judgement,
    limits::Limit,
    name::CgroupName,
    plan::{self, Action},
};

use self::pace::Pace;
use super::{Context, Environment, Fact, colocation::Colocation};
use crate::{
    agent::arm::Levels,
    api::types::{ForeignWriteStats, TierConvergence},
    base::clock,
    hierarchy::{
        act::Actor,
        converge::{Converger, Report},
        drift::Drift,
        fresh::Fresh,
        oom_score::OomScores,
        recorded::Recorded,
        sense::{self, Wanted},
    },
    pods::PodSet,
    reactor::plan::ScopeName,
};

pub(in crate::agent) struct Hierarchy {
    actor: Actor,
    /// `None` in observe mode: no file is ours then.
    drift: Option<Drift>,
    /// `None` in observe mode, and without a thread for it.
    converger: Option<Converger>,
    /// `None` in observe mode, where no pod is given reclaimed resources, and without a thread for it.
    fresh: Option<Fresh>,
    /// The tiers' hard limits as they ought to be; `None` for limits that others decide.
    targets: [(ScopeName, Option<Limit<Bytes>>); 2],
    oom_scores: OomScores,
    scores_settled: Option<Instant>,
    pace: Pace,
}

/// What is ready.
pub(super) enum Wake {
    Convergence(Report),
    ForeignWrites,
    /// The kernel came back from a call that a pass was abandoned for.
    CameBack,
}

/// A pass over the whole tree that is planned and not carried out yet.
pub(super) struct Pass {
    judgement: Judgement,
    desired: Vec<Desired>,
    /// Configured features that this node cannot provide at present, one sentence each.
    pub(super) shortcomings: BTreeSet<String>,
    recorded: Recorded,
}

impl Pass {
    /// How many cgroups it is to make.
    pub(super) fn makes(&self) -> usize {
        let actions = self.judgement.admitted.iter();
        let makes = actions.filter(|(action, _)| matches!(action, Action::EnsureCgroup { .. }));
        makes.count()
    }
}

impl Hierarchy {
    pub(in crate::agent) fn new(
        actor: Actor,
        converger: Option<Converger>,
        fresh: Option<Fresh>,
    ) -> Self {
        Self {
            actor,
            drift: None,
            converger,
            fresh,
            targets: convergence::NO_TARGETS,
            oom_scores: OomScores::default(),
            scores_settled: None,
            pace: Pace::new(Instant::now()),
        }
    }

    /// Cancel-safe. Convergence before foreign writes.
    pub(super) async fn ready(&mut self) -> Wake {
        let foreign_writes = async {
            match &mut self.drift {
                Some(drift) => drift.ready().await,
                None => std::future::pending().await,
            }
        };
        let convergence = async {
            match &mut self.converger {
                Some(converger) => match converger.report().await {
                    Some(report) => report,
                    // Its thread has ended.
                    None => std::future::pending().await,
                },
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            report = convergence => Wake::Convergence(report),
            () = foreign_writes => Wake::ForeignWrites,
            () = self.actor.came_back() => Wake::CameBack,
        }
    }

    pub(super) fn step(
        &mut self,
        wake: Wake,
        cx: Context<'_>,
        colocation: &Colocation,
    ) -> Vec<Fact> {
        match wake {
            Wake::Convergence(report) => convergence::facts(report, cx.env),
            Wake::ForeignWrites => self.take_foreign_writes(cx, colocation),
            Wake::CameBack => {
                self.pace.begin_anew();
                vec![Fact::Reconcile]
            }
        }
    }

    /// Time until [`Hierarchy::on_time`] makes another pass over the tree.
    pub(super) fn due(&self, now: Instant) -> Duration {
        self.pace.due(now)
    }

    pub(super) fn on_time(&mut self, now: Instant, cx: Context<'_>) -> Vec<Fact> {
        let mut facts = self.settle_due(now, cx);
        if self.pace.due(Instant::now()).is_zero() {
            facts.push(Fact::Reconcile);
        }
        facts
    }

    /// Sets the pods' names for its messages.
    pub(super) fn learn(&mut self, set: &PodSet) {
        self.actor.learn(set);
    }

    /// Senses and plans a pass. Before the rest is done the tiers are kept from growing.
    pub(super) fn plan(
        &mut self,
        cx: Context<'_>,
        levels: Levels,
        colocation: &Colocation,
    ) -> Pass {
        let env = cx.env;
        let set = &*cx.known.set();
        // Before anything is read: a container may be starting now.
        self.aim_fresh(cx, set);
        let containers = reclaimed::containers(cx, set);
        let Environment { tree, layout, .. } = env;
        let existing: Vec<CgroupName> = (cx.entries.iter())
            .map(|(uid, entry)| (entry.class, uid.clone()))
            // The index loses sight of a cgroup that is gone from the hierarchy that identifies it.
            .chain(self.actor.made_pods())
            .map(|(class, uid)| layout.kubepods.pod(class, &uid))
            .chain(containers.iter().map(|c| c.cgroup.clone()))
            .collect();
        let made = |path: &CgroupPath| self.actor.made(path);
        let wanted = Wanted::from(set);
        let mut snapshot = sense::snapshot(
            tree,
            layout,
            &env.config,
            &env.node,
            wanted,
            &existing,
            made,
        );
        colocation.mask(&mut snapshot.cgroups, env);
        snapshot.exemptions = env.exemptions.clone();
        snapshot.container_cgroups = containers;
        let desired = desired::tree(&snapshot);
        let actions = plan::towards(&snapshot, &desired);
        self.set_targets(&desired, env);
        self.aim(env, levels, set);
        self.know_ours(&snapshot.cgroups, env);
        let judgement = match &mut self.drift {
            Some(drift) => drift.judge_plan(&snapshot, &desired, actions),
            None => Judgement::of(actions),
        };
        let mut shortcomings = sense::shortcomings(tree, layout, &snapshot);
        shortcomings.extend(self.actor.unanswered());
        Pass {
            judgement,
            desired,
            shortcomings,
            recorded: Recorded::new(
                clock::now_text(),
                sense::version(tree),
                layout.driver,
                snapshot,
            ),
        }
    }

    /// Publishes a pass and carries it out.
    pub(super) fn act(&mut self, pass: Pass, env: &Environment) -> Vec<Fact> {
        env.published.publish_planned(pass.recorded);
        let (performed, findings) = self.carry_out(pass.judgement, env, Actor::reconcile);
        self.pace.passed(Instant::now(), performed.is_incomplete());
        let mut facts = self.follow(pass.desired, env);
        facts.extend(foreign_writes::facts(findings));
        facts
    }

    /// How far each tier has come towards its target.
    pub(super) fn convergence(&self) -> Vec<(ScopeName, TierConvergence)> {
        self.converger
            .as_ref()
            .map(Converger::figures)
            .unwrap_or_default()
    }

    pub(super) fn drift_stats(&self) -> ForeignWriteStats {
        self.drift.as_ref().map(Drift::stats).unwrap_or_default()
    }

    /// Ends the threads that write to cgroups. The tiers get the limits of `onExit`, or a `successor` has their limits from now on.
    pub(super) fn end_threads(&mut self, successor: bool) {
        self.fresh = None;
        if let Some(converger) = self.converger.take()
            && successor
        {
            converger.hand_over();
        }
    }

    /// Removes the cgroups that the agent made and that are not in use.
    pub(super) fn remove_unused(&mut self, tree: &Tree) {
        self.actor.remove_unused(tree);
    }
}
