//! What pods and containers are called, and the order of pods.

use podwarden_policy::PodUid;

use crate::api::types::{PodRef, PodStats};

/// What pods and containers are called, where a source says so.
pub trait Names {
    /// The pod's name and namespace, and `manifest` or `cgroup`; its class where the manifest has it.
    fn pod(&self, uid: &PodUid) -> Named;

    /// A container's name by the runtime's id, where a source has it.
    fn container(&self, uid: &PodUid, id: &str) -> Option<&str>;

    /// Whether a container is its pod's sandbox, as far as a runtime has reported.
    fn is_sandbox(&self, uid: &PodUid, id: &str) -> bool;
}

/// See [`Names`].
#[derive(Debug, Clone)]
pub struct Named {
    pub pod: PodRef,
    /// `manifest` or `cgroup`.
    pub source: &'static str,
    /// True once it has been evicted.
    pub evicted: bool,
}

/// Puts what a pod and its containers are called beside their figures.
pub(super) fn name(pod: &mut PodStats, uid: &PodUid, names: &impl Names) {
    let named = names.pod(uid);
    pod.pod_ref = named.pod;
    named.source.clone_into(&mut pod.source);
    let phase = if named.evicted { "Evicted" } else { "Running" };
    phase.clone_into(&mut pod.phase);
    for container in &mut pod.containers {
        let found = names.container(uid, &container.id);
        found
            .unwrap_or(&container.id)
            .clone_into(&mut container.name);
        container.sandbox = names.is_sandbox(uid, &container.id);
    }
}

/// Guaranteed, Burstable, BestEffort; then by name.
pub(super) fn sort_key(pod: &PodStats) -> (u8, &str, &str, &str) {
    let tier = match pod.qos_class.as_str() {
        "Guaranteed" => 0,
        "Burstable" => 1,
        _ => 2,
    };
    let PodRef {
        name,
        namespace,
        uid,
    } = &pod.pod_ref;
    (tier, namespace, name, uid)
}
