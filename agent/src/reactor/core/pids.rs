//! Evicts pods where process ids run out.

use std::sync::Arc;

use podwarden_policy::evict::Place;

use super::{
    Core, Skip,
    evict::{Evicted, Taken},
    skip,
};
use crate::{
    base::clock::monotonic as now,
    reactor::{
        pids::Pids,
        plan::{ArmedPlan, ScopeName, Victim},
        report::{Crossing, Detector, Report},
    },
};

impl Core {
    /// Looks at the levels of process ids where it is time.
    pub(super) fn relieve_pids(&mut self, plan: &Arc<ArmedPlan>, wake: u64) {
        let Some(pids) = &plan.pids else { return };
        let at = now();
        if !self.pids.is_due(at) {
            return;
        }
        let sleeps = (self.config.min_interval, self.config.max_interval);
        let Some(shortage) = self.pids.look(pids, at, plan.cpus, sleeps) else {
            return;
        };
        let crossing = Crossing {
            scope: ScopeName::Pids,
            level: shortage.level,
            headroom: 0,
            fill_rate: 0,
            usage: shortage.tasks,
            working_set: shortage.tasks,
            target: shortage.level,
            detector: Detector::Sampler,
            crossed: wake,
            wake,
        };
        if shortage.first {
            self.tell(Report::Crossed(crossing));
        }
        match self.end_processes(plan, pids, crossing, shortage.excess) {
            Evicted::Killed => {}
            Evicted::Told => self.pids.settle(),
            Evicted::None(why) => {
                if self.pids.no_candidate(now(), sleeps.1) {
                    self.tell(why);
                }
            }
        }
    }

    /// Evicts the first pod in the kubelet's order whose end is enough, or one whose end is not, no faster than the
    /// kubelet does.
    pub(super) fn end_processes(
        &mut self,
        plan: &Arc<ArmedPlan>,
        pids: &Pids,
        crossing: Crossing,
        excess: u64,
    ) -> Evicted {
        if plan.enforce && !self.pace.allows(now()) {
            return Evicted::None(Report::RateLimited(crossing));
        }
        if let Some(strangers) = pids.is_of_strangers(excess) {
            return Evicted::None(Report::StrangersGrow(crossing, strangers));
        }
        let lesser = self.pids.may_take_less(now()).then_some(1);
        for least in [Some(excess), lesser].into_iter().flatten() {
            let (at, dying) = (now(), &self.dying);
            let skip = |victim: &Victim| {
                let usage = victim.files.memory.usage().unwrap_or(0);
                matches!(
                    skip(dying, victim, usage, at),
                    Skip::Dying | Skip::PassedOver
                )
            };
            self.pid_order.fill(pids, &plan.victims, least, skip);
            while let Some((position, rank)) = self.pid_order.next() {
                let victim = &plan.victims[position];
                let usage = victim.files.memory.usage().unwrap_or(0);
                let stat = victim.files.memory.stat();
                let taken = Taken {
                    position,
                    place: Place::Processes(rank),
                    usage,
                    working_set: stat.map_or(usage, |stat| stat.working_set(usage)),
                };
                if !plan.enforce {
                    self.evicted(plan, taken, crossing, None);
                    return Evicted::Told;
                }
                if self.kill(plan, taken, crossing) {
                    self.pids.evicted(at);
                    return Evicted::Killed;
                }
            }
        }
        Evicted::None(Report::NoCandidate(crossing))
    }
}
