//! From one plan to the next: which descriptors are registered, and which state of a scope stays.

use std::sync::Arc;

use podwarden_policy::promise::Living;

use super::{Core, EVENTS_OF, NOTIFY, SCOPES, STALL};
use crate::reactor::{
    fill::Fill,
    node::NodeRoom,
    pids::PidWatch,
    plan::{ArmedPlan, Pressure, Scope},
    poll::drain,
    watch::Watch,
};

impl Core {
    /// Swaps in the reconciler's newest plan and arms the kernel's levels.
    pub(super) fn take_plan(&mut self) {
        drain(&self.shared.control);
        let new = self.shared.plan.load_full();
        // Rung to see whether we are there, or because there is another notice to listen to.
        if Arc::ptr_eq(&new, &self.plan) {
            self.listen();
            return;
        }
        for scope in &self.plan.scopes {
            if let Some(fd) = scope.notice.fd() {
                self.poll.remove(fd);
            }
            if let Some(events) = &scope.events {
                self.poll.remove(events);
            }
            let stays = new.scopes.iter().any(|s| s.memory_id == scope.memory_id);
            if let (false, Some(kernel)) = (stays, &mut self.kernel) {
                kernel.levels.disarm(scope.memory_id);
            }
        }
        self.costs.charge_on(new.cpus);
        // A level that moved starts afresh; one that stands keeps what was said about it.
        let mut watches = [Watch::default(); SCOPES];
        let mut fills = [Fill::default(); SCOPES];
        let mut living = [Living::default(); SCOPES];
        for (index, scope) in new.scopes.iter().enumerate().take(SCOPES) {
            let same = |s: &Arc<Scope>| s.name == scope.name && s.memory_id == scope.memory_id;
            let Some(before) = self.plan.scopes.iter().take(SCOPES).position(same) else {
                continue;
            };
            fills[index] = self.fills[before];
            living[index] = self.living[before];
            if self.plan.scopes[before].level == scope.level {
                watches[index] = self.watches[before].replanned();
            }
        }
        (self.watches, self.fills, self.living) = (watches, fills, living);
        for (index, scope) in new.scopes.iter().enumerate().take(SCOPES) {
            if let Some(events) = &scope.events {
                let _ = self.poll.add_exceptional(events, EVENTS_OF + index as u64);
            }
        }
        self.swap_triggers(&new);
        // Nothing looks at it then, and it holds plans.
        if new.pids.is_none() {
            self.pids = PidWatch::default();
        }
        // The node is looked at afresh.
        self.node = NodeRoom::default();
        self.plan = new;
        self.listening = [false; SCOPES];
        self.listen();
    }

    /// Listens to the kernel's notices that are there and not in the epoll set yet.
    fn listen(&mut self) {
        let scopes = self.plan.scopes.iter().zip(&mut self.listening);
        for (index, (scope, listening)) in scopes.enumerate() {
            if let (false, Some(fd)) = (*listening, scope.notice.fd()) {
                // Without it the sampler and the kernel programs remain.
                let _ = self.poll.add(fd, NOTIFY + index as u64);
                *listening = true;
            }
        }
    }

    /// Listens to the new plan's stall triggers; those that stay are not touched, and say nothing twice.
    fn swap_triggers(&mut self, new: &ArmedPlan) {
        let which = |plan: &ArmedPlan| plan.pressure.as_ref().map(Arc::as_ptr);
        if which(&self.plan) == which(new) {
            return;
        }
        for trigger in self.plan.pressure.iter().flat_map(|p| &p.triggers) {
            self.poll.remove(&trigger.notice);
        }
        let triggers = new.pressure.iter().flat_map(|p| &p.triggers);
        for (index, trigger) in triggers.enumerate().take(Pressure::MOST) {
            // Without it there are the levels.
            let _ = self
                .poll
                .add_exceptional(&trigger.notice, STALL + index as u64);
        }
    }
}
