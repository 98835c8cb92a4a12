//! What the API server fills into a pod.

use crate::{
    limits,
    model::{Pod, Resources},
};

impl Pod {
    /// Fills in what the API server fills in (`SetDefaults_Pod` and `defaultPodRequests` of
    /// Kubernetes `pkg/apis/core/v1/defaults.go`). A manifest that did not pass through an API
    /// server needs this before anything else looks at it:
    ///
    /// - a container's request that is not written is its limit;
    /// - a pod-level request that is not written, where any pod-level limit is, is what the
    ///   containers ask for, or the pod-level limit if none of them asks for that resource.
    pub fn apply_defaults(&mut self) {
        for container in &mut self.containers {
            container.resources.apply_defaults();
        }
        let requests = limits::container_requests(self);
        let asks = |of: fn(&Resources) -> bool| self.containers.iter().any(|c| of(&c.resources));
        let cpu = asks(|r| r.cpu_request.is_some()).then_some(requests.cpu);
        let memory = asks(|r| r.memory_request.is_some()).then_some(requests.memory);
        if let Some(own) = &mut self.pod_resources
            && own.has_limit()
        {
            own.cpu_request = own.cpu_request.or(cpu).or(own.cpu_limit);
            own.memory_request = own.memory_request.or(memory).or(own.memory_limit);
        }
    }
}
