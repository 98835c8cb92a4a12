//! What the accounting found -> events, and what the loop has to do about it.

use super::SlowLoop;
use crate::{
    accounting::{Occurrence, index::Change},
    api::types::EventKind,
    base::clock,
    kernel::events,
};

impl SlowLoop {
    pub(super) fn take_records(&mut self) {
        for occurrence in self.parts.accounting.drain(&self.parts.tree) {
            match occurrence {
                Occurrence::Changed(change) => self.changed(change),
                Occurrence::Exit { uid, event } => {
                    self.exited(&uid, &event);
                    self.record_exit(&uid, &event);
                }
                Occurrence::Oom { uid, event } => {
                    let pod = uid.map(|uid| self.identities.get(&uid).pod);
                    let time = clock::text_of(event.header.time_ns);
                    let kind = EventKind::KernelOom { pid: event.tgid };
                    let id = self.parts.published.event(time, pod.clone(), kind);
                    self.record_oom(id, pod, event.header.time_ns);
                }
            }
        }
    }

    fn exited(&self, uid: &str, event: &podwarden_abi::ExitEvent) {
        let signal = (event.status & 0x7f).cast_signed();
        let code = ((event.status >> 8) & 0xff).cast_signed();
        let kind = EventKind::ProcessExit {
            pid: event.tgid,
            command: events::command(event),
            exit_code: (signal == 0).then_some(code),
            signal: (signal != 0).then_some(signal),
            oom_killed: event.oom != 0,
            run_time_nanos: event.run_time_ns,
            max_rss_bytes: event.max_rss_pages * rustix::param::page_size() as u64,
        };
        let pod = self.identities.get(uid).pod;
        let time = clock::text_of(event.header.time_ns);
        self.parts.published.event(time, Some(pod), kind);
    }

    pub(super) fn changed(&mut self, change: Change) {
        let (uid, kind) = match change {
            Change::PodAppeared { uid, class } => {
                self.stale = true;
                // Its cgroup may have been made anew: another pod, for all that was done to the last.
                self.tokens.forget(&uid);
                self.evictions.done.remove(&uid);
                let qos_class = class.to_string();
                (uid, EventKind::PodAdded { qos_class })
            }
            Change::ContainerAppeared { uid, container } => {
                self.container_appeared(&uid, &container);
                self.seek_container(&uid, &container);
                (uid, EventKind::ContainerStarted { container })
            }
            Change::ContainerGone {
                uid,
                container,
                rel,
            } => {
                self.sampler.close(&rel);
                self.container_gone(&rel);
                (uid, EventKind::ContainerStopped { container })
            }
            Change::PodGone { uid, rel, total } => {
                self.stale = true;
                self.sampler.close(&rel);
                let kind = EventKind::PodRemoved {
                    usage_core_nano_seconds: total.cpu_ns,
                    exits: total.exits,
                };
                (uid, kind)
            }
        };
        let gone = matches!(kind, EventKind::PodRemoved { .. });
        let pod = self.identities.get(&uid).pod;
        self.parts
            .published
            .event(clock::now_text(), Some(pod), kind);
        if gone {
            self.tokens.forget(&uid);
            self.evictions.done.remove(&uid);
            if !self.parts.pods.borrow().mentions(&uid) {
                self.identities.forget(&uid);
            }
        }
    }
}
