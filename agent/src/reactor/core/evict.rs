//! From the choice of a victim to its freed memory.

use std::sync::Arc;

use podwarden_cgroup::Killed;
use podwarden_policy::{
    evict::Place,
    worth::{self, Gain, Grower, Growth, Pick, Shortage},
};

use super::{Choice, Core, Least, Survey, choice_of, skip};
use crate::{
    base::clock::monotonic as now,
    reactor::{
        dying::Dying,
        fill::DETECTION_NS,
        growth::{self, index},
        plan::{ArmedPlan, ScopeName, Victim},
        report::{Chosen, Crossing, Outcome, Report},
    },
};

/// What came of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Evicted {
    /// A pod was killed, or one that was killed before and lived on.
    Killed,
    /// A pod would have been (observe mode).
    Told,
    /// No pod may be evicted, or can be: why.
    None(Report),
}

/// Why the next eviction waits, with what grew.
#[derive(Debug, Clone, Copy)]
enum Held {
    ByOthers(Growth),
    /// What they use, bytes.
    ByStrangers(u64),
}

impl Held {
    fn report(self, crossing: Crossing) -> Report {
        match self {
            Self::ByOthers(growth) => Report::OthersGrow(crossing, growth),
            Self::ByStrangers(usage) => Report::StrangersGrow(crossing, usage),
        }
    }
}

/// The pod that is evicted, why, what it uses, and what of that is its working set, bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    pub(super) position: usize,
    pub(super) place: Place,
    pub(super) usage: u64,
    pub(super) working_set: u64,
}

impl From<Choice> for Taken {
    fn from(choice: Choice) -> Self {
        Self {
            position: choice.position,
            place: Place::Memory(choice.rank),
            usage: choice.usage,
            working_set: choice.working_set,
        }
    }
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
        let scope = crossing.scope;
        // No further eviction, which the limit would count.
        if plan.enforce && self.kill_again(crossing, excess) {
            return Evicted::Killed;
        }
        if plan.enforce && !self.pace.allows(now()) {
            return Evicted::None(Report::RateLimited(crossing));
        }
        let least = Least::Used(least);
        let survey = self.order(plan, scope, least);
        let mut amount = None;
        // One that cannot be killed, or has nothing to kill, does not save the others.
        let mut next = self.order.next(plan, Some(&self.shared.trace), least);
        while let Some(first) = next {
            let at = now();
            let choice = match self.weigh(plan, &crossing, excess, first, &survey, &mut amount) {
                Ok(choice) => choice,
                Err(held) => return Evicted::None(held.report(crossing)),
            };
            // Memory is on its way: none goes beside it that uses no more than it requested.
            let request = plan.victims[choice.position].candidate.memory_request;
            if self.dying.give_back(scope) && choice.usage <= request.as_u64() {
                return Evicted::None(Report::Awaited(crossing));
            }
            if !plan.enforce {
                self.evicted(plan, choice.into(), crossing, None);
                return Evicted::Told;
            }
            if self.kill(plan, choice.into(), crossing) {
                if let Some(index) = index(scope) {
                    self.effects[index].evicted(at);
                }
                return Evicted::Killed;
            }
            // One that went ahead of the first is left out from now on, and the first is still to be tried.
            if choice.position == first.position {
                next = self.order.next(plan, Some(&self.shared.trace), least);
            }
        }
        Evicted::None(Report::NoCandidate(crossing))
    }

    /// Orders the candidates that use `least` bytes.
    fn order(&mut self, plan: &ArmedPlan, scope: ScopeName, least: Least) -> Survey {
        let (dying, at) = (&self.dying, now());
        let skip = |victim: &Victim, usage| skip(dying, victim, usage, at);
        let trace = Some(&*self.shared.trace);
        self.order.fill(plan, scope, trace, skip, least)
    }

    /// The candidate that is worth evicting: the first in the order, or one whose death lasts longer. An error
    /// when the next eviction has to wait. `amount` is [`Core::lasting`]'s, `None` at first.
    fn weigh(
        &mut self,
        plan: &ArmedPlan,
        crossing: &Crossing,
        excess: u64,
        first: Choice,
        survey: &Survey,
        amount: &mut Option<usize>,
    ) -> Result<Choice, Held> {
        let shortage = self.shortage(plan, crossing, excess, survey);
        let strangers = growth::strangers(plan, crossing.scope);
        if shortage.is_of(strangers) {
            return Err(Held::ByStrangers(strangers.usage));
        }
        // Tasks that wait for memory have no level that anything could grow past.
        let Some(index) = index(crossing.scope) else {
            return Ok(first);
        };
        let others_grow = || Held::ByOthers(shortage.growth);
        let at = now();
        let grower = self.effects[index].grower(&shortage.growth, at);
        let effect = self.effects[index];
        let pause = effect.allowed_from(grower).saturating_sub(at);
        if pause > 0 && !shortage.reaches_limit(pause) {
            return Err(others_grow());
        }
        // Reading it again costs as much as all other reads: not where it is the first anyway.
        let filler = survey
            .filler
            .filter(|(position, _)| *position != first.position)
            .and_then(|(position, _)| self.filler(plan, position, crossing.scope));
        match grower {
            Grower::Candidates => {
                let gains = filler.map(|filler| self.gain(plan, filler));
                let horizon = effect.horizon(at);
                match worth::pick(&shortage, horizon, self.gain(plan, first), gains) {
                    Pick::First => Ok(first),
                    Pick::Filler => Ok(filler.unwrap_or(first)),
                }
            }
            Grower::Others => self
                .lasting(plan, crossing.scope, &shortage, pause, filler, amount)
                .or((pause == 0).then_some(first))
                .ok_or_else(others_grow),
        }
    }

    fn shortage(
        &self,
        plan: &ArmedPlan,
        crossing: &Crossing,
        excess: u64,
        survey: &Survey,
    ) -> Shortage {
        let Crossing { scope, usage, .. } = *crossing;
        let growth = self.growths.of(scope, usage, survey.candidates);
        let limit = plan.scopes.iter().find(|of| of.name == scope);
        let limit = limit.and_then(|scope| scope.limit());
        Shortage {
            excess,
            rate: self.rate(crossing, &growth, now()),
            growth,
            room: limit.map(|limit| limit.saturating_sub(usage)),
        }
    }

    fn gain(&self, plan: &ArmedPlan, choice: Choice) -> Gain {
        let seen = &plan.victims[choice.position].files.seen;
        Gain {
            bytes: choice.gain,
            growth: seen.growth(choice.usage),
            takes: DETECTION_NS.saturating_add(self.costs.reap.of(choice.gain)),
        }
    }

    /// The candidate whose death lasts ([`Shortage::lasting`]), with `pause` nanoseconds to wait. `amount` is which of
    /// the amounts the candidates are ordered by: once in a decision, however many cannot be killed.
    fn lasting(
        &mut self,
        plan: &ArmedPlan,
        scope: ScopeName,
        shortage: &Shortage,
        pause: u64,
        filler: Option<Choice>,
        amount: &mut Option<usize>,
    ) -> Option<Choice> {
        let from = amount.unwrap_or(0);
        let mut amounts = shortage.lasting(pause).into_iter().enumerate().skip(from);
        amounts.find_map(|(index, lasting)| {
            let lasting = lasting?;
            let least = Least::Lasting(*shortage, lasting);
            if *amount != Some(index) {
                *amount = Some(index);
                let (dying, at) = (&self.dying, now());
                let skip = |victim: &Victim, usage| skip(dying, victim, usage, at);
                let trace = Some(&*self.shared.trace);
                self.lasting.fill(plan, scope, trace, skip, least);
            }
            let first = self.lasting.next(plan, None, least);
            first.or_else(|| filler.filter(|f| shortage.lasts(self.gain(plan, *f), lasting)))
        })
    }

    /// The candidate that fills, unless it was tried just now, or has nothing that counts in the scope.
    fn filler(&self, plan: &ArmedPlan, position: usize, scope: ScopeName) -> Option<Choice> {
        let victim = plan.victims.get(position)?;
        let promised = self.dying.promised_by(victim.token)?;
        let choice = choice_of(plan, position, scope, promised)?;
        let passed_over = victim.files.seen.is_passed_over(choice.usage, now());
        (choice.gain > 0 && !passed_over).then_some(choice)
    }

    /// How fast a scope fills at `at`. Where victims die, what was measured before counts the dead; right after
    /// an eviction nothing is measured yet.
    fn rate(&self, crossing: &Crossing, growth: &Growth, at: u64) -> u64 {
        let sampled = self.growths.rate(growth, at);
        match self.dying.are_in(crossing.scope) {
            true => sampled,
            false => crossing.fill_rate.max(sampled),
        }
    }

    /// Kills one victim; false when nothing came of it.
    pub(super) fn kill(
        &mut self,
        plan: &Arc<ArmedPlan>,
        choice: Taken,
        crossing: Crossing,
    ) -> bool {
        let victim = &plan.victims[choice.position];
        let verified = now();
        let mut attempt = self.reaper.attempt();
        let mut found = |pid| attempt.found(pid);
        match victim.files.kill.signal_workload(&mut found) {
            // Also who is dying already, of an agent's hand that is no more: what comes next is theirs.
            Ok(killed) if killed.processes > 0 || killed.dying => {
                let outcome = Outcome {
                    killed: now(),
                    processes: killed.processes,
                    spared: killed.spared,
                    complete: killed.complete,
                    grace_seconds: 0,
                };
                attempt.hand_over(&victim.files, self.evictions + 1);
                self.pace.note(outcome.killed);
                self.evicted(plan, choice, crossing, Some((verified, outcome)));
                true
            }
            // Nothing in it, or gone meanwhile.
            Ok(Killed { complete: true, .. }) => remember(victim, choice.usage, verified),
            Err(error) if error.is_gone() => remember(victim, choice.usage, verified),
            Ok(_) | Err(_) => {
                let token = victim.token;
                victim.files.seen.leave_out(verified);
                self.tell(Report::NotKilled { token, crossing });
                false
            }
        }
    }

    /// Reports a choice and, where it was carried out, waits for the victim's memory from now on.
    pub(super) fn evicted(
        &mut self,
        plan: &Arc<ArmedPlan>,
        choice: Taken,
        crossing: Crossing,
        done: Option<(u64, Outcome)>,
    ) {
        let victim = &plan.victims[choice.position];
        let shared = victim.files.memory.stat().map_or(0, |stat| stat.shmem);
        self.evictions += 1;
        let number = self.evictions;
        if let Some((verified, _)) = done {
            let usage = choice.usage;
            self.dying
                .add(Dying::new(plan, choice.position, number, usage, verified));
            if plan.pids.is_some() {
                self.pids.killed(plan, victim.token, verified);
            }
        }
        self.tell(Report::Chosen(Chosen {
            number,
            token: victim.token,
            class: victim.candidate.qos,
            place: choice.place,
            usage: choice.usage,
            working_set: choice.working_set,
            shared,
            crossing,
            verified: done.map_or_else(now, |(verified, _)| verified),
            outcome: done.map(|(_, outcome)| outcome),
        }));
    }
}

/// Remembers that a victim has nothing to kill; false, for nothing came of it.
fn remember(victim: &Victim, usage: u64, at: u64) -> bool {
    victim.files.seen.nothing_to_kill(usage, at);
    false
}
