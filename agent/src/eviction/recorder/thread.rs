//! The recorder's thread: reads usage, and finishes flights when their time has come.

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::Instant,
};

use podwarden_cgroup::Tree;
use podwarden_policy::PodUid;

use super::{Message, OpenIncident, flight_record, follow::Curves};
use crate::{api::types::FlightRecord, reactor::trace::Trace};

/// Incidents whose curves are drawn at the same time; more than these are events without a flight.
const OPEN: usize = 16;

/// Exits that one flight has at most.
const EXITS: usize = 64;

/// Runs until the channel closes; then finishes open incidents.
pub(super) fn run(
    tree: &Tree,
    trace: &Trace,
    publish: &impl Fn(u64, FlightRecord),
    waiting: &Receiver<Message>,
) {
    let mut curves = Curves::default();
    let mut open: Vec<OpenIncident> = Vec::new();
    let mut next = Instant::now();
    loop {
        let now = Instant::now();
        let done = open.extract_if(.., |incident| incident.due <= now);
        finish(done.collect(), trace, &curves, publish);
        if next <= now {
            // While something is going on the others' curves matter as well.
            next = now + curves.pass(tree, !open.is_empty());
        }
        match waiting.recv_timeout(next.saturating_duration_since(now)) {
            Ok(Message::Follow(wanted)) => {
                let needed = |uid: &PodUid| open.iter().any(|incident| incident.pod.uid == *uid);
                curves.follow(wanted, needed);
            }
            Ok(Message::Incident(incident)) => {
                if open.len() < OPEN && !is_repeated(&open, &incident) {
                    open.push(*incident);
                }
            }
            Ok(Message::Exit(uid, exit)) => {
                let of_pod = open.iter_mut().filter(|incident| incident.pod.uid == *uid);
                for incident in of_pod.filter(|incident| incident.exits.len() < EXITS) {
                    incident.exits.push(exit.clone());
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                finish(open, trace, &curves, publish);
                return;
            }
        }
    }
}

/// The kernel chooses one process after another of a pod at its limit: the first flight shows all.
fn is_repeated(open: &[OpenIncident], new: &OpenIncident) -> bool {
    let is_oom = |incident: &OpenIncident| incident.incident.scope.is_none();
    is_oom(new) && open.iter().any(|i| is_oom(i) && i.pod == new.pod)
}

fn finish(
    done: Vec<OpenIncident>,
    trace: &Trace,
    curves: &Curves,
    publish: &impl Fn(u64, FlightRecord),
) {
    if done.is_empty() {
        return;
    }
    let readings = trace.read();
    for incident in done {
        let id = incident.id;
        publish(id, flight_record::of(incident, curves, &readings));
    }
}
