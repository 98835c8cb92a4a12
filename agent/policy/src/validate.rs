//! The API server's validation of a pod's resources.
//!
//! Manifests from files pass no API server. Each rule is one of `ValidatePodSpec` in Kubernetes
//! `pkg/apis/core/validation/validation.go`; call [`Pod::apply_defaults`] first, as it does.

use alloc::{string::String, vec::Vec};

use crate::{
    limits,
    model::{Pod, Resources},
    signal::Amount,
};

/// One thing that is wrong; the message names field and values, and the pod is the caller's to
/// name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PodError {
    /// A limit below its request.
    #[error("{field}.limits.{resource}: {limit} is below the request of {request}")]
    LimitBelowRequest {
        /// Of what, as a path below `spec`.
        field: String,
        /// `cpu` or `memory`.
        resource: &'static str,
        /// The limit.
        limit: Amount,
        /// The request.
        request: Amount,
    },
    /// A pod-level request below what the containers ask for.
    #[error("resources.requests.{resource}: {pod} is below the containers' {containers}")]
    PodBelowContainers {
        /// `cpu` or `memory`.
        resource: &'static str,
        /// The pod-level request.
        pod: Amount,
        /// The containers' requests together.
        containers: Amount,
    },
    /// A container's limit above the pod-level limit.
    #[error("{field}.limits.{resource}: {container} is above the pod's limit of {pod}")]
    ContainerAbovePod {
        /// Of what, as a path below `spec`.
        field: String,
        /// `cpu` or `memory`.
        resource: &'static str,
        /// The container's limit.
        container: Amount,
        /// The pod-level limit.
        pod: Amount,
    },
    /// Nothing to run.
    #[error("containers: there is none")]
    NoContainers,
}

/// One resource of some resources: its name, request and limit.
type Row = (&'static str, Option<Amount>, Option<Amount>);

fn rows(resources: &Resources) -> [Row; 2] {
    [
        (
            "cpu",
            resources.cpu_request.map(Amount::Cpu),
            resources.cpu_limit.map(Amount::Cpu),
        ),
        (
            "memory",
            resources.memory_request.map(Amount::Memory),
            resources.memory_limit.map(Amount::Memory),
        ),
    ]
}

/// Everything that is wrong with a pod's resources; empty when nothing is.
pub fn validate(pod: &Pod) -> Vec<PodError> {
    let mut errors = Vec::new();
    if pod.app_containers().next().is_none() {
        errors.push(PodError::NoContainers);
    }
    let pod_level = pod.pod_resources.as_ref();
    for container in &pod.containers {
        let field = alloc::format!("containers[{}].resources", container.name);
        below_request(&field, &container.resources, &mut errors);
        if let Some(own) = pod_level {
            above_pod(&field, &container.resources, own, &mut errors);
        }
    }
    if let Some(own) = pod_level {
        below_request("resources", own, &mut errors);
        let sums = limits::container_requests(pod);
        let sums = [Amount::Cpu(sums.cpu), Amount::Memory(sums.memory)];
        for ((resource, request, _), containers) in rows(own).into_iter().zip(sums) {
            if let Some(pod) = request.filter(|request| *request < containers) {
                errors.push(PodError::PodBelowContainers {
                    resource,
                    pod,
                    containers,
                });
            }
        }
    }
    errors
}

fn below_request(field: &str, resources: &Resources, errors: &mut Vec<PodError>) {
    for (resource, request, limit) in rows(resources) {
        if let (Some(request), Some(limit)) = (request, limit)
            && limit < request
        {
            errors.push(PodError::LimitBelowRequest {
                field: field.into(),
                resource,
                limit,
                request,
            });
        }
    }
}

fn above_pod(field: &str, resources: &Resources, own: &Resources, errors: &mut Vec<PodError>) {
    for ((resource, _, limit), (_, _, pod)) in rows(resources).into_iter().zip(rows(own)) {
        if let (Some(container), Some(pod)) = (limit, pod)
            && container > pod
        {
            errors.push(PodError::ContainerAbovePod {
                field: field.into(),
                resource,
                container,
                pod,
            });
        }
    }
}
