//! A scope at its level, of which dead victims may hold memory.

use std::sync::Arc;

use podwarden_policy::promise::{Freed, Living, Waiting};

use super::{Core, Look};
use crate::{
    base::clock::monotonic as now,
    reactor::{
        plan::{ArmedPlan, Scope},
        report::{Crossing, Report},
        stalls,
    },
};

impl Core {
    /// Looks at the victims before anything else is read: what one gives back meanwhile counts as promised
    /// then, and no pod dies for it.
    pub(super) fn check_dying(&mut self) {
        let at = now();
        let progress = self.reaper.progress();
        let (mut reports, mut cost) = (None, None);
        let forgotten = self.dying.look(|dying| {
            let left = dying.read();
            let token = dying.victim().token;
            self.shared.trace.pod(token, at, left, None);
            let number = dying.number;
            let (empty, swept) = (progress.is_empty(number), progress.is_swept(number));
            let freed = dying.promise.look(at, left, empty, swept);
            // One a turn: the others follow in a millisecond.
            if dying.told || freed == Freed::NotYet || reports.is_some() {
                return;
            }
            dying.told = true;
            let freed = freed == Freed::All;
            if !freed {
                dying.victim().files.seen.leave_out(at);
            }
            cost = dying.promise.cost(at);
            reports = Some(Report::Freed {
                number,
                at: freed.then_some(at),
                left,
            });
        });
        if forgotten {
            self.living.iter_mut().for_each(Living::rebase);
        }
        let Some(report) = reports else { return };
        if let Some((bytes, took)) = cost {
            self.costs.reap.learn(bytes, took);
        }
        if let Some(pressure) = &self.plan.pressure {
            self.stalls.relieved(at, stalls::window(pressure));
        }
        self.tell(report);
    }

    /// Kills a victim again whose end was not seen yet and in which `excess` bytes grew since it was killed: its kubelet
    /// started a container anew, and what that filled is no other pod's to give. False where there is none.
    pub(super) fn kill_again(&mut self, crossing: Crossing, excess: u64) -> bool {
        let least = excess.max(self.costs.ahead);
        let reaper = &mut self.reaper;
        let again = self.dying.grown(crossing.scope, least).find_map(|dying| {
            let at = now();
            let number = dying.number;
            let files = Arc::clone(&dying.victim().files);
            let mut attempt = reaper.attempt();
            let killed = files.kill.signal_workload(&mut |pid| attempt.found(pid));
            killed.ok().filter(|killed| killed.processes > 0)?;
            attempt.hand_over(&files, number);
            dying.killed_again(at);
            Some(Report::KilledAgain {
                token: dying.victim().token,
                crossing,
                usage: dying.left(),
            })
        });
        if let Some(report) = again {
            self.tell(report);
        }
        again.is_some()
    }

    /// A scope was found at its level: decides, unless what dead victims hold of it suffices. Returns the look
    /// without that.
    pub(super) fn at_level(
        &mut self,
        plan: &Arc<ArmedPlan>,
        index: usize,
        look: Look,
        wake: u64,
    ) -> Look {
        let scope = &plan.scopes[index];
        let waiting = self.waiting(scope, index, look);
        let rest = Look {
            working_set: waiting.rest(),
            ..look
        };
        match waiting.shortfall() {
            Some(excess) => {
                let (level, retry) = (self.fills[index].level, self.config.max_interval);
                let next = self.watches[index].above(level, look, wake, retry);
                self.decide(plan, index, look, wake, next, excess);
            }
            None if self.watches[index].awaits(rest) => self.below(index, scope, rest),
            None => {}
        }
        rest
    }

    fn waiting(&mut self, scope: &Scope, index: usize, look: Look) -> Waiting {
        let level = self.fills[index].level;
        let alone = Waiting {
            used: look.working_set,
            floor: self.watches[index].floor(level, scope.target),
            level,
            ..Waiting::default()
        };
        if !self.dying.are_in(scope.name) {
            self.living[index] = Living::default();
            return alone;
        }
        let reap = self.costs.reap;
        let held = self.dying.held(scope, look.at, |bytes| reap.of(bytes));
        let (before, after) = (self.dying.left(scope.name), self.dying.left_now(scope.name));
        // Between two readings that differ by more, growth cannot be told from what was freed.
        if before.abs_diff(after) <= self.costs.ahead {
            let rest = look.usage.saturating_sub(before);
            self.living[index].observe(look.at, rest, self.costs.ahead);
        }
        Waiting {
            promised: held.promised,
            slow: held.slow,
            freeing: held.freeing,
            due: held.due,
            growth: self.living[index].rate(),
            limit: scope.limit(),
            takes: self.fills[index].takes(&self.costs),
            ahead: self.costs.ahead,
            ..alone
        }
    }
}
