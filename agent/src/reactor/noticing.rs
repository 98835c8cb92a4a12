//! Registers the kernel's notices of an armed plan, in a thread of its own: each takes a
//! grace period ([`podwarden_cgroup::MemoryThresholds::notice_at`]), and arming must not wait for it.
//! Until then the sampler and the kernel programs see the level.

use std::{
    io,
    sync::{
        Arc,
        mpsc::{Sender, channel},
    },
    thread::JoinHandle,
};

use super::{
    Shared,
    plan::{ArmedPlan, Scope},
    ring,
};

/// The reconciler's end of the thread.
#[derive(Debug)]
pub(super) struct Noticing {
    /// `None` once it is to end.
    wanted: Option<Sender<Arc<Scope>>>,
    thread: Option<JoinHandle<()>>,
}

impl Noticing {
    /// Starts the thread; the reactor is rung for each notice that has come.
    pub(super) fn start(shared: Arc<Shared>) -> io::Result<Self> {
        let (wanted, scopes) = channel::<Arc<Scope>>();
        let run = move || {
            for scope in scopes {
                // Otherwise no plan has it any more.
                if Arc::strong_count(&scope) > 1 && scope.notice.ask(scope.level) {
                    ring(&shared.control);
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("noticing".to_owned())
            .spawn(run)?;
        Ok(Self {
            wanted: Some(wanted),
            thread: Some(thread),
        })
    }

    /// Asks for what a plan has not got yet.
    pub(super) fn complete(&self, plan: &ArmedPlan) {
        let Some(wanted) = &self.wanted else { return };
        for scope in plan.scopes.iter().filter(|scope| scope.notice.is_missing()) {
            // An error says that the thread has ended: there are other signals.
            let _ = wanted.send(Arc::clone(scope));
        }
    }
}

impl Drop for Noticing {
    fn drop(&mut self) {
        self.wanted = None;
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed.
            let _ = thread.join();
        }
    }
}
