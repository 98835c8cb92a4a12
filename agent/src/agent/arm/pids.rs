//! Arms the levels of process ids.

use std::{collections::HashMap, sync::Arc};

use podwarden_cgroup::UsageReader;
use podwarden_policy::{Node, limits::Limit, signal::Signal};

use super::{Inputs, ScopeName, scope_path};
use crate::{
    config::Config,
    reactor::{
        pids::{PidLevel, Pids, Tasks},
        plan::{ArmedPlan, Victim},
    },
};

/// `pid.available`, resolved against the node's capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::agent) struct PidThreshold {
    /// Process ids that the node has.
    pub capacity: u64,
    /// What is to stay available of them.
    pub kept: u64,
    /// How much more, once a pod was evicted (`evictionMinimumReclaim`).
    pub reclaim: u64,
}

impl PidThreshold {
    /// Of this node; `None` where it is not configured or the capacity is not known.
    pub(in crate::agent) fn of(config: &Config, node: &Node) -> Option<Self> {
        let capacity = node.pids_capacity?;
        let hard = config.hard(Signal::PidAvailable)?;
        let reclaim = hard.min_reclaim.map_or(0, |amount| amount.of(capacity));
        Some(Self {
            capacity,
            kept: hard.less_than.of(capacity),
            reclaim,
        })
    }
}

/// The levels; `None` without a threshold, or without a figure to compare with it.
pub(super) fn arm(inputs: &Inputs<'_>, before: &ArmedPlan, victims: &[Victim]) -> Option<Pids> {
    let threshold = inputs.pids?;
    let level = |tasks: Tasks, limit: u64| PidLevel {
        tasks,
        level: limit - threshold.kept,
        target: (limit - threshold.kept).saturating_sub(threshold.reclaim),
    };
    let mut levels = Vec::new();
    if threshold.capacity > threshold.kept {
        match Tasks::of_node() {
            Ok(tasks) => levels.push(level(tasks, threshold.capacity)),
            Err(error) => tracing::warn!(%error, "pid.available of the node cannot be watched"),
        }
    }
    // Pods run out of process ids at the limit of kubepods, which the node's own figure says nothing of.
    let path = scope_path(inputs.layout, ScopeName::Pids);
    if let Some(Limit::At(limit)) = inputs.tree.read(&path).pids_limit
        && limit < threshold.capacity
        && limit > threshold.kept
        && let Ok(tasks) = UsageReader::processes(inputs.tree, &path)
    {
        levels.push(level(Tasks::Cgroup(tasks), limit));
    }
    let open: HashMap<u64, &Arc<UsageReader>> = before
        .pids
        .iter()
        .flat_map(Pids::processes)
        .map(|(token, processes)| (*token, processes))
        .collect();
    let processes = victims.iter().filter_map(|victim| {
        let processes = match open.get(&victim.token) {
            Some(processes) => Arc::clone(processes),
            None => Arc::new(UsageReader::processes(inputs.tree, &victim.files.path).ok()?),
        };
        Some((victim.token, processes))
    });
    let processes = processes.collect();
    let strangers = inputs.strangers.iter().filter_map(|uid| {
        let entry = inputs.entries.get(*uid)?;
        UsageReader::processes(inputs.tree, &entry.path).ok()
    });
    (!levels.is_empty()).then(|| Pids::new(levels, processes, strangers.collect()))
}
