//! Evictions for the soft threshold of pods that have time to end (`evictionMaxPodGracePeriod`): one at a time, the
//! first of the order, at the kubelet's pace. Where one has not helped, the next is the first that uses as much as is
//! missing.
//!
//! The eviction status is written first. On it the kubelet ends the pod, with its `preStop` hooks; where there is none,
//! the agent has the runtime stop it. What still runs when the time is over is killed here, and held dead from then on.
//! A hard level does not wait: the reactor may kill a pod that is about to end.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use podwarden_policy::{
    PodUid,
    evict::{self, Place},
    signal::ScopeName,
    worth::{KUBELET_PACE_NS, LONGEST_PAUSE_NS},
};

use super::{
    EvictionManager,
    hold::ToHold,
    kill::{self, Numbers},
};
use crate::{
    agent::{
        reconciler::{Context, Fact},
        soft::{Shortage, Soft},
    },
    api::types::Eviction,
    base::clock::monotonic,
    pods::PodSet,
    reactor::{
        choose::{Choice, Least, Order, Skip},
        plan::{ArmedPlan, Victim, VictimFiles},
        report::{Crossing, Outcome, Report},
    },
};

const PACE: Duration = Duration::from_nanos(KUBELET_PACE_NS);
const LONGEST_PAUSE: Duration = Duration::from_nanos(LONGEST_PAUSE_NS);

#[derive(Debug)]
pub(super) struct Graceful {
    /// The most time that a pod has, seconds; 0 where pods are killed at once, by the reactor.
    most: u16,
    ending: Vec<Ending>,
    /// Pods that an agent before this one has told to end, and until when they have time.
    recalled: BTreeMap<PodUid, Instant>,
    pace: Pace,
    reported: Reported,
}

/// What was reported of a threshold that is crossed.
#[derive(Debug, Default)]
struct Reported {
    crossing: bool,
    no_candidate: bool,
}

/// A pod that was told to end.
#[derive(Debug)]
struct Ending {
    uid: PodUid,
    number: u64,
    files: Arc<VictimFiles>,
    time: Time,
    /// By how much the threshold was missed when it was chosen, bytes.
    excess: u64,
}

/// What time it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Time {
    until: Instant,
    killed: Option<Instant>,
}

/// What is to be done with a pod that was told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Wait,
    Kill,
    /// Nothing runs in it.
    Ended,
    /// It was killed, and waited for long enough.
    GiveUp,
}

impl Time {
    fn next(self, is_empty: bool, now: Instant) -> Next {
        match self.killed {
            _ if is_empty => Next::Ended,
            Some(killed) if now.saturating_duration_since(killed) >= kill::LONGEST => Next::GiveUp,
            None if now >= self.until => Next::Kill,
            Some(_) | None => Next::Wait,
        }
    }
}

/// When the next pod may go.
#[derive(Debug, Default)]
struct Pace {
    next: Option<Instant>,
    pause: Duration,
}

impl Pace {
    fn allows(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| now >= next)
    }

    /// Whether the last eviction has changed nothing.
    fn is_slower(&self) -> bool {
        self.pause > PACE
    }

    /// An eviction is over; the pause doubles where it has changed nothing.
    fn over(&mut self, has_helped: bool, now: Instant) {
        self.pause = match has_helped {
            true => PACE,
            false => (2 * self.pause.max(PACE)).min(LONGEST_PAUSE),
        };
        self.next = Some(now + self.pause);
    }
}

impl Graceful {
    /// Pods have `most` seconds at most; 0 for none.
    pub(super) fn new(most: u16) -> Self {
        Self {
            most,
            ending: Vec::new(),
            recalled: BTreeMap::new(),
            pace: Pace::default(),
            reported: Reported::default(),
        }
    }

    /// Whether the soft threshold is this part's, rather than the reactor's.
    pub(super) fn is_on(&self) -> bool {
        self.most > 0
    }

    pub(super) fn due(&self) -> Option<Duration> {
        (!self.ending.is_empty() || !self.recalled.is_empty()).then_some(kill::LOOK)
    }

    /// Takes an eviction by an agent before this one; false where the pod's time is over.
    pub(super) fn recall(&mut self, eviction: &Eviction) -> bool {
        let (Some(told), Some(grace)) = (eviction.timeline.killed_nanos, eviction.grace_seconds)
        else {
            return false;
        };
        let since = Duration::from_nanos(monotonic().saturating_sub(told));
        let left = Duration::from_secs(grace.into()).saturating_sub(since);
        if !left.is_zero() {
            (self.recalled).insert(eviction.pod.uid.clone(), Instant::now() + left);
        }
        !left.is_zero()
    }

    /// Whether the pod was told to end, and something may run in it yet.
    pub(super) fn is_ending(&self, uid: &PodUid) -> bool {
        self.recalled.contains_key(uid) || self.ending.iter().any(|ending| ending.uid == *uid)
    }

    pub(super) fn forget(&mut self, uid: &PodUid) {
        self.recalled.remove(uid);
    }

    /// The reactor has killed a pod that had time to end; false for another pod.
    pub(super) fn cut_short(&mut self, uid: &PodUid, now: Instant) -> bool {
        let recalled = self.recalled.remove(uid).is_some();
        let ending = self.ending.iter_mut().find(|ending| ending.uid == *uid);
        match ending {
            Some(ending) => {
                ending.time.killed.get_or_insert(now);
                true
            }
            None => recalled,
        }
    }

    /// Lets go of recalled pods whose files were not opened in time.
    fn overdue(&mut self, now: Instant) -> Vec<PodUid> {
        let late = (self.recalled).extract_if(.., |_, until| now >= *until + kill::LONGEST);
        late.map(|(uid, _)| uid).collect()
    }

    /// Takes on the recalled pods whose files are open.
    fn take_on(&mut self, armed: &ArmedPlan, numbers: &mut Numbers) {
        self.recalled.retain(|uid, until| {
            let Some(victim) = armed.victim(uid.as_str()) else {
                return true;
            };
            self.ending.push(Ending {
                uid: uid.clone(),
                number: numbers.next(),
                files: Arc::clone(&victim.files),
                time: Time {
                    until: *until,
                    killed: None,
                },
                excess: 0,
            });
            false
        });
    }
}

/// The pod that is first of those that use so much, of any amount or, with `missing`, of as much; else of any.
fn choose<T>(missing: Option<u64>, mut first: impl FnMut(u64) -> Option<T>) -> Option<T> {
    first(missing.unwrap_or(0)).or_else(|| first(0))
}

/// The first pod in the reactor's order in which something runs and whose working set is at least that, bytes.
fn first(armed: &ArmedPlan, evicted: &BTreeSet<PodUid>, least: u64) -> Option<Choice> {
    let mut order = Order::default();
    let least = Least::Used(least);
    let skip = |victim: &Victim, _| match evicted.contains(&*victim.uid) {
        true => Skip::Dying,
        false => Skip::No,
    };
    order.fill(armed, ScopeName::Kubepods, None, skip, least);
    let mut choices = std::iter::from_fn(|| order.next(armed, None, least));
    choices.find(|choice| !kill::is_empty(&armed.victims[choice.position].files))
}

impl EvictionManager {
    /// Looks at pods that end, and tells the next one to end where the soft threshold is crossed.
    pub(super) fn evict_gracefully(&mut self, cx: Context<'_>, now: Instant) -> Vec<Fact> {
        let shortage = self.soft.as_ref().and_then(Soft::shortage);
        let mut reports = self.look_at_ending(shortage, now);
        match shortage.filter(|_| self.graceful.is_on()) {
            None => (self.graceful.pace, self.graceful.reported) = Default::default(),
            Some(shortage) => reports.extend(self.tell_next(shortage, &cx.known.set(), now)),
        }
        let mut facts = Vec::new();
        for report in reports {
            self.take(report, cx, &mut facts);
        }
        self.hold_dead(&cx.known.set());
        facts
    }

    /// Kills those whose time is over; reports those that have ended.
    fn look_at_ending(&mut self, shortage: Option<Shortage>, now: Instant) -> Vec<Report> {
        let graceful = &mut self.graceful;
        if !graceful.recalled.is_empty() {
            graceful.take_on(&self.reactor.armed(), &mut self.numbers);
            for uid in graceful.overdue(now) {
                self.to_hold.insert(uid, ToHold::ended(monotonic()));
            }
        }
        let mut reports = Vec::new();
        let mut left = Vec::new();
        for mut ending in std::mem::take(&mut graceful.ending) {
            let files = &ending.files;
            let next = ending.time.next(kill::is_empty(files), now);
            if next != Next::Wait && ending.time.killed.is_none() {
                // A kubelet that has not seen the status starts it again.
                let dead = ToHold::ended(monotonic());
                self.to_hold.insert(ending.uid.clone(), dead);
            }
            match next {
                Next::Wait => left.push(ending),
                Next::Kill => {
                    match kill::kill(files) {
                        Ok(_) => tracing::info!(
                            uid = %ending.uid,
                            "killed what still ran in the evicted pod: its time to end is over"
                        ),
                        Err(error) => tracing::warn!(
                            %error,
                            uid = %ending.uid,
                            "what still runs in the evicted pod could not be killed"
                        ),
                    }
                    ending.time.killed = Some(now);
                    left.push(ending);
                }
                Next::Ended | Next::GiveUp => {
                    let excess = shortage.map_or(0, Shortage::excess);
                    graceful.pace.over(excess < ending.excess, now);
                    reports.push(kill::freed(ending.number, files, next == Next::Ended));
                }
            }
        }
        graceful.ending = left;
        reports
    }

    /// Tells the first pod of the order to end, where none ends yet.
    fn tell_next(&mut self, shortage: Shortage, set: &PodSet, now: Instant) -> Vec<Report> {
        let graceful = &mut self.graceful;
        let crossing = crossing(shortage);
        let mut reports = Vec::new();
        if !std::mem::replace(&mut graceful.reported.crossing, true) {
            reports.push(Report::Crossed(crossing));
        }
        // One ends already, or ended a moment ago.
        if graceful.due().is_some() || !graceful.pace.allows(now) {
            return reports;
        }
        let armed = self.reactor.armed();
        let missing = graceful.pace.is_slower().then(|| shortage.excess());
        let chosen = choose(missing, |least| {
            first(&armed, &self.evictions.evicted, least)
        });
        let Some(Choice { position, rank, .. }) = chosen else {
            if !std::mem::replace(&mut graceful.reported.no_candidate, true) {
                reports.push(Report::NoCandidate(crossing));
            }
            return reports;
        };
        let victim = &armed.victims[position];
        let mut pods = set.pods.iter().map(|known| &known.pod);
        let pod = pods.find(|pod| *pod.uid == *victim.uid);
        let most = u32::from(graceful.most);
        let grace = pod.map_or(most, |pod| evict::grace_seconds(pod, Some(most)));
        let number = self.numbers.next();
        let outcome = armed.enforce.then(|| Outcome {
            killed: monotonic(),
            processes: kill::processes(&victim.files),
            spared: true,
            complete: true,
            grace_seconds: u16::try_from(grace).unwrap_or(u16::MAX),
        });
        if outcome.is_some() {
            let uid = &*victim.uid;
            tracing::info!(uid, grace, "the pod is evicted and has time to end");
            graceful.ending.push(Ending {
                uid: PodUid::from(uid),
                number,
                files: Arc::clone(&victim.files),
                time: Time {
                    until: now + Duration::from_secs(grace.into()),
                    killed: None,
                },
                excess: shortage.excess(),
            });
        } else {
            graceful.pace.over(false, now);
        }
        graceful.reported.no_candidate = false;
        reports.push(kill::chosen(
            number,
            victim,
            Place::Memory(rank),
            crossing,
            outcome,
        ));
        reports
    }
}

fn crossing(shortage: Shortage) -> Crossing {
    Crossing {
        level: shortage.level,
        usage: shortage.usage,
        working_set: shortage.working_set,
        target: shortage.level,
        ..kill::sampled(ScopeName::Kubepods)
    }
}

#[cfg(test)]
mod tests;
