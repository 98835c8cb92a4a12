//! The only interpreter of [`Action`]. Observe mode lives here: the same actions, recorded and not
//! carried out.
//!
//! | module | purpose |
//! |---|---|
//! | `backend` | who makes, sets and removes: the files, or systemd |
//! | `timed` | calls to it that end, also when the kernel does not come back |
//! | `write` | the one function through which every value goes |
//! | `tally` | how many operations, what became of them, how long they took |
//! | `refusal` | what the kernel refused, for people; said once for as long as it stays the same |
//!
//! There is one [`Actor`] and it is only used through `&mut`: that is the lock over all its writes, but for one that
//! the kernel has not come back from. What it does not write is the tiers' memory, once that is left to `converge`;
//! both count in one [`Counters`].

mod backend;
mod refusal;
mod tally;
mod timed;

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use podwarden_cgroup::{CgroupLayout, CgroupPath, Created, Error, Tree};
use podwarden_policy::{
    PodUid, QosClass,
    name::{self, CgroupName},
    plan::Action,
    settings::Setting,
};

use crate::{api::types::ReconcileStats, base::clock::nanos, pods::PodSet};

pub use self::{
    backend::{Backend, Files, Slices},
    tally::{Counters, Counts, Operation, Outcome, Performed, Tally},
};
use self::{
    refusal::{Refusal, Refusals},
    timed::{Answer, Call, Done, Timed, What},
};

/// Carries actions out and remembers what it made, so that nothing else is ever removed.
#[derive(Debug)]
pub struct Actor {
    /// False in observe mode.
    enforce: bool,
    backend: Timed,
    /// The cgroups whose hard memory limit is not written here.
    left: BTreeSet<CgroupPath>,
    made: BTreeSet<CgroupPath>,
    created: Created,
    refusals: Refusals,
    counters: Arc<Counters>,
    /// Of that what was done here since the call that is under way began.
    recent: Tally,
}

impl Actor {
    /// `enforce` is false in observe mode.
    pub fn new(enforce: bool, backend: Arc<dyn Backend>) -> Self {
        Self {
            enforce,
            backend: Timed::new(backend),
            left: BTreeSet::new(),
            made: BTreeSet::new(),
            created: Created::default(),
            refusals: Refusals::default(),
            counters: Arc::default(),
            recent: Tally::default(),
        }
    }

    /// From now on another part writes the hard memory limits of these cgroups.
    pub fn leave(&mut self, paths: BTreeSet<CgroupPath>) {
        self.left = paths;
    }

    /// True for a write of another part.
    fn is_left(&self, path: &CgroupPath, setting: &Setting) -> bool {
        matches!(setting, Setting::MemoryLimit(_)) && self.left.contains(path)
    }

    /// True for a cgroup that this agent made.
    pub fn made(&self, path: &CgroupPath) -> bool {
        self.made.contains(path)
    }

    /// The pods whose cgroups this agent made and has not removed, whole.
    pub fn made_pods(&self) -> impl Iterator<Item = (QosClass, PodUid)> {
        let made = self.made.iter();
        made.filter_map(|path| name::parse_pod_path(path.as_str()))
    }

    /// Completes when the kernel has come back from a call that a pass was abandoned for.
    pub async fn came_back(&self) {
        self.backend.came_back().await;
    }

    /// The calls that the kernel has not come back from, one sentence each.
    pub fn unanswered(&self) -> Vec<String> {
        self.backend.unanswered()
    }

    /// Where it is counted what was done since the agent started, for who else writes to cgroups and who shows it.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Learns what pods are called, for errors.
    pub fn learn(&mut self, pods: &PodSet) {
        let made: Vec<_> = self.made_pods().map(|(_, uid)| uid).collect();
        self.refusals.learn(pods, made);
    }

    /// A pass over the whole tree: executes `actions`, the whole plan.
    pub fn reconcile(
        &mut self,
        tree: &Tree,
        layout: &CgroupLayout,
        actions: &[Action],
    ) -> Performed {
        let start = Instant::now();
        let performed = self.perform(tree, layout, actions);
        self.refusals.end_of_pass();
        let took = start.elapsed();
        let done = self.recent.writes();
        let pass = ReconcileStats {
            actions: actions.len() as u64,
            writes: done.updated,
            failed: done.failed,
            duration_nano_seconds: nanos(took),
        };
        if performed.done + performed.failed > 0 {
            tracing::info!(
                created = done.created,
                updated = pass.writes,
                removed = done.removed,
                failed = pass.failed,
                postponed = performed.postponed,
                ?took,
                "reconciled"
            );
        }
        self.counters.count_pass(pass);
        performed
    }

    /// Carries out `actions` that undo foreign writes.
    pub fn correct(&mut self, tree: &Tree, layout: &CgroupLayout, actions: &[Action]) -> Performed {
        let performed = self.perform(tree, layout, actions);
        self.counters.count_corrected(self.recent.writes().updated);
        performed
    }

    /// Carries out `actions` in order; what one of them could not do does not stop the others, but for one
    /// that is not answered in time: each further call might wait as long as the first.
    pub fn perform(&mut self, tree: &Tree, layout: &CgroupLayout, actions: &[Action]) -> Performed {
        let mut performed = Performed::default();
        self.recent = Tally::default();
        if !self.enforce {
            for action in actions {
                tracing::debug!(?action, "observe mode: not carried out");
                performed.withheld += 1;
            }
            return performed;
        }
        let calls = actions.iter().enumerate();
        let calls = calls.filter_map(|(at, action)| {
            let call = self.call(layout, action, &actions[at + 1..])?;
            Some((at, call))
        });
        let (called, calls): (Vec<_>, Vec<_>) = calls.unzip();
        let answers = self.backend.make(tree, &calls);
        for ((at, call), answer) in called.into_iter().zip(calls).zip(answers) {
            let silence = answer.is_silence();
            let refused =
                matches!(&answer.result, Err(error) if !matches!(error, Error::NotKept { .. }));
            let Some(outcome) = self.take(tree, &call, &actions[at], answer) else {
                continue;
            };
            performed.refused.extend(refused.then_some(at));
            if silence {
                let rest = at..actions.len();
                tracing::warn!(
                    abandoned = rest.len(),
                    "no answer in time: the pass ends here, a later one tries again"
                );
                performed.failed += u32::try_from(rest.len()).unwrap_or(u32::MAX);
                performed.refused.extend(rest.skip(1));
                break;
            }
            match outcome {
                Outcome::Done => performed.done += 1,
                Outcome::Failed => performed.failed += 1,
                Outcome::Unchanged if matches!(actions[at], Action::RemoveCgroup { .. }) => {
                    performed.postponed += 1;
                }
                Outcome::Unchanged => performed.unchanged += 1,
            }
        }
        performed
    }

    /// What is to be done; `None` for what is not done here, or not ours to remove. `next` are the actions that follow.
    fn call(&self, layout: &CgroupLayout, action: &Action, next: &[Action]) -> Option<Call> {
        let (cgroup, what) = match action {
            Action::EnsureCgroup { cgroup, .. } => {
                let first = next.iter().map_while(|a| written_to(a, cgroup));
                (cgroup, What::Create(first.collect()))
            }
            Action::Write {
                cgroup, setting, ..
            } => (cgroup, What::Write(*setting)),
            Action::RemoveCgroup { cgroup, .. } => {
                let path = layout.path(cgroup);
                if !self.made.contains(&path) {
                    return None;
                }
                let ours = self.created.directories.iter();
                let ours = ours.filter(|directory| directory.ends_with(path.as_str()));
                let directories = ours.cloned().collect();
                (cgroup, What::Remove(Created { directories }))
            }
            // The reactor evicts: it re-reads usage first.
            Action::Evict { .. } => return None,
        };
        let path = layout.path(cgroup);
        let left = matches!(&what, What::Write(setting) if self.is_left(&path, setting));
        (!left).then_some(Call { path, what })
    }

    /// Remembers what came of a call for `action`; `None` for what was held back.
    fn take(
        &mut self,
        tree: &Tree,
        Call { path, what }: &Call,
        action: &Action,
        Answer { result, took }: Answer,
    ) -> Option<Outcome> {
        let outcome = match result {
            Ok(Done::HeldBack) => return None,
            Ok(Done::Created(created)) if created.is_empty() => Ok(Outcome::Unchanged),
            Ok(Done::Created(created)) => {
                self.made.insert(path.clone());
                self.created.extend(created);
                Ok(Outcome::Done)
            }
            Ok(Done::Written) => Ok(Outcome::Done),
            // Its processes are gone first.
            Ok(Done::InUse) => Ok(Outcome::Unchanged),
            Ok(Done::Removed) => {
                // The process that creates it again keeps it.
                self.made.remove(path);
                let gone = |directory: &PathBuf| directory.ends_with(path.as_str());
                self.created
                    .directories
                    .retain(|directory| !gone(directory));
                Ok(Outcome::Done)
            }
            Err(error) => Err(error),
        };
        Some(self.record(tree, path, what.operation(), action, outcome, took))
    }

    fn record(
        &mut self,
        tree: &Tree,
        path: &CgroupPath,
        operation: Operation,
        action: &Action,
        outcome: Result<Outcome, Error>,
        took: Duration,
    ) -> Outcome {
        let setting = match action {
            Action::Write { setting, .. } => Some(setting),
            _ => None,
        };
        let outcome = match outcome {
            Ok(outcome) => {
                self.refusals.resolved(path, operation, setting);
                outcome
            }
            Err(error) => {
                let exists = tree.id(path).is_ok();
                let refusal = Refusal::new(path, operation, setting, exists, error);
                self.refusals.say(refusal);
                Outcome::Failed
            }
        };
        self.counters.count(operation, outcome, took);
        self.recent.count(operation, outcome);
        tracing::debug!(
            cgroup = %path,
            operation = operation.as_str(),
            outcome = outcome.as_str(),
            setting = setting.map(tracing::field::display),
            reason = %reason(action),
            ?took,
            "cgroup operation"
        );
        outcome
    }

    /// Takes over what an earlier agent made and left behind because it was killed: the tree's root
    /// and all from `kubepods` on.
    pub fn adopt(&mut self, tree: &Tree, kubepods: &CgroupPath) {
        if !self.enforce {
            return;
        }
        let names = tree.names_anywhere(kubepods).unwrap_or_else(|error| {
            tracing::warn!(%error, "what an earlier agent made is not looked for");
            BTreeSet::new()
        });
        for path in std::iter::once(CgroupPath::ROOT).chain(names) {
            match self.backend.reading().made_before(tree, &path) {
                Ok(created) if created.is_empty() => {}
                Ok(created) => {
                    self.created.extend(created);
                    self.made.insert(path);
                }
                Err(error) => {
                    tracing::warn!(%error, cgroup = %path, "not taken over from an earlier agent");
                }
            }
        }
        if !self.made.is_empty() {
            tracing::info!(
                cgroups = self.made.len(),
                "taken over from an earlier agent"
            );
        }
    }

    /// Removes the unused cgroups that this agent made. A cgroup with processes stays.
    pub fn remove_unused(&mut self, tree: &Tree) {
        let mut rest = std::mem::take(&mut self.created.directories);
        // Parents before children, whatever the order of their making.
        rest.sort();
        let call = Call {
            path: CgroupPath::ROOT,
            what: What::RemoveUnused(rest),
        };
        for Answer { result, .. } in self.backend.make(tree, &[call]) {
            if let Err(error) = result {
                tracing::warn!(%error, "unused cgroups stay");
            }
        }
        self.made.retain(|path| tree.id(path).is_ok());
    }
}

/// What an action writes to this very cgroup.
fn written_to(action: &Action, wanted: &CgroupName) -> Option<Setting> {
    match action {
        Action::Write {
            cgroup, setting, ..
        } if cgroup == wanted => Some(*setting),
        _ => None,
    }
}

fn reason(action: &Action) -> &podwarden_policy::reason::Reason {
    match action {
        Action::EnsureCgroup { reason, .. }
        | Action::Write { reason, .. }
        | Action::RemoveCgroup { reason, .. }
        | Action::Evict { reason, .. } => reason,
    }
}
