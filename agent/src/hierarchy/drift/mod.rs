//! What others write to our files: noticed, judged by the policy, written again.
//!
//! ```text
//!  inotify ──> noticed ──> sense::observe ──> plan::corrections ──> Tracker::judge ──> act
//!  a pass over the whole tree ──────────────> plan::towards ─────────────┘
//! ```
//!
//! The rules and the rate limit are in `podwarden_policy::drift`; here is which cgroups to look at and
//! when, and what is told of it. Our own writes are noticed as well: they cost one look at one cgroup.

mod watches;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use metrics::counter;
use podwarden_cgroup::{CgroupLayout, CgroupPath, Tree};
use podwarden_policy::{
    Bytes,
    desired::Desired,
    drift::{Deviation, Judgement, Tracker},
    limits::Limit,
    name::CgroupName,
    plan::{self, Action, Snapshot},
    settings::{Observed, Setting},
};

use crate::{
    api::types::{EventKind, ForeignWriteCount, ForeignWriteStats},
    base::clock,
    hierarchy::act::Performed,
};
pub use watches::WatchError;
use watches::{Subject, Watches};

/// At least this long passes between two looks, so that a writer who never rests does not keep the
/// reconciler busy. Doubled after each look that finds nothing to do, up to [`LONGEST_REST`].
const REST: Duration = Duration::from_millis(1);

/// Well below the 20 ms in which a single write is to be corrected.
const LONGEST_REST: Duration = Duration::from_millis(8);

/// The same for cgroups with a contested file, whose correction waits for a second or longer.
const REST_CONTESTED: Duration = Duration::from_millis(100);

/// An event and its cgroup.
pub type Finding = (CgroupName, EventKind);

#[derive(Debug)]
pub struct Drift {
    watches: Watches,
    tracker: Tracker,
    /// The zero of the tracker's clock.
    epoch: Instant,
    /// The plan's terms: page size and margin. Its pods and cgroups are left out.
    terms: Snapshot,
    /// Parents before children.
    desired: Vec<Desired>,
    index: BTreeMap<CgroupName, usize>,
    /// To be looked at.
    noticed: BTreeSet<Arc<CgroupName>>,
    /// To be looked at as well, but not before `later_at`.
    later: BTreeSet<Arc<CgroupName>>,
    later_at: Option<Instant>,
    /// Containers that processes entered or left.
    entered: BTreeSet<Arc<CgroupPath>>,
    looked: Option<Instant>,
    rest: Duration,
    counts: BTreeMap<&'static str, ForeignWriteCount>,
}

impl Drift {
    /// Watches nothing before the first [`Drift::follow`]. Needs a runtime. After an error there is no watch, and
    /// passes over the whole tree find what they find; use [`Drift::unwatched`].
    pub fn new(kubepods: CgroupName) -> Result<Self, WatchError> {
        Ok(Self::with(Watches::new()?, kubepods))
    }

    /// Judges what passes over the whole tree find, and notices nothing in between.
    pub fn unwatched(kubepods: CgroupName) -> Self {
        Self::with(Watches::none(), kubepods)
    }

    fn with(watches: Watches, kubepods: CgroupName) -> Self {
        Self {
            watches,
            tracker: Tracker::default(),
            epoch: Instant::now(),
            terms: Snapshot::new(podwarden_policy::Node::default(), kubepods),
            desired: Vec::new(),
            index: BTreeMap::new(),
            noticed: BTreeSet::new(),
            later: BTreeSet::new(),
            later_at: None,
            entered: BTreeSet::new(),
            looked: None,
            rest: REST,
            counts: BTreeMap::new(),
        }
    }

    /// Completes when [`Drift::take_notices`] has something to do.
    pub async fn ready(&self) {
        let rest = self.looked.map(|at| at + self.rest);
        let notices = async {
            if let Some(at) = rest {
                tokio::time::sleep_until(at.into()).await;
            }
            if self.noticed.is_empty() {
                self.watches.readable().await;
            }
        };
        let contest = self.tracker.next_look().map(|at| self.epoch + at);
        let later = self.later_at.filter(|_| !self.later.is_empty());
        let due = contest.into_iter().chain(later).min();
        let due = due.map(|at| rest.map_or(at, |rest| at.max(rest)));
        tokio::select! {
            () = notices => {}
            () = clock::until(due) => {}
        }
    }

    /// Reads what was noticed; true when notices were lost and everything is to be looked at.
    pub fn take_notices(&mut self) -> bool {
        let overflowed = self.watches.read(|subject| match subject {
            Subject::Settings(name) if self.tracker.is_contested(name) => {
                self.later.insert(Arc::clone(name));
            }
            Subject::Settings(name) => {
                self.noticed.insert(Arc::clone(name));
            }
            Subject::Container(path) => {
                self.entered.insert(Arc::clone(path));
            }
        });
        let now = Instant::now();
        if self.later_at.is_none_or(|at| at <= now) {
            self.noticed.append(&mut self.later);
            self.later_at = Some(now + REST_CONTESTED);
        }
        let due = self.tracker.due(self.now());
        self.noticed
            .extend(due.into_iter().map(|name| Arc::new(name.clone())));
        self.looked = Some(now);
        overflowed
    }

    /// Watches who enters a container.
    pub fn watch_container(&mut self, tree: &Tree, path: &CgroupPath) -> Result<(), WatchError> {
        self.watches.watch_container(tree, path)
    }

    /// A container is gone.
    pub fn unwatch_container(&mut self, path: &CgroupPath) {
        self.watches.unwatch_container(path);
    }

    /// The containers that processes entered or left since the last call, by their cgroup below the
    /// tree's root.
    pub fn entered(&mut self) -> BTreeSet<Arc<CgroupPath>> {
        std::mem::take(&mut self.entered)
    }

    /// The cgroups to look at now, in no order.
    pub fn take_noticed(&mut self) -> Vec<CgroupName> {
        let noticed = std::mem::take(&mut self.noticed);
        let wanted = noticed
            .into_iter()
            .filter(|name| self.index.contains_key(name));
        wanted
            .map(|name| Arc::try_unwrap(name).unwrap_or_else(|name| CgroupName::clone(&name)))
            .collect()
    }

    /// A cgroup that was to be looked at is gone; a pass over the whole tree will say what that means.
    pub fn gone(&mut self, name: &CgroupName) {
        self.tracker.forget(name);
    }

    /// This cgroup's hard memory limit was written by the agent itself, beside the plans.
    pub fn ours(&mut self, name: &CgroupName, limit: Limit<Bytes>) {
        self.tracker.ours(name, Setting::MemoryLimit(limit));
    }

    /// What to do about some cgroups that were looked at.
    pub fn judge(&mut self, observed: &BTreeMap<CgroupName, Observed>) -> Judgement {
        let mut at: Vec<_> = observed
            .keys()
            .filter_map(|name| self.index.get(name).copied())
            .collect();
        at.sort_unstable();
        let desired = || at.iter().map(|&i| &self.desired[i]);
        let actions = plan::corrections(&self.terms, desired(), observed);
        self.rest = if actions.is_empty() {
            LONGEST_REST.min(2 * self.rest)
        } else {
            REST
        };
        let (now, page) = (self.epoch.elapsed(), self.terms.page_size);
        self.tracker.judge(now, page, desired(), observed, actions)
    }

    /// What to do of a plan for the whole tree.
    pub fn judge_plan(
        &mut self,
        snapshot: &Snapshot,
        desired: &[Desired],
        actions: Vec<Action>,
    ) -> Judgement {
        self.terms.page_size = snapshot.page_size;
        self.terms.margin = snapshot.margin;
        let (now, page) = (self.now(), snapshot.page_size);
        self.tracker
            .judge(now, page, desired, &snapshot.cgroups, actions)
    }

    /// Carries out what a judgement admits, and counts the outcome. Returns the events.
    pub fn carry_out(
        &mut self,
        judgement: Judgement,
        perform: impl FnOnce(&[Action]) -> Performed,
    ) -> (Performed, Vec<Finding>) {
        let mut findings = Vec::new();
        let (actions, deviations): (Vec<_>, Vec<_>) = judgement.admitted.into_iter().unzip();
        let performed = perform(&actions);
        for (at, deviation) in deviations.into_iter().enumerate() {
            let done = !performed.refused.contains(&at);
            if !done {
                self.tracker.refused(&actions[at]);
            }
            if let Some(deviation) = deviation {
                let count = self.count(deviation.property);
                if done {
                    count.corrected += 1;
                    record(deviation.property, "corrected");
                } else {
                    count.refused += 1;
                    record(deviation.property, "refused");
                }
                // A contest has events for its beginning and end only.
                if !(deviation.contested && done) {
                    findings.push(found(deviation, done));
                }
            }
        }
        for deviation in judgement.began {
            self.count(deviation.property).contests += 1;
            record(deviation.property, "contested");
            findings.push(contested(deviation));
        }
        findings.extend(judgement.ended.into_iter().map(|settled| {
            let kind = EventKind::ForeignWriteSettled {
                cgroup: settled.cgroup.to_string(),
                property: settled.property.to_owned(),
                corrections: settled.corrections,
            };
            (settled.cgroup, kind)
        }));
        (performed, findings)
    }

    /// Takes the tree as it ought to be from now on, and watches those of its cgroups that exist and
    /// hold values of ours. What is watched newly is looked at once more: it may have been written to
    /// before. After one that cannot be watched the others are; the error is the first one.
    pub fn follow(
        &mut self,
        tree: &Tree,
        layout: &CgroupLayout,
        desired: Vec<Desired>,
    ) -> Result<(), WatchError> {
        self.index = desired
            .iter()
            .enumerate()
            .filter(|(_, d)| !d.settings.is_empty())
            .map(|(i, d)| (d.name.clone(), i))
            .collect();
        self.desired = desired;
        self.tracker.retain(|name| self.index.contains_key(name));
        let (new, result) = self.watches.follow(tree, layout, self.index.keys());
        self.noticed.extend(new);
        result
    }

    /// The figures so far.
    pub fn stats(&self) -> ForeignWriteStats {
        ForeignWriteStats {
            watched_cgroups: self.watches.cgroups() as u64,
            contested_files: self.tracker.contested() as u64,
            properties: self.counts.values().cloned().collect(),
        }
    }

    fn count(&mut self, property: &'static str) -> &mut ForeignWriteCount {
        let fresh = || ForeignWriteCount {
            property: property.to_owned(),
            ..ForeignWriteCount::default()
        };
        self.counts.entry(property).or_insert_with(fresh)
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }
}

fn record(property: &'static str, outcome: &'static str) {
    counter!("podwarden_foreign_writes_total", "property" => property, "outcome" => outcome)
        .increment(1);
}

fn found(deviation: Deviation, corrected: bool) -> Finding {
    let kind = EventKind::ForeignWrite {
        cgroup: deviation.cgroup.to_string(),
        property: deviation.property.to_owned(),
        found: deviation.found.to_string(),
        wanted: deviation.wanted.to_string(),
        corrected,
    };
    (deviation.cgroup, kind)
}

fn contested(deviation: Deviation) -> Finding {
    let kind = EventKind::ForeignWriteContested {
        cgroup: deviation.cgroup.to_string(),
        property: deviation.property.to_owned(),
        found: deviation.found.to_string(),
        wanted: deviation.wanted.to_string(),
    };
    (deviation.cgroup, kind)
}
