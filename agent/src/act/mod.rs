//! The only interpreter of [`Action`]. Observe mode lives here: the same actions, recorded and not
//! carried out.

use std::collections::BTreeSet;

use podwarden_cgroup::{CpuQuota, Created, Tree};
use podwarden_policy::{Bytes, plan::Action, settings::Setting};

use crate::sense::Naming;

/// What came of a list of actions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Carried out.
    pub done: u32,
    /// Refused by the kernel; said in the log.
    pub failed: u32,
    /// Not carried out because of observe mode.
    pub withheld: u32,
}

/// Carries actions out and remembers what it made, so that nothing else is ever removed.
#[derive(Debug, Default)]
pub struct Actor {
    /// False in observe mode.
    enforce: bool,
    made: BTreeSet<String>,
    created: Created,
}

impl Actor {
    /// `enforce` is false in observe mode.
    pub fn new(enforce: bool) -> Self {
        Self {
            enforce,
            ..Self::default()
        }
    }

    /// True for a cgroup that this agent made.
    pub fn made(&self, rel: &str) -> bool {
        self.made.contains(rel)
    }

    /// Carries out `actions` in order; what one of them could not do does not stop the others.
    pub fn perform(&mut self, tree: &Tree, naming: &Naming, actions: &[Action]) -> Outcome {
        let mut outcome = Outcome::default();
        for action in actions {
            if !self.enforce {
                tracing::debug!(?action, "observe mode: not carried out");
                outcome.withheld += 1;
                continue;
            }
            match self.one(tree, naming, action) {
                Ok(()) => outcome.done += 1,
                Err(error) => {
                    outcome.failed += 1;
                    let source = std::error::Error::source(&error).map(ToString::to_string);
                    tracing::warn!(%error, source, ?action, "an action failed");
                }
            }
        }
        outcome
    }

    fn one(
        &mut self,
        tree: &Tree,
        naming: &Naming,
        action: &Action,
    ) -> Result<(), podwarden_cgroup::Error> {
        match action {
            Action::EnsureCgroup { cgroup, .. } => {
                let rel = naming.rel(cgroup);
                let created = tree.create(&rel)?;
                if !created.is_empty() {
                    tracing::debug!(cgroup = rel, "made a cgroup");
                    self.made.insert(rel);
                    self.created.extend(created);
                }
                Ok(())
            }
            Action::Write {
                cgroup,
                setting,
                reason,
            } => {
                let rel = naming.rel(cgroup);
                tracing::debug!(cgroup = rel, %setting, %reason, "writing");
                write(tree, &rel, setting)
            }
            Action::RemoveCgroup { cgroup, reason } => {
                let rel = naming.rel(cgroup);
                if !self.made.contains(&rel) || in_use(tree, &rel)? {
                    return Ok(());
                }
                tracing::debug!(cgroup = rel, %reason, "removing");
                tree.remove(&rel)?;
                self.forget(&rel);
                Ok(())
            }
            // The reactor evicts: it re-reads usage first.
            Action::Evict { .. } => Ok(()),
        }
    }

    /// A cgroup is not ours any more: whoever makes it anew keeps it.
    fn forget(&mut self, rel: &str) {
        self.made.remove(rel);
        self.created.directories.retain(|d| !d.ends_with(rel));
    }

    /// Removes what this agent made and nobody uses. What still holds processes stays as it is.
    pub fn remove_unused(&mut self, tree: &Tree) {
        let deepest_first = std::mem::take(&mut self.created.directories);
        for directory in deepest_first.iter().rev() {
            // rmdir refuses a cgroup with processes or children, which is just what is wanted.
            if let Err(error) = std::fs::remove_dir(directory) {
                tracing::debug!(%error, directory = %directory.display(), "left as it is");
            }
        }
        self.made.retain(|rel| tree.id(rel).is_ok());
    }
}

/// True while a process is in the cgroup or below it: removing it would wait for them.
fn in_use(tree: &Tree, rel: &str) -> Result<bool, podwarden_cgroup::Error> {
    let listed = match tree.list(rel) {
        Err(error) if error.is_gone() => return Ok(false),
        listed => listed?,
    };
    for cgroup in listed {
        match tree.procs(&cgroup.rel) {
            Err(error) if error.is_gone() => {}
            processes => {
                if !processes?.is_empty() {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}

fn write(tree: &Tree, rel: &str, setting: &Setting) -> Result<(), podwarden_cgroup::Error> {
    match *setting {
        Setting::CpuShares(shares) => tree.set_cpu_shares(rel, shares.as_u64()),
        Setting::CpuMax(max) => tree.set_cpu_quota(
            rel,
            max.quota_us.bound().map(|quota_us| CpuQuota {
                quota_us,
                period_us: max.period_us,
            }),
        ),
        Setting::MemoryLimit(limit) => tree.set_memory_limit(rel, limit.bound().map(Bytes::as_u64)),
        Setting::PidsLimit(limit) => tree.set_pids_limit(rel, limit.bound()),
        // `sense` tells the policy that the kernel has none of these, so that it asks for none.
        Setting::MemoryMin(_) | Setting::MemoryLow(_) | Setting::HugetlbLimit { .. } => Ok(()),
    }
}
