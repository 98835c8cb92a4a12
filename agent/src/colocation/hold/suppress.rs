//! Suppression by the koordlet's formula: what best effort may use, from the figures of the last second.
//!
//! Figures are read four times a second, and what is less counts at once; a step up comes once a second, as long as
//! the koordlet's round, so that best effort gains no faster than there.

use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use podwarden_cgroup::{CgroupPath, Error, KernelCpu, Tree};
use podwarden_policy::{
    MilliCpu,
    colocation::{
        strategies::Measured,
        suppress::{self, Capacity, Policy, Step, Threshold, Usage, cpuset::Sets},
    },
    convert::{DEFAULT_PERIOD_US, quota_to_milli},
    limits::Limit,
};

use super::{cpus::Present, topology};
use crate::colocation::pool::{busy, milli};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(250);
/// What the figures cover, and the time between two steps up.
const ROUND: Duration = Duration::from_secs(1);

/// What the strategy goes by.
#[derive(Debug, Clone)]
pub struct Strategy {
    pub node: Capacity,
    /// How much of it may be used.
    pub threshold: Threshold,
    /// What holds best effort.
    pub policy: Policy,
    /// The cgroup of all pods.
    pub kubepods: CgroupPath,
}

/// Cgroups whose CPUs are not, or not wholly, best effort's, where they are pinned to some.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pinned {
    /// Containers of LSE and SYSTEM pods.
    pub exclusive: Vec<CgroupPath>,
    /// Containers of LSR pods.
    pub reserved: Vec<CgroupPath>,
}

/// What best effort may use by the formula.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Share {
    /// The tier's quota; `None` for what was found.
    pub(super) quota: Option<MilliCpu>,
    /// The tier's CPUs; the same.
    pub(super) cpus: Option<BTreeSet<u32>>,
}

impl Share {
    /// In CPUs.
    pub(super) fn cpu(&self) -> Option<MilliCpu> {
        let whole = |cpus: &BTreeSet<u32>| MilliCpu(cpus.len() as u64 * 1000);
        self.quota.or_else(|| self.cpus.as_ref().map(whole))
    }
}

#[derive(Debug)]
pub(super) struct Suppress {
    strategy: Strategy,
    pods: KernelCpu,
    /// Those of the last second, the oldest first.
    looks: VecDeque<Look>,
    usage: Usage,
    /// Those of the last round.
    sets: Sets,
    law: Law,
}

/// Where the law stands.
#[derive(Debug, Default)]
struct Law {
    raised: Option<Instant>,
    /// Microseconds in a period of 100 ms.
    quota: Option<u64>,
    cpus: Option<BTreeSet<u32>>,
}

/// CPU time so far, nanoseconds; `node` is `None` where the machine's figures cannot be read.
#[derive(Debug, Clone, Copy)]
struct Look {
    at: Instant,
    node: Option<Duration>,
    pods: u64,
    best_effort: u64,
}

impl Suppress {
    pub(super) fn open(tree: &Tree, strategy: Strategy) -> Result<Self, Error> {
        Ok(Self {
            pods: KernelCpu::open(tree, &strategy.kubepods)?,
            strategy,
            looks: VecDeque::new(),
            usage: Usage::default(),
            sets: Sets::default(),
            law: Law::default(),
        })
    }

    /// What best effort may use.
    pub(super) fn share(&self) -> Share {
        let milli = |quota| quota_to_milli(Some(quota), DEFAULT_PERIOD_US);
        Share {
            quota: self.law.quota.map(milli),
            cpus: self.law.cpus.clone(),
        }
    }

    /// What the others used: other pods and the system.
    pub(super) fn others(&self) -> MilliCpu {
        let node = self.usage.node.max(self.usage.pods);
        node.saturating_sub(self.usage.best_effort_pods)
    }

    /// Whether it is time for [`Suppress::look`].
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let last = self.looks.back();
        last.is_none_or(|last| now.duration_since(last.at) >= LOOK)
    }

    /// Reads the figures; `best_effort` is what the tier has used so far, nanoseconds, and `present` the CPUs that
    /// it has. True where its share changed. Without figures nothing changes.
    pub(super) fn look(
        &mut self,
        tree: &Tree,
        now: Instant,
        best_effort: u64,
        present: Option<Present>,
        pinned: &Pinned,
    ) -> bool {
        let Ok(pods) = self.pods.usage_nanos() else {
            return false;
        };
        self.looks.push_back(Look {
            at: now,
            node: busy(),
            pods,
            best_effort,
        });
        let covered = |look: &Look| now.duration_since(look.at) >= ROUND;
        while self.looks.get(1).is_some_and(covered) {
            self.looks.pop_front();
        }
        let Some(usage) = self.usage().filter(|_| self.looks.len() > 1) else {
            return false;
        };
        self.usage = usage;
        let (node, policy) = (self.strategy.node, self.strategy.policy);
        let quantity = suppress::quantity(node, usage, self.strategy.threshold);
        let sets = match policy {
            Policy::CfsQuota => Some(Sets::default()),
            Policy::Cpuset => read_sets(tree, present, pinned),
        };
        let Some(sets) = sets else { return false };
        self.sets = sets;
        self.law
            .step((policy, node.capacity), quantity, now, &self.sets)
    }

    /// What the last round was computed from; `None` before there are figures.
    pub(super) fn measured(&self) -> Option<Measured> {
        (self.looks.len() > 1).then(|| Measured {
            usage: self.usage,
            sets: self.sets.clone(),
            quota_us: self.law.quota,
            cpus: self.law.cpus.clone(),
        })
    }

    /// What was used between the oldest look and the latest; `None` where the machine's figures are not known.
    fn usage(&self) -> Option<Usage> {
        let (first, last) = (self.looks.front()?, self.looks.back()?);
        let window = last.at.duration_since(first.at);
        let since =
            |now: u64, before: u64| milli(Duration::from_nanos(now.saturating_sub(before)), window);
        Some(Usage {
            node: milli(last.node?.saturating_sub(first.node?), window),
            pods: since(last.pods, first.pods),
            best_effort_pods: since(last.best_effort, first.best_effort),
            ..Usage::default()
        })
    }
}

impl Law {
    /// A round. What is more waits until a step up is due. True where something changed.
    fn step(
        &mut self,
        (policy, capacity): (Policy, MilliCpu),
        quantity: i64,
        now: Instant,
        sets: &Sets,
    ) -> bool {
        let cpus = sets.node(self.cpus.as_ref());
        let round = suppress::round(
            Some(policy),
            Some(suppress::within_free(policy, quantity, &cpus)),
            capacity,
            Limit::from(self.quota),
            &cpus,
        );
        let may_rise = (self.raised).is_none_or(|raised| now.duration_since(raised) >= ROUND);
        let quota = match round.quota {
            Step::Keep => self.quota,
            Step::Restore => None,
            Step::Set(quota) => match self.quota {
                Some(now) if quota > now && !may_rise => Some(now),
                _ => Some(quota),
            },
        };
        let cpus = match round.cpus {
            Step::Keep => self.cpus.clone(),
            Step::Restore => None,
            Step::Set(cpus) => Some(self.next_cpus(cpus.into_iter().collect(), may_rise, sets)),
        };
        let count = |cpus: &Option<BTreeSet<u32>>| cpus.as_ref().map(BTreeSet::len);
        if quota > self.quota || count(&cpus) > count(&self.cpus) {
            self.raised = Some(now);
        }
        let changed = (quota, &cpus) != (self.quota, &self.cpus);
        (self.quota, self.cpus) = (quota, cpus);
        changed
    }

    /// The present CPUs where they are as many: no task moves for nothing.
    fn next_cpus(&self, next: BTreeSet<u32>, may_rise: bool, sets: &Sets) -> BTreeSet<u32> {
        match &self.cpus {
            Some(now) if !sets.allow(now) || next.len() < now.len() => next,
            Some(now) if next.len() > now.len() && may_rise => next,
            Some(now) => now.clone(),
            None => next,
        }
    }
}

/// The node's CPUs, and who has them; `None` where the node's, or the tier's, are not known.
fn read_sets(tree: &Tree, present: Option<Present>, pinned: &Pinned) -> Option<Sets> {
    let Present { tier, usable } = present?;
    let mut cpus = topology::online()?;
    cpus.retain(|cpu| usable.contains(&cpu.id));
    // A container that may run on all CPUs that pods have is pinned to none.
    let of = |paths: &[CgroupPath]| -> BTreeSet<u32> {
        let sets = paths
            .iter()
            .filter_map(|path| tree.effective_cpus(path).ok());
        sets.filter(|set| set.0.len() < cpus.len())
            .flat_map(|set| set.0)
            .collect()
    };
    Some(Sets {
        present: tier,
        excluded: of(&pinned.exclusive),
        lsr: of(&pinned.reserved),
        cpus,
    })
}

#[cfg(test)]
mod tests;
