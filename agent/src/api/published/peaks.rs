//! The highest memory usage of pods and containers since a time that each reader names itself: no reader takes a peak
//! away from another.
//!
//! Each sampling pass adds the peak of the time since the pass before. Only those that no later one reaches are kept,
//! so that they fall: the first that ends after a time is the highest since then.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use foldhash::{HashMap, HashSet};
use jiff::Timestamp;
use podwarden_policy::PodUid;

use crate::api::types::{MemoryStats, PodStats};

/// Peaks of a cgroup. Beyond that the two oldest become one: a question about a time before the second is answered from
/// the first on.
const KEPT: usize = 32;

#[derive(Debug, Default)]
pub(super) struct Peaks(Mutex<HashMap<PodUid, OfPod>>);

#[derive(Debug, Default)]
struct OfPod {
    own: Peak,
    /// By container id.
    containers: HashMap<String, Peak>,
}

impl OfPod {
    /// The container's, or the pod's own for `None`.
    fn get(&self, id: Option<&str>) -> Option<&Peak> {
        match id {
            Some(id) => self.containers.get(id),
            None => Some(&self.own),
        }
    }

    fn put(&mut self, id: Option<&str>, reading: Reading) {
        match id {
            None => self.own.put(reading),
            Some(id) => match self.containers.get_mut(id) {
                Some(peak) => peak.put(reading),
                None => self
                    .containers
                    .entry(id.to_owned())
                    .or_default()
                    .put(reading),
            },
        }
    }
}

#[derive(Debug, Default)]
struct Peak {
    last: Option<Reading>,
    falling: VecDeque<Window>,
}

#[derive(Debug, Clone, Copy)]
struct Reading {
    at: Timestamp,
    usage: u64,
    highest: Option<u64>,
}

/// The time up to a pass from the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Window {
    end: Timestamp,
    peak: u64,
}

impl Peak {
    fn put(&mut self, now: Reading) {
        let peak = match self.last {
            // A pass that did not read it.
            Some(last) if last.at == now.at => return,
            Some(last) if now.highest > last.highest => now.highest.unwrap_or(now.usage),
            Some(last) => now.usage.max(last.usage),
            None => now.highest.unwrap_or(now.usage),
        };
        self.last = Some(now);
        // A clock that was set back leaves none that ends later.
        while let Some(last) = self.falling.back()
            && (last.peak <= peak || last.end >= now.at)
        {
            self.falling.pop_back();
        }
        self.falling.push_back(Window { end: now.at, peak });
        if self.falling.len() > KEPT
            && let Some(oldest) = self.falling.pop_front()
            && let Some(next) = self.falling.front_mut()
        {
            next.peak = oldest.peak;
        }
    }

    fn since(&self, time: Timestamp) -> Option<u64> {
        let first = self.falling.iter().find(|window| window.end > time);
        first
            .map(|window| window.peak)
            .or(self.last.map(|last| last.usage))
    }
}

/// Times of one pass, most of which are the same.
#[derive(Debug, Default)]
struct Times<'a>(Option<(&'a str, Timestamp)>);

impl<'a> Times<'a> {
    fn parse(&mut self, text: &'a str) -> Option<Timestamp> {
        match self.0 {
            Some((last, time)) if last == text => Some(time),
            _ => {
                let time = text.parse().ok()?;
                self.0 = Some((text, time));
                Some(time)
            }
        }
    }
}

impl Peaks {
    /// Adds what a pass has read.
    pub(super) fn note(&self, pods: &[PodStats]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut times = Times::default();
        for pod in pods {
            let uid = &pod.pod_ref.uid;
            if !all.contains_key(uid) {
                all.insert(uid.clone(), OfPod::default());
            }
            let Some(of_pod) = all.get_mut(uid) else {
                continue;
            };
            for (id, memory) in parts(pod) {
                let Some(memory) = memory else { continue };
                let Some(at) = times.parse(&memory.time) else {
                    continue;
                };
                let reading = Reading {
                    at,
                    usage: memory.usage_bytes,
                    highest: memory.peak_bytes,
                };
                of_pod.put(id, reading);
            }
            if of_pod.containers.len() > pod.containers.len() {
                let is_there = |id: &str| pod.containers.iter().any(|one| one.id == id);
                of_pod.containers.retain(|id, _| is_there(id));
            }
        }
        if all.len() > pods.len() {
            let uids: HashSet<_> = pods.iter().map(|pod| &pod.pod_ref.uid).collect();
            all.retain(|uid, _| uids.contains(uid));
        }
    }

    /// Puts the peak since `time` beside each pod's and container's memory.
    pub(super) fn put(&self, time: Timestamp, pods: &mut [PodStats]) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for pod in pods {
            let Some(of_pod) = all.get(&pod.pod_ref.uid) else {
                continue;
            };
            let since = |id| of_pod.get(id).and_then(|peak| peak.since(time));
            if let Some(memory) = &mut pod.memory {
                memory.peak_since_bytes = since(None);
            }
            for container in &mut pod.containers {
                if let Some(memory) = &mut container.memory {
                    memory.peak_since_bytes = since(Some(&container.id));
                }
            }
        }
    }
}

/// The memory of a pod, then that of its containers.
fn parts(pod: &PodStats) -> impl Iterator<Item = (Option<&str>, Option<&MemoryStats>)> {
    let containers = pod.containers.iter();
    let containers = containers.map(|one| (Some(one.id.as_str()), one.memory.as_ref()));
    [(None, pod.memory.as_ref())].into_iter().chain(containers)
}

#[cfg(test)]
mod tests;
