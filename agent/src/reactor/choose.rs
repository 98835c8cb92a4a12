//! Reads the candidates' usage to order them for eviction, in an array that is there before. Allocates nothing.
//!
//! What counts against a scope's level ([`counted`]: the working set, in a tier what is no page cache) is at most usage, and
//! reading it costs ten times as much. So the order is a heap by what a candidate would rank with all of its usage, and
//! what counts is read of what comes to its top.

use podwarden_policy::{
    evict::{self, Candidate, Rank},
    units::Bytes,
    worth::{Gain, Lasting, Shortage},
};

use super::{
    growth::Candidates,
    plan::{ArmedPlan, ScopeName, Victim, counted},
    room::touch,
    trace::Trace,
};
use crate::base::clock::monotonic as now;

/// Candidates that are ordered; of more, the last ones are left out.
const MOST: usize = 1024;

/// Who goes first, and why.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Choice {
    pub(crate) position: usize,
    pub(crate) rank: Rank,
    pub(super) usage: u64,
    /// What of that is its working set; all of it until that is read.
    pub(super) working_set: u64,
    /// What of that its death gains, bytes: what counts in the scope and is not promised; all of it until that is read.
    pub(super) gain: u64,
}

/// Whether a pod is left out of the order, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Skip {
    No,
    /// It was evicted, and so many bytes of what it holds are promised.
    Promised(u64),
    /// It is evicted, and a process of it may be left.
    Dying,
    /// It could not be killed, or has nothing to kill.
    PassedOver,
}

/// What a pass over the candidates found.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Survey {
    /// Of all that can be chosen.
    pub(super) candidates: Candidates,
    /// The candidate that grew most among those that use more than they requested, and by how much, bytes.
    pub(super) filler: Option<(usize, u64)>,
}

impl Survey {
    fn count(&mut self, position: usize, victim: &Victim, usage: u64, skip: Skip) {
        let growth = victim.files.seen.growth(usage);
        match skip {
            Skip::No | Skip::Promised(_) => self.candidates.add(usage, growth),
            // What it grew before it died is over; what is left of it is no growth of others.
            Skip::Dying => return self.candidates.add(usage, 0),
            // It cannot be evicted, so its growth is that of others.
            Skip::PassedOver => return self.candidates.add(usage - growth, 0),
        }
        let over_request = usage > victim.candidate.memory_request.as_u64();
        if over_request && growth > self.filler.map_or(0, |(_, most)| most) {
            self.filler = Some((position, growth));
        }
    }
}

/// A candidate as a choice in a scope; `None` when it is gone.
pub(super) fn choice_of(
    plan: &ArmedPlan,
    position: usize,
    scope: ScopeName,
    promised: u64,
) -> Option<Choice> {
    let victim = plan.victims.get(position)?;
    let usage = victim.files.memory.usage().ok()?;
    let stat = victim.files.memory.stat().ok()?;
    let gain = counted(scope, &stat, usage).saturating_sub(promised);
    Some(Choice {
        position,
        rank: rank(plan, victim, gain),
        usage,
        working_set: stat.working_set(usage),
        gain,
    })
}

/// The rank of one that uses so much of what counts, bytes.
fn rank(plan: &ArmedPlan, victim: &Victim, used: u64) -> Rank {
    let candidate = Candidate {
        working_set: Some(Bytes(used)),
        ..victim.candidate
    };
    evict::rank(plan.ranking, &candidate)
}

/// What the death of a candidate has to give at least.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Least {
    /// So many bytes.
    Used(u64),
    /// So much of a shortage, with what the candidate would have filled.
    Lasting(Shortage, Lasting),
}

impl Least {
    /// Whether the death of one that uses `usage` and gives `bytes` suffices.
    fn is_met(&self, victim: &Victim, usage: u64, bytes: u64) -> bool {
        match self {
            Self::Used(least) => bytes >= *least,
            Self::Lasting(shortage, least) => {
                let gain = Gain {
                    bytes,
                    growth: victim.files.seen.growth(usage),
                    takes: 0,
                };
                shortage.lasts(gain, *least)
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    choice: Choice,
    /// Rank and gain are by what counts, not by usage.
    exact: bool,
}

/// The candidates of a scope, those that go first at the top of a heap.
#[derive(Debug)]
pub(crate) struct Order {
    /// Never more than [`MOST`], for which there is room from the start.
    heap: Vec<Entry>,
    /// Whose candidates they are.
    scope: ScopeName,
}

impl Default for Order {
    fn default() -> Self {
        let mut heap = Vec::with_capacity(MOST);
        touch(heap.spare_capacity_mut());
        let scope = ScopeName::Kubepods;
        Self { heap, scope }
    }
}

impl Order {
    /// Takes the candidates of a scope that may give `least` and that `skip` does not leave out. What is read is noted
    /// in `trace`, for the record of an eviction.
    pub(crate) fn fill(
        &mut self,
        plan: &ArmedPlan,
        scope: ScopeName,
        trace: Option<&Trace>,
        skip: impl Fn(&Victim, u64) -> Skip,
        least: Least,
    ) -> Survey {
        self.heap.clear();
        self.scope = scope;
        let mut survey = Survey::default();
        for (position, victim) in plan.victims.iter().enumerate() {
            if !scope.contains(victim.place) {
                continue;
            }
            // Gone, or nothing to free.
            let Ok(usage @ 1..) = victim.files.memory.usage() else {
                continue;
            };
            let skip = skip(victim, usage);
            survey.count(position, victim, usage, skip);
            let gain = match skip {
                Skip::No => usage,
                Skip::Promised(promised) => usage.saturating_sub(promised),
                Skip::Dying | Skip::PassedOver => continue,
            };
            if let Some(trace) = trace {
                trace.pod(victim.token, now(), usage, None);
            }
            if gain == 0 || !least.is_met(victim, usage, gain) {
                continue;
            }
            let choice = Choice {
                position,
                rank: rank(plan, victim, gain),
                usage,
                working_set: usage,
                gain,
            };
            self.take(
                plan,
                Entry {
                    choice,
                    exact: false,
                },
            );
        }
        for parent in (0..self.heap.len() / 2).rev() {
            self.sink(plan, parent);
        }
        survey
    }

    fn take(&mut self, plan: &ArmedPlan, entry: Entry) {
        if self.heap.len() < MOST {
            self.heap.push(entry);
            return;
        }
        let all = self.heap.iter_mut();
        if let Some(last) = all.max_by(|a, b| key(plan, a).cmp(&key(plan, b)))
            && key(plan, &entry) < key(plan, last)
        {
            *last = entry;
        }
    }

    /// Takes out the one that goes first by what counts of it now, where that gives `least`. What is read is noted
    /// in `trace` as well.
    pub(crate) fn next(
        &mut self,
        plan: &ArmedPlan,
        trace: Option<&Trace>,
        least: Least,
    ) -> Option<Choice> {
        let scope = self.scope;
        loop {
            let top = self.heap.first_mut()?;
            let choice = top.choice;
            if top.exact {
                self.drop_top(plan);
                return Some(choice);
            }
            let usage = choice.usage;
            let victim = &plan.victims[choice.position];
            let stat = victim.files.memory.stat().ok();
            let working_set = stat.map(|stat| stat.working_set(usage));
            if let Some(trace) = trace {
                trace.pod(victim.token, now(), usage, working_set);
            }
            // The promised part is no page cache that could be dropped.
            let promised = usage - choice.gain;
            let counted = stat.map_or(0, |stat| {
                counted(scope, &stat, usage).saturating_sub(promised)
            });
            let gained = match least {
                Least::Used(_) => counted,
                // Shared memory is no gain then: teardown may take as long as the next eviction.
                Least::Lasting(..) => counted.saturating_sub(stat.map_or(0, |stat| stat.shmem)),
            };
            if gained == 0 || !least.is_met(victim, usage, gained) {
                self.drop_top(plan);
                continue;
            }
            top.choice.rank = rank(plan, victim, counted);
            top.choice.working_set = working_set.unwrap_or(usage);
            top.choice.gain = counted;
            top.exact = true;
            self.sink(plan, 0);
        }
    }

    fn drop_top(&mut self, plan: &ArmedPlan) {
        self.heap.swap_remove(0);
        self.sink(plan, 0);
    }

    /// Moves an entry down until none below it goes before it.
    fn sink(&mut self, plan: &ArmedPlan, mut at: usize) {
        loop {
            let children = [2 * at + 1, 2 * at + 2];
            let below = children
                .into_iter()
                .filter(|child| *child < self.heap.len());
            let first = below.min_by(|a, b| {
                let of = |place: &usize| key(plan, &self.heap[*place]);
                of(a).cmp(&of(b))
            });
            match first {
                Some(child) if key(plan, &self.heap[child]) < key(plan, &self.heap[at]) => {
                    self.heap.swap(at, child);
                    at = child;
                }
                _ => return,
            }
        }
    }
}

/// What is less goes first.
fn key<'a>(plan: &'a ArmedPlan, entry: &Entry) -> (Rank, &'a str) {
    (entry.choice.rank, &plan.victims[entry.choice.position].uid)
}
