//! What pods and containers are called, and the order of pods.

use std::cmp::Reverse;

use arcstr::{ArcStr, literal};
use podwarden_policy::{PodUid, QosClass};

use crate::{
    accounting::index::{CgroupIndex, PodEntry},
    api::types::{PodRef, PodStats},
};

/// What pods and containers are called, where a source says so.
pub trait Names {
    /// The pod's name and namespace, and `manifest` or `cgroup`; its class where the manifest has it.
    fn pod(&self, uid: &PodUid) -> Named;

    /// A container's name by the runtime's id, where a source has it.
    fn container(&self, uid: &PodUid, id: &str) -> Option<&ArcStr>;

    /// Whether a container is its pod's sandbox, as far as a runtime has reported.
    fn is_sandbox(&self, uid: &PodUid, id: &str) -> bool;
}

/// See [`Names`].
#[derive(Debug, Clone)]
pub struct Named {
    pub pod: PodRef,
    /// `manifest` or `cgroup`.
    pub source: ArcStr,
    /// True once it has been evicted.
    pub evicted: bool,
}

/// A pod's cgroups and what it is called.
pub(super) struct NamedPod<'a> {
    pub(super) uid: &'a PodUid,
    pub(super) entry: &'a PodEntry,
    named: Named,
}

/// Every pod in the order of the API: Guaranteed, Burstable, BestEffort; then by name.
pub(super) fn in_order<'a>(index: &'a CgroupIndex, names: &impl Names) -> Vec<NamedPod<'a>> {
    let pods = index.pods().iter();
    let mut pods: Vec<NamedPod<'a>> = pods
        .map(|(uid, entry)| NamedPod {
            uid,
            entry,
            named: names.pod(uid),
        })
        .collect();
    // The figures themselves are many times as large.
    pods.sort_unstable_by(|a, b| a.key().cmp(&b.key()));
    pods
}

impl NamedPod<'_> {
    fn key(&self) -> (Reverse<QosClass>, &str, &str, &PodUid) {
        let pod = &self.named.pod;
        (
            Reverse(self.entry.class),
            &pod.namespace,
            &pod.name,
            self.uid,
        )
    }

    /// Puts what the pod and its containers are called beside their figures.
    pub(super) fn name(self, pod: &mut PodStats, names: &impl Names) {
        let Self { uid, named, .. } = self;
        pod.pod_ref = named.pod;
        pod.source = named.source;
        pod.phase = if named.evicted {
            literal!("Evicted")
        } else {
            literal!("Running")
        };
        for container in &mut pod.containers {
            let found = names.container(uid, &container.id);
            container.name = found.unwrap_or(&container.id).clone();
            container.sandbox = names.is_sandbox(uid, &container.id);
        }
    }
}
