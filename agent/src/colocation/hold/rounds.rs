//! The rounds of suppression, and what they write.

use std::{collections::BTreeSet, time::Instant};

use podwarden_cgroup::{CpuList, Error, Tree};
use podwarden_policy::{
    MilliCpu,
    colocation::{strategies::Measured, suppress::Policy},
};

use super::{
    Suppressed, What,
    cpus::Cpus,
    suppress::{Pinned, Share, Suppress},
    thread::Thread,
    tier::Tier,
};
use crate::base::clock;

/// Where suppression stands.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// Those with CPUs of their own.
    pub(super) pinned: Pinned,
    /// Once the tier is there.
    law: Option<Suppress>,
    /// The same, where the policy says so.
    cpus: Option<Cpus>,
    /// What was last reported.
    reported: Option<MilliCpu>,
}

impl Rounds {
    /// The tier's quota by the formula.
    pub(super) fn quota(&self) -> Option<MilliCpu> {
        self.law.as_ref().and_then(|law| law.share().quota)
    }

    /// What the tier may use by the formula, by its quota or its CPUs.
    pub(super) fn limit(&self) -> Option<MilliCpu> {
        self.law.as_ref().and_then(|law| law.share().cpu())
    }

    /// What the last round was computed from.
    pub(super) fn measured(&self) -> Option<Measured> {
        self.law.as_ref().and_then(Suppress::measured)
    }

    /// The kernel refused a quota, or the tier is gone: the next round begins anew.
    pub(super) fn forget(&mut self) {
        self.law = None;
    }

    /// No round any more; what was found of the tier's CPUs is put back. What remains is to be closed, `None` where
    /// something could not be.
    pub(super) fn end(&mut self, tree: &Tree) -> Option<Cpus> {
        self.law = None;
        let mut cpus = self.cpus.take()?;
        cpus.restore(tree).then_some(cpus)
    }
}

impl Thread {
    /// Looks at the figures, where it is time, and carries out what follows.
    pub(super) fn suppress(&mut self, now: Instant) {
        let Some(strategy) = &self.parts.suppress else {
            return;
        };
        if self.is_refused(now) {
            return;
        }
        let Some(used) = self.tier.as_ref().and_then(Tier::used_nanos) else {
            return;
        };
        let Some(law) = &self.rounds.law else {
            let policy = strategy.policy;
            let opened = Suppress::open(&self.parts.tree, strategy.clone());
            match opened.and_then(|law| Ok((law, self.open_cpus(policy)?))) {
                Ok((law, cpus)) => {
                    self.rounds.law = Some(law);
                    self.rounds.cpus = cpus;
                }
                Err(error) => self.refuse(now, &error),
            }
            return;
        };
        if !law.is_due(now) {
            return;
        }
        let tree = &self.parts.tree;
        let present = match &self.rounds.cpus {
            Some(cpus) => cpus.present(tree).ok(),
            None => None,
        };
        let Rounds { law, pinned, .. } = &mut self.rounds;
        let Some(law) = law else { return };
        if !law.look(tree, now, used, present, pinned) {
            return;
        }
        let (share, others) = (law.share(), law.others());
        if !self.write(now) || !self.write_cpus(now, share.cpus.as_ref()) {
            return;
        }
        self.report_share(&share, others);
    }

    /// The tier's CPUs, where the policy is about them.
    fn open_cpus(&mut self, policy: Policy) -> Result<Option<Cpus>, Error> {
        match (policy, self.rounds.cpus.take()) {
            (Policy::CfsQuota, _) => Ok(None),
            (Policy::Cpuset, Some(cpus)) => Ok(Some(cpus)),
            (Policy::Cpuset, None) => {
                let parts = &self.parts;
                Cpus::open(&parts.tree, &parts.tier, parts.found_cpus.clone()).map(Some)
            }
        }
    }

    /// False where the kernel refused.
    fn write_cpus(&mut self, now: Instant, wanted: Option<&BTreeSet<u32>>) -> bool {
        let (Some(cpus), Some(wanted), true) = (&mut self.rounds.cpus, wanted, self.parts.enforce)
        else {
            return true;
        };
        let Err(error) = cpus.set(&self.parts.tree, wanted) else {
            return true;
        };
        // Half of the tier may be written.
        cpus.restore(&self.parts.tree);
        self.rounds.forget();
        if !error.is_gone() {
            self.refuse(now, &error);
        }
        false
    }

    /// Reports a step of at least a tenth of the node.
    fn report_share(&mut self, share: &Share, others: MilliCpu) {
        let Some(to) = share.cpu() else { return };
        let least = self.parts.bounds.cpus.0 / 10;
        let reported = self.rounds.reported;
        if reported.is_some_and(|from| from.0.abs_diff(to.0) < least.max(1)) {
            return;
        }
        self.rounds.reported = Some(to);
        let what = Suppressed {
            from: reported,
            to,
            cpus: share.cpus.clone().map(CpuList),
            others,
        };
        self.report(clock::monotonic(), What::Suppressed(what));
    }
}
