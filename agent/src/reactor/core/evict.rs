//! From the choice of a victim to its freed memory.

use std::sync::Arc;

use podwarden_policy::worth::{self, Gain, Grower, Growth, KUBELET_PACE_NS, Pick, Shortage};

use super::{Choice, Core, Dying, Survey, choice_of, choose};
use crate::{
    base::clock::monotonic as now,
    reactor::{
        freeing::{Freeing, Outlook},
        growth::index,
        plan::ArmedPlan,
        report::{Chosen, Crossing, Outcome, Report},
        stalls,
    },
};

/// What came of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Evicted {
    /// A pod was killed.
    Killed,
    /// A pod would have been (observe mode).
    Told,
    /// No pod may be evicted, or can be: why.
    None(Report),
}

impl Core {
    /// Evicts the first that can be and uses `least` bytes, if one more is allowed now and worth it. `excess` is
    /// what has to be freed, bytes.
    pub(super) fn evict_one(
        &mut self,
        plan: &Arc<ArmedPlan>,
        crossing: Crossing,
        excess: u64,
        least: u64,
    ) -> Evicted {
        if plan.enforce && !self.pace.allows(now()) {
            return Evicted::None(Report::RateLimited(crossing));
        }
        let mut after = None;
        // One that cannot be killed, or has nothing to kill, does not save the others.
        for _ in 0..plan.victims.len() {
            let at = now();
            let passed_over = |token| self.passed_over.contains(token, at);
            let trace = Some(&*self.shared.trace);
            let scope = crossing.scope;
            let mut survey = Survey::default();
            let Some(first) = choose(plan, scope, trace, passed_over, after, least, &mut survey)
            else {
                break;
            };
            let choice = match self.weigh(plan, &crossing, excess, first, &survey) {
                Ok(choice) => choice,
                Err(growth) => return Evicted::None(Report::OthersGrow(crossing, growth)),
            };
            if !plan.enforce {
                self.evicted(plan, choice, crossing, None);
                return Evicted::Told;
            }
            if self.kill(plan, choice, crossing) {
                if let Some(index) = index(scope) {
                    self.effects[index].evicted(at);
                }
                return Evicted::Killed;
            }
            if choice.position == first.position {
                after = Some((choice.rank, &*plan.victims[choice.position].uid));
            } else {
                self.passed_over
                    .add(plan.victims[choice.position].token, at);
            }
        }
        Evicted::None(Report::NoCandidate(crossing))
    }

    /// The candidate that is worth evicting: the first in the order, or one whose death lasts longer. An error
    /// when the next eviction has to wait, with what grew.
    fn weigh(
        &mut self,
        plan: &ArmedPlan,
        crossing: &Crossing,
        excess: u64,
        first: Choice,
        survey: &Survey,
    ) -> Result<Choice, Growth> {
        // Tasks that wait for memory have no level that anything could grow past.
        let Some(index) = index(crossing.scope) else {
            return Ok(first);
        };
        let growth = self
            .growths
            .of(crossing.scope, crossing.usage, survey.candidates);
        let at = now();
        let shortage = Shortage {
            excess,
            // Right after an eviction no rate is measured yet.
            rate: crossing.fill_rate.max(self.growths.rate(&growth, at)),
            growth,
        };
        let effect = &mut self.effects[index];
        match effect.grower(&growth, at) {
            Grower::Candidates => {
                let gain = |choice: Choice| Gain {
                    bytes: choice.usage,
                    growth: plan.victims[choice.position]
                        .files
                        .seen
                        .growth(choice.usage),
                };
                // Reading it again costs as much as all other reads: not where it is the first anyway.
                let filler = survey
                    .filler
                    .filter(|(position, _)| *position != first.position)
                    .and_then(|(position, _)| choice_of(plan, position));
                Ok(
                    match worth::pick(&shortage, effect.horizon(at), gain(first), filler.map(gain))
                    {
                        Pick::First => first,
                        Pick::Filler => filler.unwrap_or(first),
                    },
                )
            }
            Grower::Others if at < effect.allowed_from(Grower::Others) => Err(growth),
            Grower::Others => {
                let passed_over = |token| self.passed_over.contains(token, at);
                let least = shortage.needed(KUBELET_PACE_NS);
                let scope = crossing.scope;
                let lasting = choose(
                    plan,
                    scope,
                    None,
                    passed_over,
                    None,
                    least,
                    &mut Survey::default(),
                );
                Ok(lasting.unwrap_or(first))
            }
        }
    }

    /// Kills one victim; false when nothing came of it.
    fn kill(&mut self, plan: &Arc<ArmedPlan>, choice: Choice, crossing: Crossing) -> bool {
        let victim = &plan.victims[choice.position];
        let verified = now();
        let mut attempt = self.reaper.attempt();
        let mut found = |pid| attempt.found(pid);
        match victim.files.kill.kill_workload(&mut found) {
            // Also who is dying already, of an agent's hand that is no more: what comes next is theirs.
            Ok(killed) if killed.processes > 0 || killed.dying => {
                let outcome = Outcome {
                    killed: now(),
                    processes: killed.processes,
                    spared: killed.spared,
                    complete: killed.complete,
                };
                // With the queue full they die by themselves.
                attempt.hand_over(&victim.files, self.evictions + 1);
                self.pace.note(outcome.killed);
                self.evicted(plan, choice, crossing, Some((verified, outcome)));
                true
            }
            // Nothing in it, or gone meanwhile.
            Ok(killed) if killed.complete => false,
            Err(error) if error.is_gone() => false,
            Ok(_) | Err(_) => {
                let token = victim.token;
                self.passed_over.add(token, verified);
                self.tell(Report::NotKilled { token, crossing });
                false
            }
        }
    }

    /// Reports a choice and, where it was carried out, waits for the victim's memory from now on.
    fn evicted(
        &mut self,
        plan: &Arc<ArmedPlan>,
        choice: Choice,
        crossing: Crossing,
        done: Option<(u64, Outcome)>,
    ) {
        let victim = &plan.victims[choice.position];
        self.evictions += 1;
        let number = self.evictions;
        if let Some((verified, _)) = done {
            self.dying = Some(Dying {
                plan: Arc::clone(plan),
                victim: choice.position,
                number,
                freeing: Freeing::new(choice.usage, verified),
            });
        }
        self.tell(Report::Chosen(Chosen {
            number,
            token: victim.token,
            class: victim.candidate.qos,
            rank: choice.rank,
            usage: choice.usage,
            crossing,
            verified: done.map_or_else(now, |(verified, _)| verified),
            outcome: done.map(|(_, outcome)| outcome),
        }));
    }

    /// Is the last victim's memory free?
    pub(super) fn check_dying(&mut self) {
        let Some(dying) = &mut self.dying else { return };
        let at = now();
        let victim = &dying.plan.victims[dying.victim];
        // An error is a cgroup that is gone.
        let left = victim.files.memory.usage().unwrap_or(0);
        self.shared.trace.pod(victim.token, at, left, None);
        let progress = self.reaper.progress();
        let (number, token) = (dying.number, victim.token);
        let (empty, swept) = (progress.is_empty(number), progress.is_swept(number));
        let freed = match dying.freeing.look(at, left, empty, swept) {
            Outlook::Wait => return,
            Outlook::Freed => {
                if let Some((bytes, took)) = dying.freeing.cost(at, left) {
                    self.costs.reap.learn(bytes, took);
                }
                Some(at)
            }
            Outlook::Stuck => {
                self.passed_over.add(token, at);
                None
            }
        };
        if let Some(pressure) = &self.plan.pressure {
            self.stalls.relieved(at, stalls::window(pressure));
        }
        self.dying = None;
        self.tell(Report::Freed { number, at: freed });
    }
}
