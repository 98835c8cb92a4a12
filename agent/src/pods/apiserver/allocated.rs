//! The resources that the kubelet has granted to a pod, where its spec already asks for others (KEP-1287,
//! in-place resize). Values only.
//!
//! A resize changes the spec at once, and the kubelet may defer it or find it infeasible for good. The kubelet
//! works from what it has allocated (`pkg/kubelet/allocation`), so class, ranking, reserve and limits follow from
//! that here too. The larger of spec and status, which `PodRequests` with `UseStatusResources` takes, is the
//! scheduler's view: it keeps room for what may come.
//!
//! - Requests are those of `status.containerStatuses[].allocatedResources`, which the kubelet writes.
//! - A status has no allocated limits. While the spec is what was granted, its limits are; otherwise those in
//!   force are, `status.containerStatuses[].resources`. Those of a Guaranteed pod are its requests.
//! - A resize never changes the class (API validation), so figures of two moments that would are not used.

use podwarden_policy::{Bytes, ContainerKind, MilliCpu, Pod, QosClass, Resources, qos};
use serde::Deserialize;

use super::object::PodStatus;
use crate::pods::convert::{self, Quantities};

/// The condition of a resize that is deferred or infeasible.
const RESIZE_PENDING: &str = "PodResizePending";
/// The condition of one that is granted and not in force yet.
const RESIZE_IN_PROGRESS: &str = "PodResizeInProgress";

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Condition {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ContainerStatus {
    pub(super) name: String,
    /// `containerd://ID`; empty until it was started.
    #[serde(rename = "containerID")]
    pub(super) id: Option<String>,
    allocated_resources: Option<Quantities>,
    resources: Option<InForce>,
}

/// Requests and limits as the runtime has them.
#[derive(Default, Deserialize)]
#[serde(default)]
struct InForce {
    limits: Option<Quantities>,
}

impl PodStatus {
    fn container(&self, name: &str, kind: ContainerKind) -> Option<&ContainerStatus> {
        let list = match kind {
            ContainerKind::App => &self.container_statuses,
            ContainerKind::Init | ContainerKind::Sidecar => &self.init_container_statuses,
        };
        list.iter().flatten().find(|status| status.name == name)
    }

    /// A kubelet before 1.33 writes no allocated resources, and one without the feature writes none.
    fn tells_allocated(&self) -> bool {
        let lists = [&self.container_statuses, &self.init_container_statuses];
        let mut all = lists.into_iter().flatten().flatten();
        all.any(|status| status.allocated_resources.is_some())
    }
}

/// Puts what the kubelet has granted in the place of what the spec asks for. True where a resize is not done, so that the
/// kubelet may write other limits at any time.
pub(super) fn apply(pod: &mut Pod, status: &PodStatus, generation: Option<i64>) -> bool {
    let mut granted = pod.clone();
    requests(&mut granted, status);
    let has = |kind| {
        let mut conditions = status.conditions.iter().flatten();
        conditions.any(|condition| condition.kind == kind)
    };
    let pending = has(RESIZE_PENDING);
    let unseen = generation
        .zip(status.observed_generation)
        .is_some_and(|(now, seen)| seen < now);
    if granted == *pod && !pending && !unseen {
        return has(RESIZE_IN_PROGRESS);
    }
    let class = qos::classify(pod);
    let with_spec_limits = granted.clone();
    limits(&mut granted, status, class);
    let same_class = |pod: &Pod| qos::classify(pod) == class;
    if let Some(granted) = [granted, with_spec_limits].into_iter().find(same_class) {
        *pod = granted;
    }
    true
}

fn requests(pod: &mut Pod, status: &PodStatus) {
    let tells = status.tells_allocated();
    for container in &mut pod.containers {
        let Some(of) = status.container(&container.name, container.kind) else {
            continue;
        };
        let started = of.id.as_ref().is_some_and(|id| !id.is_empty());
        let allocated = match &of.allocated_resources {
            Some(allocated) => convert::of_status(Some(allocated), None),
            // It was granted none.
            None if tells && started => Resources::default(),
            None => continue,
        };
        container.resources.cpu_request = allocated.cpu_request;
        container.resources.memory_request = allocated.memory_request;
    }
    let overhead = pod.overhead.unwrap_or_default();
    if let (Some(own), Some(allocated)) = (&mut pod.pod_resources, &status.allocated_resources) {
        let allocated = convert::of_status(Some(allocated), None);
        // The status counts the overhead too.
        replace(
            &mut own.cpu_request,
            less_cpu(allocated.cpu_request, overhead.cpu),
        );
        replace(
            &mut own.memory_request,
            less(allocated.memory_request, overhead.memory),
        );
    }
}

fn limits(pod: &mut Pod, status: &PodStatus, class: QosClass) {
    let own_resources = pod.pod_resources.is_some();
    for container in &mut pod.containers {
        let resources = &mut container.resources;
        if class == QosClass::Guaranteed && !own_resources {
            resources.cpu_limit = resources.cpu_request;
            resources.memory_limit = resources.memory_request;
            continue;
        }
        let of = status.container(&container.name, container.kind);
        let Some(in_force) = of.and_then(|of| of.resources.as_ref()) else {
            continue;
        };
        let in_force = convert::of_status(None, in_force.limits.as_ref());
        if own_resources {
            // The runtime also has the pod's own limit for a container without one.
            replace(&mut resources.cpu_limit, in_force.cpu_limit);
            replace(&mut resources.memory_limit, in_force.memory_limit);
        } else {
            resources.cpu_limit = in_force.cpu_limit;
            resources.memory_limit = in_force.memory_limit;
        }
    }
    let overhead = pod.overhead.unwrap_or_default();
    let Some(own) = &mut pod.pod_resources else {
        return;
    };
    if class == QosClass::Guaranteed {
        own.cpu_limit = own.cpu_request;
        own.memory_limit = own.memory_request;
    } else if let Some(in_force) = &status.resources {
        let in_force = convert::of_status(None, in_force.limits.as_ref());
        replace(
            &mut own.cpu_limit,
            less_cpu(in_force.cpu_limit, overhead.cpu),
        );
        replace(
            &mut own.memory_limit,
            less(in_force.memory_limit, overhead.memory),
        );
    }
}

/// Only what is written is replaced: the status also has the sums of what is not.
fn replace<T>(written: &mut Option<T>, by: Option<T>) {
    if written.is_some() && by.is_some() {
        *written = by;
    }
}

fn less(amount: Option<Bytes>, overhead: Option<Bytes>) -> Option<Bytes> {
    amount.map(|amount| amount.saturating_sub(overhead.unwrap_or_default()))
}

fn less_cpu(amount: Option<MilliCpu>, overhead: Option<MilliCpu>) -> Option<MilliCpu> {
    amount.map(|amount| amount.saturating_sub(overhead.unwrap_or_default()))
}

#[cfg(test)]
mod tests;
