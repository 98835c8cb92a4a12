//! What the flight recorder gets: exits, kills, gaps, and the cgroups it follows.

use std::{collections::BTreeMap, sync::Arc};

use podwarden_abi::ExitEvent;
use podwarden_policy::PodUid;

use super::{Environment, EvictionManager};
use crate::{
    accounting::index::PodEntry,
    api::types::{Exit, PodRef},
    eviction::recorder::{Incident, Recorder, Wanted},
    kernel::events,
    reactor::{Reactor, plan::ScopeName},
};

impl EvictionManager {
    pub(in crate::agent::reconciler) fn record_exit(&mut self, uid: &PodUid, event: &ExitEvent) {
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
    pub(in crate::agent::reconciler) fn record_oom(
        &mut self,
        id: u64,
        pod: Option<PodRef>,
        at: u64,
    ) {
        if let (Some(recorder), Some(pod)) = (&mut self.recorder, pod) {
            let incident = Incident::of_oom(at, &self.reactor.armed(), self.reactor.trace().read());
            recorder.incident(id, pod, incident);
        }
    }

    /// The gap of a tier opened or closed: event `id`, at `at`.
    pub(in crate::agent::reconciler) fn record_gap(&mut self, scope: ScopeName, id: u64, at: u64) {
        if let Some(recorder) = &mut self.recorder {
            let readings = self.reactor.trace().read();
            let incident = Incident::of_gap(scope, at, &self.reactor.armed(), readings);
            recorder.incident(id, PodRef::default(), incident);
        }
    }

    /// Has the recorder follow the cgroups of the tiers and of every pod there is now.
    pub(super) fn follow_usage(&self, env: &Environment, pods: &BTreeMap<PodUid, PodEntry>) {
        let Some(recorder) = &self.recorder else {
            return;
        };
        let scopes = self.levels.tiers(&env.layout).into_iter().zip([
            ScopeName::Kubepods,
            ScopeName::Burstable,
            ScopeName::BestEffort,
        ]);
        let scopes = scopes.map(|(tier, scope)| Wanted::Scope(scope, tier.path));
        let pods = pods
            .iter()
            .map(|(uid, entry)| Wanted::Pod(uid.clone(), entry.path.clone()));
        recorder.follow(scopes.chain(pods).collect());
    }
}

/// Starts the recorder; evictions go on without it, and what led to them stays unknown.
pub(super) fn start_recorder(env: &Environment, reactor: &Reactor) -> Option<Recorder> {
    let published = Arc::downgrade(&env.published);
    let publish = move |id, record| {
        if let Some(published) = published.upgrade() {
            published.publish_flight_record(id, record);
        }
    };
    Recorder::start(env.tree.clone(), reactor.trace(), publish)
        .inspect_err(|error| {
            tracing::warn!(%error, "no thread for the flight recorder: evictions have no curves");
        })
        .ok()
}
