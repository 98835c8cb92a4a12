//! Pod manifests.

use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

/// The QoS class that a spec asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Qos {
    /// Requests are limits.
    Guaranteed,
    /// Requests only.
    Burstable,
    /// Nothing.
    BestEffort,
}

impl Qos {
    /// As the API names it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }

    /// Its tier's cgroup below `kubepods`, as the cgroupfs driver names it.
    pub(crate) fn tier(self) -> Option<&'static str> {
        match self {
            Self::Guaranteed => None,
            Self::Burstable => Some("burstable"),
            Self::BestEffort => Some("besteffort"),
        }
    }
}

/// A pod with a container `main`.
#[derive(Debug, Clone)]
pub(crate) struct PodSpec {
    /// `metadata.name`.
    pub(crate) name: String,
    /// `metadata.namespace`.
    pub(crate) namespace: &'static str,
    /// `metadata.uid`.
    pub(crate) uid: String,
    /// The class that follows from the resources.
    pub(crate) qos: Qos,
    /// `spec.priority`.
    priority: i32,
    resources: Value,
    /// Containers besides `main`.
    others: Vec<Value>,
    /// `metadata.labels`.
    labels: Value,
    /// `metadata.annotations`.
    annotations: Value,
}

static NEXT: AtomicU32 = AtomicU32::new(1);

impl PodSpec {
    /// CPU and memory as in a manifest; a Guaranteed pod's limit, a Burstable one's request.
    pub(crate) fn new(name: &str, qos: Qos, cpu: &str, memory: &str) -> Self {
        let amounts = json!({"cpu": cpu, "memory": memory});
        let resources = match qos {
            Qos::Guaranteed => json!({"requests": amounts, "limits": amounts}),
            Qos::Burstable => json!({"requests": amounts}),
            Qos::BestEffort => json!({}),
        };
        Self {
            name: name.to_owned(),
            namespace: "e2e",
            uid: fresh_uid(),
            qos,
            priority: 0,
            resources,
            others: Vec::new(),
            labels: json!({}),
            annotations: json!({}),
        }
    }

    /// A Guaranteed pod.
    pub(crate) fn guaranteed(name: &str, memory: &str) -> Self {
        Self::new(name, Qos::Guaranteed, "500m", memory)
    }

    /// A Burstable pod.
    pub(crate) fn burstable(name: &str, memory: &str) -> Self {
        Self::new(name, Qos::Burstable, "100m", memory)
    }

    /// A BestEffort pod.
    pub(crate) fn best_effort(name: &str) -> Self {
        Self::new(name, Qos::BestEffort, "0", "0")
    }

    /// A pod whose only resource is a memory limit, which makes it Burstable.
    pub(crate) fn limited(name: &str, memory: &str) -> Self {
        let mut spec = Self::burstable(name, memory);
        spec.resources =
            json!({"requests": {"memory": memory, "cpu": "100m"}, "limits": {"memory": memory}});
        spec
    }

    /// A BestEffort pod that asks for reclaimed CPU, in thousandths, and memory.
    pub(crate) fn batch(name: &str, cpu: u64, memory: &str) -> Self {
        let amounts = json!({
            "kubernetes.io/batch-cpu": cpu.to_string(),
            "kubernetes.io/batch-memory": memory,
        });
        Self {
            resources: json!({"requests": amounts, "limits": amounts}),
            ..Self::best_effort(name)
        }
    }

    /// The same with one more container, which has the requests and limits of `other`.
    pub(crate) fn and(mut self, name: &str, other: &Self) -> Self {
        let container = json!({"name": name, "image": "none", "resources": other.resources});
        self.others.push(container);
        self
    }

    /// The same as a critical pod, which is never evicted (`system-node-critical`).
    pub(crate) fn critical(self) -> Self {
        Self {
            priority: 2_000_001_000,
            ..self
        }
    }

    /// The same with a priority.
    pub(crate) fn prioritized(self, priority: i32) -> Self {
        Self { priority, ..self }
    }

    /// The same as another's successor: the pod changes, and stays the one that it is.
    pub(crate) fn with_uid_of(self, other: &Self) -> Self {
        Self {
            uid: other.uid.clone(),
            ..self
        }
    }

    /// The same with a label.
    pub(crate) fn labelled(mut self, name: &str, value: &str) -> Self {
        self.labels[name] = json!(value);
        self
    }

    /// The same with an annotation.
    pub(crate) fn annotated(mut self, name: &str, value: &str) -> Self {
        self.annotations[name] = json!(value);
        self
    }

    /// The same in another namespace.
    pub(crate) fn in_namespace(self, namespace: &'static str) -> Self {
        Self { namespace, ..self }
    }

    /// A v1 Pod.
    pub(crate) fn manifest(&self) -> Value {
        let main = json!({"name": "main", "image": "none", "resources": self.resources});
        let containers: Vec<_> = [main].into_iter().chain(self.others.clone()).collect();
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": self.name, "namespace": self.namespace, "uid": self.uid, "labels": self.labels,
                "annotations": self.annotations,
            },
            "spec": {"priority": self.priority, "containers": containers},
        })
    }

    /// What its cgroup is called below kubepods: its tier, where it has one, and the pod.
    pub(crate) fn components(&self) -> impl Iterator<Item = String> {
        let tier = self.qos.tier().map(str::to_owned);
        tier.into_iter().chain([format!("pod{}", self.uid)])
    }
}

/// A uid that no other pod of this machine has.
pub(crate) fn fresh_uid() -> String {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{:08x}-e2e0-4000-8000-{number:012x}", std::process::id())
}
