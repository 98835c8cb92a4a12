//! The QoS class of a pod (`ComputePodQOS` of Kubernetes `pkg/apis/core/v1/helper/qos/qos.go`).

use crate::model::{Pod, QosClass, Resources};

/// Classifies a pod by its CPU and memory alone; a quantity of zero counts as not written.
///
/// Pod-level resources, even empty ones, stand for the containers. Without them every container
/// counts, init containers and sidecars too: Guaranteed needs both limits in each, and
/// the sums of requests equal to the sums of limits.
pub fn classify(pod: &Pod) -> QosClass {
    let mut sum = Positive::default();
    let mut all_limited = true;
    match &pod.pod_resources {
        Some(resources) => all_limited = sum.add(resources),
        None => {
            for container in &pod.containers {
                all_limited &= sum.add(&container.resources);
            }
        }
    }
    sum.class(all_limited)
}

/// Sums of the quantities above zero. 128 bits: the comparison must not be decided by saturation.
#[derive(Default)]
struct Positive {
    cpu_request: u128,
    cpu_limit: u128,
    memory_request: u128,
    memory_limit: u128,
}

impl Positive {
    /// Adds one set of resources; true when it limits both CPU and memory.
    fn add(&mut self, resources: &Resources) -> bool {
        let cpu_limit = resources.cpu_limit.unwrap_or_default().0;
        let memory_limit = resources.memory_limit.unwrap_or_default().0;
        self.cpu_request += u128::from(resources.cpu_request.unwrap_or_default().0);
        self.cpu_limit += u128::from(cpu_limit);
        self.memory_request += u128::from(resources.memory_request.unwrap_or_default().0);
        self.memory_limit += u128::from(memory_limit);
        cpu_limit > 0 && memory_limit > 0
    }

    fn class(&self, all_limited: bool) -> QosClass {
        let any = self.cpu_request + self.cpu_limit + self.memory_request + self.memory_limit;
        if any == 0 {
            QosClass::BestEffort
        } else if all_limited
            && self.cpu_request == self.cpu_limit
            && self.memory_request == self.memory_limit
        {
            QosClass::Guaranteed
        } else {
            QosClass::Burstable
        }
    }
}
