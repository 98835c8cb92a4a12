//! Reads the candidates' usage to choose the victim. Allocates nothing.

use podwarden_policy::{
    evict::{self, Candidate, Rank},
    units::Bytes,
};

use super::{
    growth::Candidates,
    plan::{ArmedPlan, ScopeName, Victim},
    trace::Trace,
};
use crate::base::clock::monotonic as now;

/// Who goes first, and why.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice {
    pub(super) position: usize,
    pub(super) rank: Rank,
    pub(super) usage: u64,
}

/// What a pass over the candidates found besides the first.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Survey {
    /// Of all that can be chosen.
    pub(super) candidates: Candidates,
    /// The candidate that grew most among those that use more than they requested, and by how much, bytes.
    pub(super) filler: Option<(usize, u64)>,
}

impl Survey {
    fn count(&mut self, position: usize, victim: &Victim, usage: u64) {
        let growth = victim.files.seen.growth(usage);
        self.candidates.add(usage, growth);
        let over_request = usage > victim.candidate.memory_request.as_u64();
        if over_request && growth > self.filler.map_or(0, |(_, most)| most) {
            self.filler = Some((position, growth));
        }
    }
}

/// A candidate as a choice; `None` when it is gone.
pub(super) fn choice_of(plan: &ArmedPlan, position: usize) -> Option<Choice> {
    let victim = plan.victims.get(position)?;
    let usage = victim.files.memory.usage().ok()?;
    let working_set = victim.files.memory.stat().ok()?.working_set(usage);
    let candidate = Candidate {
        working_set: Some(Bytes(working_set)),
        ..victim.candidate
    };
    Some(Choice {
        position,
        rank: evict::rank(plan.ranking, &candidate),
        usage,
    })
}

/// The pod that goes first by its working set read now, leaving out those `passed_over` and all up to
/// `after`, and those that use less than `least` bytes. What is read is noted in `trace`, for the record of an
/// eviction, and counted in `survey`.
pub(super) fn choose(
    plan: &ArmedPlan,
    scope: ScopeName,
    trace: Option<&Trace>,
    passed_over: impl Fn(u64) -> bool,
    after: Option<(Rank, &str)>,
    least: u64,
    survey: &mut Survey,
) -> Option<Choice> {
    let note = |token, usage, working_set| {
        if let Some(trace) = trace {
            trace.pod(token, now(), usage, working_set);
        }
    };
    let mut best: Option<(Choice, &Victim)> = None;
    for (position, victim) in plan.victims.iter().enumerate() {
        if !scope.contains(victim.place) || passed_over(victim.token) {
            continue;
        }
        // Gone, or nothing to free.
        let Ok(usage @ 1..) = victim.files.memory.usage() else {
            continue;
        };
        survey.count(position, victim, usage);
        if usage < least {
            continue;
        }
        let rank = |working_set| {
            let candidate = Candidate {
                working_set: Some(Bytes(working_set)),
                ..victim.candidate
            };
            evict::rank(plan.ranking, &candidate)
        };
        let first = |rank| {
            best.as_ref()
                .is_none_or(|(b, v)| (rank, &victim.uid) < (b.rank, &v.uid))
        };
        // The working set is at most usage, and reading it costs ten times as much.
        if !first(rank(usage)) {
            note(victim.token, usage, None);
            continue;
        }
        let Ok(stat) = victim.files.memory.stat() else {
            continue;
        };
        let working_set = stat.working_set(usage);
        note(victim.token, usage, Some(working_set));
        let rank = rank(working_set);
        let passed = after.is_some_and(|after| (rank, &*victim.uid) <= after);
        if first(rank) && !passed && working_set >= least {
            let choice = Choice {
                position,
                rank,
                usage,
            };
            best = Some((choice, victim));
        }
    }
    best.map(|(choice, _)| choice)
}
