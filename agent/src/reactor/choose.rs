//! Reads usage: of a scope, and of the pods to find the one that goes first. Allocates nothing.

use podwarden_policy::{
    evict::{self, Rank, Standing},
    units::Bytes,
};

use super::{
    plan::{ArmedPlan, Scope, ScopeName, Victim},
    trace::Trace,
    watch::Look,
};
use crate::clock::monotonic as now;

/// Who goes first, and why.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice {
    pub(super) position: usize,
    pub(super) rank: Rank,
    pub(super) usage: u64,
}

/// Usage now; `None` when it cannot be read. The cache is looked at only where usage is at `floor`: that
/// costs ten times as much.
pub(super) fn look(scope: &Scope, floor: u64) -> Option<Look> {
    let usage = scope.memory.usage().ok()?;
    let working_set = if usage < floor {
        usage
    } else {
        scope.memory.stat().ok()?.working_set(usage)
    };
    Some(Look {
        at: now(),
        usage,
        working_set,
    })
}

/// The pod that goes first by its working set read now, leaving out those `passed_over` and all up to
/// `after`.
pub(super) fn choose(
    plan: &ArmedPlan,
    scope: ScopeName,
    trace: &Trace,
    passed_over: impl Fn(u64) -> bool,
    after: Option<(Rank, &str)>,
) -> Option<Choice> {
    let mut best: Option<(Choice, &Victim)> = None;
    for (position, victim) in plan.victims.iter().enumerate() {
        if !scope.contains(victim.place) || passed_over(victim.token) {
            continue;
        }
        // Gone, or nothing to free.
        let Ok(usage @ 1..) = victim.files.memory.usage() else {
            continue;
        };
        let rank = |working_set| {
            let standing = Standing {
                working_set: Some(Bytes(working_set)),
                ..victim.standing
            };
            evict::rank(plan.ranking, &standing)
        };
        let first = |rank| {
            best.as_ref()
                .is_none_or(|(b, v)| (rank, &victim.uid) < (b.rank, &v.uid))
        };
        // The working set is at most usage, and reading it costs ten times as much.
        if !first(rank(usage)) {
            trace.pod(victim.token, now(), usage, None);
            continue;
        }
        let Ok(stat) = victim.files.memory.stat() else {
            continue;
        };
        let working_set = stat.working_set(usage);
        trace.pod(victim.token, now(), usage, Some(working_set));
        let rank = rank(working_set);
        let passed = after.is_some_and(|after| (rank, &*victim.uid) <= after);
        if first(rank) && !passed {
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
