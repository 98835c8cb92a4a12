//! What the loop tells the flight recorder.

use std::sync::Arc;

use super::{Parts, SlowLoop};
use crate::{
    api::types::{Exit, PodRef},
    eviction::recorder::{Draft, Recorder, Wanted},
    kernel::events,
    reactor::plan::ScopeName,
};

/// Starts the recorder; without it evictions go on, and nothing is known of what led to them.
pub(super) fn start(parts: &Parts) -> Option<Recorder> {
    let (tree, trace) = (parts.tree.clone(), parts.reactor.trace());
    match Recorder::start(tree, trace, Arc::downgrade(&parts.published)) {
        Ok(recorder) => Some(recorder),
        Err(error) => {
            tracing::warn!(%error, "no thread for the flight recorder: evictions have no curves");
            None
        }
    }
}

impl SlowLoop {
    /// The cgroups of the tiers and of every pod there is now.
    pub(super) fn follow_usage(&self) {
        let Some(recorder) = &self.recorder else {
            return;
        };
        let parts = &self.parts;
        let scopes = self.levels.tiers(&parts.naming).into_iter().zip([
            ScopeName::Kubepods,
            ScopeName::Burstable,
            ScopeName::BestEffort,
        ]);
        let scopes = scopes.map(|(tier, scope)| Wanted::Scope(scope, tier.rel));
        let pods = parts.accounting.index.pods().iter();
        let pods = pods.map(|(uid, entry)| Wanted::Pod(uid.clone(), entry.rel.clone()));
        recorder.follow(scopes.chain(pods).collect());
    }

    pub(super) fn record_exit(&mut self, uid: &str, event: &podwarden_abi::ExitEvent) {
        let signal = (event.status & 0x7f).cast_signed();
        if let Some(recorder) = &mut self.recorder {
            let exit = Exit {
                at_nanos: event.header.time_ns,
                pid: event.tgid,
                command: events::command(event),
                signal: (signal != 0).then_some(signal),
            };
            recorder.exited(uid, exit);
        }
    }

    /// The kernel's OOM killer chose a process of `pod`: event `id`, at `at`.
    pub(super) fn record_oom(&mut self, id: u64, pod: Option<PodRef>, at: u64) {
        if let (Some(recorder), Some(pod)) = (&mut self.recorder, pod) {
            let reactor = &self.parts.reactor;
            let draft = Draft::of_oom(at, &reactor.armed(), reactor.trace().read());
            recorder.incident(id, pod, draft);
        }
    }
}
