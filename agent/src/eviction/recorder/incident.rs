//! The incident at the moment of the choice, before the reactor overwrites its readings.

use podwarden_policy::{
    evict::{self, Candidate, Rank},
    signal::Signal,
    units::Bytes,
};

use crate::{
    api::types::{Level, PodRef, Ranked},
    reactor::{
        plan::{ArmedPlan, ScopeName},
        report::Chosen,
        trace::{Reading, Subject},
    },
};

/// How many of the ranking are kept.
const SHOWN: usize = 8;

#[derive(Debug, Default)]
pub struct Incident {
    pub(super) signal: Signal,
    pub(super) origin: u64,
    /// The cgroup whose level it was; `None` for an OOM kill.
    pub(super) scope: Option<ScopeName>,
    /// The pod's name in the trace.
    pub(super) token: Option<u64>,
    /// When the last step that is known was taken.
    pub(super) last_step: u64,
    pub(super) levels: Vec<Level>,
    pub(super) ranking: Vec<Ranked>,
    pub(super) candidates: u32,
    pub(super) readings: Vec<Reading>,
}

impl Incident {
    /// Of an eviction: `plan` is the one in force and `readings` what the reactor has read lately.
    pub fn of_choice(
        chosen: &Chosen,
        plan: &ArmedPlan,
        readings: Vec<Reading>,
        pod_of: impl Fn(u64) -> Option<PodRef>,
    ) -> Self {
        let ranked = rank(chosen, plan, &readings);
        let shown = ranked.iter().take(SHOWN).map(|seen| Ranked {
            pod: pod_of(seen.token).unwrap_or_default(),
            usage_bytes: seen.usage,
            working_set_bytes: seen.working_set,
            reason: seen.rank.to_string(),
        });
        Self {
            signal: chosen.crossing.scope.signal(),
            origin: chosen.crossing.crossed,
            scope: Some(chosen.crossing.scope),
            token: Some(chosen.token),
            last_step: chosen.outcome.map_or(chosen.verified, |o| o.killed),
            levels: levels(plan),
            ranking: shown.collect(),
            candidates: u32::try_from(ranked.len()).unwrap_or(u32::MAX),
            readings,
        }
    }

    /// Of the kernel's choice at `at`.
    pub fn of_oom(at: u64, plan: &ArmedPlan, readings: Vec<Reading>) -> Self {
        Self {
            signal: Signal::MemoryLimit,
            origin: at,
            last_step: at,
            levels: levels(plan),
            readings,
            ..Self::default()
        }
    }

    /// Of a tier that is above its target since `at`.
    pub fn of_gap(scope: ScopeName, at: u64, plan: &ArmedPlan, readings: Vec<Reading>) -> Self {
        Self {
            signal: scope.signal(),
            origin: at,
            scope: Some(scope),
            last_step: at,
            levels: levels(plan),
            readings,
            ..Self::default()
        }
    }

    /// The victim's memory was seen free.
    pub fn freed(mut self, at: Option<u64>) -> Self {
        self.last_step = self.last_step.max(at.unwrap_or(0));
        self
    }
}

fn levels(plan: &ArmedPlan) -> Vec<Level> {
    let levels = plan.scopes.iter().map(|scope| Level {
        scope: scope.name,
        level_bytes: scope.level,
        target_bytes: scope.target,
    });
    levels.collect()
}

struct Seen<'a> {
    rank: Rank,
    uid: &'a str,
    token: u64,
    usage: u64,
    working_set: Option<u64>,
}

/// The candidates as the reactor saw them, in its order. Of most it read usage alone, which bounds the
/// working set: that was enough to rank others first.
fn rank<'a>(chosen: &Chosen, plan: &'a ArmedPlan, readings: &[Reading]) -> Vec<Seen<'a>> {
    let choosing = chosen.crossing.wake..=chosen.verified;
    let mut seen: Vec<Seen<'a>> = plan
        .victims
        .iter()
        .filter(|victim| chosen.crossing.scope.contains(victim.place))
        .filter_map(|victim| {
            let of =
                |r: &&Reading| r.subject == Subject::Pod(victim.token) && choosing.contains(&r.at);
            let reading = readings.iter().rev().find(of)?;
            let candidate = Candidate {
                working_set: Some(Bytes(reading.working_set.unwrap_or(reading.usage))),
                ..victim.candidate
            };
            Some(Seen {
                rank: evict::rank(plan.ranking, &candidate),
                uid: &victim.uid,
                token: victim.token,
                usage: reading.usage,
                working_set: reading.working_set,
            })
        })
        .collect();
    seen.sort_by(|a, b| (a.rank, a.uid).cmp(&(b.rank, b.uid)));
    seen
}
