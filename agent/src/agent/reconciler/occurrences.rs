//! The kernel's reports -> events, and work for each part.

use podwarden_abi::{ExitEvent, NearLimitEvent};
use podwarden_policy::PodUid;

use super::{Context, Reconciler, hierarchy::Hierarchy};
use crate::{
    accounting::{Occurrence, index::Change, walked},
    api::types::EventKind,
    base::clock,
    kernel::events,
};

impl Reconciler {
    pub(super) fn occurred(&mut self, occurrence: Occurrence) {
        let published = &self.env.published;
        match occurrence {
            Occurrence::Changed(change) => self.changed(change),
            Occurrence::Exit { uid, event } => {
                published.exit(&uid, event.oom != 0, || {
                    let time = clock::text_of(event.header.time_ns);
                    (time, self.pods.identity(&uid), process_exit(&event))
                });
                self.eviction.record_exit(&uid, &event);
            }
            Occurrence::Oom { uid, event } => {
                let pod = uid.map(|uid| self.pods.identity(&uid));
                let at = event.header.time_ns;
                let kind = EventKind::KernelOom { pid: event.tgid };
                let id = published.event(clock::text_of(at), pod.clone(), kind);
                self.eviction.record_oom(id, pod, at);
            }
            Occurrence::NearLimit(event) => self.near_limit(&event),
        }
    }

    /// Tiers and what is nested in containers have no event.
    fn near_limit(&mut self, event: &NearLimitEvent) {
        let Some((uid, container, percent)) = self.figures.near_limit(&self.env, event) else {
            return;
        };
        let name = |id: String| match self.pods.container_name(&uid, &id) {
            Some(name) => name.to_owned(),
            None => id,
        };
        let kind = EventKind::MemoryNearLimit {
            container: container.map(name),
            percent,
            usage_bytes: walked::bytes(event.usage_pages),
            limit_bytes: walked::bytes(event.limit_pages),
        };
        let time = clock::text_of(event.header.time_ns);
        let pod = self.pods.identity(&uid);
        self.env.published.event(time, Some(pod), kind);
    }

    /// A cgroup of a pod or a container came or went.
    pub(super) fn changed(&mut self, change: Change) {
        match change {
            Change::PodAppeared { uid, class } => {
                self.reconcile_due = true;
                // A cgroup that was made anew is another pod.
                self.eviction.forget(&uid);
                self.reclaimed_appeared(&uid);
                let qos_class = class.to_string();
                self.pod_event(&uid, EventKind::PodAdded { qos_class });
            }
            Change::ContainerAppeared { uid, container } => {
                self.container_appeared(&uid, &container);
                self.pod_event(&uid, EventKind::ContainerStarted { container });
            }
            Change::ContainerGone {
                uid,
                container,
                path,
            } => {
                self.figures.close(&path);
                self.figures.forget_limits(&uid, Some(&container));
                self.hierarchy.container_gone(&path);
                self.pod_event(&uid, EventKind::ContainerStopped { container });
            }
            Change::PodGone { uid, path, total } => {
                self.reconcile_due = true;
                self.figures.close(&path);
                self.figures.forget_limits(&uid, None);
                let kind = EventKind::PodRemoved {
                    usage_core_nano_seconds: total.cpu_ns,
                    exits: total.exits,
                };
                self.pod_event(&uid, kind);
                self.eviction.forget(&uid);
                self.pods.cgroup_gone(&uid);
            }
        }
    }

    fn reclaimed_appeared(&mut self, uid: &PodUid) {
        let cx = Context::of(&self.env, &self.pods, &self.figures);
        let fact = Hierarchy::reclaimed_appeared(cx, uid);
        self.apply(fact);
    }

    fn container_appeared(&mut self, uid: &PodUid, id: &str) {
        self.reclaimed_appeared(uid);
        let pod = self.figures.pods().get(uid);
        let container = pod.and_then(|pod| pod.containers.get(id));
        if let Some(path) = container.map(|container| container.path.clone()) {
            let cx = Context::of(&self.env, &self.pods, &self.figures);
            let facts = self.hierarchy.container_appeared(cx, &path, uid, id);
            self.apply(facts);
        }
        // The runtime may have known the container before its cgroup was made.
        self.arm_due |= self.pods.container_appeared(uid, id, &self.env) || self.colocation.is_on();
    }

    fn pod_event(&self, uid: &PodUid, kind: EventKind) {
        self.event(Some(self.pods.identity(uid)), kind);
    }
}

fn process_exit(event: &ExitEvent) -> EventKind {
    let signal = (event.status & 0x7f).cast_signed();
    let code = ((event.status >> 8) & 0xff).cast_signed();
    EventKind::ProcessExit {
        pid: event.tgid,
        command: events::command(event),
        exit_code: (signal == 0).then_some(code),
        signal: (signal != 0).then_some(signal),
        oom_killed: event.oom != 0,
        run_time_nanos: event.run_time_ns,
        max_rss_bytes: event.max_rss_pages * rustix::param::page_size() as u64,
    }
}
