//! Registers the kernel's notices of an armed plan, in a thread of its own: each takes a
//! grace period ([`podwarden_cgroup::MemoryThresholds::notice_at`]), and arming must not wait for it.
//! Until then the sampler and the kernel programs see the level.

use std::{
    io,
    sync::{Arc, mpsc::Receiver},
};

use super::{
    Shared,
    plan::{ArmedPlan, Scope},
    ring,
};
use crate::base::worker::Worker;

/// The reconciler's end of the thread.
#[derive(Debug)]
pub(super) struct Noticing(Worker<Arc<Scope>>);

impl Noticing {
    /// Starts the thread; the reactor is rung for each notice that has come.
    pub(super) fn start(shared: Arc<Shared>) -> io::Result<Self> {
        let run = move |scopes: &Receiver<Arc<Scope>>| {
            for scope in scopes {
                // Otherwise no plan has it any more.
                if Arc::strong_count(&scope) > 1 && scope.notice.ask(scope.level) {
                    ring(&shared.control);
                }
            }
        };
        Worker::start("noticing", run).map(Self)
    }

    /// Asks for what a plan has not got yet.
    pub(super) fn complete(&self, plan: &ArmedPlan) {
        for scope in plan.scopes.iter().filter(|scope| scope.notice.is_missing()) {
            // Where the thread has ended, there are other signals.
            self.0.tell(Arc::clone(scope));
        }
    }
}
