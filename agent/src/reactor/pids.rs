//! Process ids: a fork bomb is seen by the number of tasks, of the node and of all pods, and ended before nothing can
//! fork any more. Allocates nothing once it runs.
//!
//! The figures are the kubelet's (`Stats` of kubelet `pkg/kubelet/stats/pidlimit/pidlimit_linux.go`) and the pids
//! controller's. Both are cheap to read and exact, so that they are sampled on every kernel: the sleep shrinks with
//! what is left.

use std::{fs::File, io, os::unix::fs::FileExt as _, sync::Arc, time::Duration};

use podwarden_cgroup::UsageReader;
use podwarden_policy::{evict::PidRank, worth::KUBELET_PACE_NS};

use super::{
    places::keep,
    plan::{ArmedPlan, Victim},
    room::touch,
};
use crate::base::clock::nanos;

const LOADAVG: &str = "/proc/loadavg";

/// As fast as one CPU forks, tasks per second: a thread takes 10 us and more.
const FORK_RATE_PER_CPU: u64 = 100_000;

/// A victim of which no process ended for this long has processes that stay, nanoseconds. Hundreds that share slow CPUs
/// end all at once, and late.
const LONGEST_WAIT_NS: u64 = 60_000_000_000;

/// Victims whose processes are awaited at a time; of more, the oldest one's count again.
const MOST_ENDING: usize = 16;

/// Where tasks are counted.
#[derive(Debug)]
pub enum Tasks {
    /// Of the node: the fourth field of `/proc/loadavg` (proc_loadavg(5)).
    Node(File),
    /// Of a cgroup and all below it: `pids.current`.
    Cgroup(UsageReader),
}

impl Tasks {
    /// Opens the node's figure.
    pub fn of_node() -> io::Result<Self> {
        File::open(LOADAVG).map(Self::Node)
    }

    /// How many there are; `None` where that cannot be read.
    pub fn count(&self) -> Option<u64> {
        match self {
            Self::Node(file) => {
                let mut buffer = [0; 128];
                let length = file.read_at(&mut buffer, 0).ok()?;
                let text = str::from_utf8(buffer.get(..length)?).ok()?;
                let (_, all) = text.split_ascii_whitespace().nth(3)?.split_once('/')?;
                all.parse().ok()
            }
            Self::Cgroup(usage) => usage.usage().ok(),
        }
    }
}

/// From so many tasks on pods are evicted.
#[derive(Debug)]
pub struct PidLevel {
    /// What is counted.
    pub tasks: Tasks,
    /// Where the reactor acts, tasks.
    pub level: u64,
    /// Once it has acted it goes on until there are fewer than this.
    pub target: u64,
}

/// Where `pid.available` is configured.
#[derive(Debug)]
pub struct Pids {
    /// The node's level, and the pods' below their limit.
    pub levels: Vec<PidLevel>,
    /// The processes of every candidate, ordered by [`Victim::token`].
    processes: Vec<(u64, Arc<UsageReader>)>,
    /// Those of pods of which no source has told yet.
    strangers: Vec<UsageReader>,
}

impl Pids {
    /// The files of every candidate's processes, with [`Victim::token`].
    pub fn processes(&self) -> &[(u64, Arc<UsageReader>)] {
        &self.processes
    }

    /// Of candidates, and strangers, and the files of their processes.
    pub fn new(
        levels: Vec<PidLevel>,
        mut processes: Vec<(u64, Arc<UsageReader>)>,
        strangers: Vec<UsageReader>,
    ) -> Self {
        processes.sort_by_key(|(token, _)| *token);
        Self {
            levels,
            processes,
            strangers,
        }
    }

    /// How many processes the strangers have, where that is `excess` or more, and more than any candidate has.
    pub(super) fn is_of_strangers(&self, excess: u64) -> Option<u64> {
        let count = |of: &UsageReader| of.usage().unwrap_or(0);
        let strangers: u64 = self.strangers.iter().map(count).sum();
        let most = || self.processes.iter().map(|(_, of)| count(of)).max();
        let theirs = strangers > 0 && strangers >= excess && Some(strangers) > most();
        theirs.then_some(strangers)
    }

    /// How many processes a pod has; `None` where it is gone.
    pub(super) fn of(&self, token: u64) -> Option<u64> {
        let place = self.processes.binary_search_by_key(&token, |(of, _)| *of);
        self.processes[place.ok()?].1.usage().ok()
    }
}

/// Candidates that are ordered; of more, the last ones are left out.
const MOST: usize = 1024;

/// The candidates in the kubelet's order, in an array that is there before.
#[derive(Debug)]
pub(super) struct PidOrder {
    /// Never more than [`MOST`]; who goes first is the last.
    order: Vec<(PidRank, usize)>,
}

impl Default for PidOrder {
    fn default() -> Self {
        let mut order = Vec::with_capacity(MOST);
        touch(order.spare_capacity_mut());
        Self { order }
    }
}

impl PidOrder {
    /// Takes the candidates that have `least` processes and that `skip` does not leave out.
    pub(super) fn fill(
        &mut self,
        pids: &Pids,
        victims: &[Victim],
        least: u64,
        skip: impl Fn(&Victim) -> bool,
    ) {
        self.order.clear();
        let key = |(rank, position): &(PidRank, usize)| (*rank, &*victims[*position].uid);
        for (position, victim) in victims.iter().enumerate() {
            let Some(processes) = pids.of(victim.token).filter(|n| *n >= least.max(1)) else {
                continue;
            };
            if skip(victim) {
                continue;
            }
            let entry = (PidRank::new(victim.candidate.priority, processes), position);
            if self.order.len() < MOST {
                self.order.push(entry);
                continue;
            }
            let all = self.order.iter_mut();
            if let Some(last) = all.max_by(|a, b| key(a).cmp(&key(b)))
                && key(&entry) < key(last)
            {
                *last = entry;
            }
        }
        self.order.sort_unstable_by(|a, b| key(b).cmp(&key(a)));
    }

    /// Takes out the one that goes first.
    pub(super) fn next(&mut self) -> Option<(usize, PidRank)> {
        let (rank, position) = self.order.pop()?;
        Some((position, rank))
    }
}

/// What a look found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shortage {
    pub(super) level: u64,
    pub(super) tasks: u64,
    /// How many have to end.
    pub(super) excess: u64,
    /// It is the first look that found it.
    pub(super) first: bool,
}

/// A victim whose processes were killed. Times are `CLOCK_MONOTONIC` nanoseconds.
#[derive(Debug)]
struct Ending {
    /// Its plan: the next one has no file of an evicted pod. What holds the files is freed by the reconciler.
    plan: Arc<ArmedPlan>,
    token: u64,
    /// When it was killed.
    killed: u64,
    /// The fewest processes that it had since then.
    left: u64,
    /// When there were that few for the first time.
    fell: u64,
}

impl Ending {
    /// How many of its processes end at `now`; `None` where nothing more is to come.
    fn look(&mut self, now: u64) -> Option<u64> {
        let left = self.plan.pids.as_ref()?.of(self.token)?;
        if left < self.left {
            (self.left, self.fell) = (left, now);
        }
        (self.left > 0 && now.saturating_sub(self.fell) < LONGEST_WAIT_NS).then_some(self.left)
    }
}

/// Where the levels stand. Times are `CLOCK_MONOTONIC` nanoseconds.
#[derive(Debug, Default)]
pub(super) struct PidWatch {
    due: u64,
    /// A level is reached: the target counts.
    reached: bool,
    /// All is said until no level is reached.
    settled: bool,
    /// No candidate was said.
    said: bool,
    /// When a pod was evicted for its processes.
    evicted: Option<u64>,
    ending: [Option<Ending>; MOST_ENDING],
}

impl PidWatch {
    pub(super) fn is_due(&self, now: u64) -> bool {
        now >= self.due
    }

    pub(super) fn sleep(&self, now: u64) -> Duration {
        Duration::from_nanos(self.due.saturating_sub(now).max(1))
    }

    /// Looks at the levels; `cpus` fork. `shortest` and `longest` bound the sleep until the next look.
    pub(super) fn look(
        &mut self,
        pids: &Pids,
        now: u64,
        cpus: u32,
        (shortest, longest): (Duration, Duration),
    ) -> Option<Shortage> {
        // Read first: what ends between the two readings counts twice, and no pod dies for it.
        let ending = self.ending(now);
        let mut left = u64::MAX;
        let mut shortage = None;
        for level in &pids.levels {
            let Some(tasks) = level.tasks.count() else {
                continue;
            };
            let floor = if self.reached {
                level.target
            } else {
                level.level
            };
            let rest = tasks.saturating_sub(ending);
            left = left.min(level.level.saturating_sub(rest));
            if rest >= floor && shortage.is_none() {
                let excess = rest - level.target.min(rest) + 1;
                shortage = Some((level.level, tasks, excess));
            }
        }
        let rate = FORK_RATE_PER_CPU.saturating_mul(cpus.max(1).into());
        let sleep = u128::from(left) * 1_000_000_000 / u128::from(rate);
        let sleep = u64::try_from(sleep).unwrap_or(u64::MAX);
        self.due = now.saturating_add(sleep.clamp(nanos(shortest), nanos(longest)));
        let first = shortage.is_some() && !self.reached;
        self.reached = shortage.is_some();
        let Some((level, tasks, excess)) = shortage else {
            (self.settled, self.said) = (false, false);
            return None;
        };
        if self.settled {
            return None;
        }
        Some(Shortage {
            level,
            tasks,
            excess,
            first,
        })
    }

    /// Killed is not gone: so many processes end.
    fn ending(&mut self, now: u64) -> u64 {
        let all = self.ending.iter_mut().filter_map(|place| {
            let left = place.as_mut()?.look(now);
            if left.is_none() {
                *place = None;
            }
            left
        });
        all.sum()
    }

    /// Whether a pod may go whose end is not enough: no faster than the kubelet evicts.
    pub(super) fn may_take_less(&self, now: u64) -> bool {
        self.evicted
            .is_none_or(|evicted| now.saturating_sub(evicted) >= KUBELET_PACE_NS)
    }

    /// A pod was killed, for whatever reason: its processes end from now on.
    pub(super) fn killed(&mut self, plan: &Arc<ArmedPlan>, token: u64, now: u64) {
        let ending = Ending {
            plan: Arc::clone(plan),
            token,
            killed: now,
            left: u64::MAX,
            fell: now,
        };
        let same = |old: &Ending| old.token == token;
        keep(&mut self.ending, ending, same, |old| old.killed);
    }

    /// A pod was evicted for its processes.
    pub(super) fn evicted(&mut self, now: u64) {
        self.evicted = Some(now);
    }

    /// All is said (observe mode).
    pub(super) fn settle(&mut self) {
        self.settled = true;
    }

    /// No pod could be evicted; true when that was not said since the level was reached.
    pub(super) fn no_candidate(&mut self, now: u64, longest: Duration) -> bool {
        self.due = now.saturating_add(nanos(longest));
        !std::mem::replace(&mut self.said, true)
    }
}

#[cfg(test)]
mod tests;
