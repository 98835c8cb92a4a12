//! Pods and errors as every source gives them.

use std::{collections::BTreeMap, path::PathBuf};

use podwarden_policy::{Pod, QosClass};
use serde::{Deserialize, Serialize};

use super::{ManifestError, Problem};

podwarden_policy::names! {
    /// Where pods come from, in the order of precedence: of a pod that two have, that of the lesser counts.
    pub enum Source {
        Apiserver = "apiserver",
        Kubelet = "kubelet",
        File = "file",
        Http = "http",
    }
}

/// Where in its source a pod was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    Manifest {
        file: PathBuf,
        document: usize,
    },
    Object {
        /// `metadata.uid`. Not the pod's own where this is a mirror.
        uid: String,
        /// The mirror of a static pod: the kubelet made it so that the API shows one.
        mirror: bool,
    },
    /// The kubelet, which runs it.
    Kubelet,
}

/// `status.phase` of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Accepted, not all containers run yet.
    Pending,
    /// Bound, and its containers were started.
    Running,
    /// Every container ended well and none starts again.
    Succeeded,
    /// Every container ended, one of them badly, or it was evicted.
    Failed,
}

/// A pod with where it was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourcedPod {
    pub pod: Pod,
    pub qos: QosClass,
    pub origin: Origin,
    /// Its phase; `None` where the source has none.
    pub phase: Option<Phase>,
    /// Its status says why the pod is in its phase, such as `Evicted`.
    #[serde(default)]
    pub has_reason: bool,
    /// The names of its containers by the runtime's ids, as far as its status has them.
    pub containers: BTreeMap<String, String>,
    /// It has a `metadata.deletionTimestamp`.
    pub deleting: bool,
    /// It asks for other resources than are in force: its kubelet may write its limits at any time.
    #[serde(default)]
    pub resizing: bool,
}

impl SourcedPod {
    pub fn of_manifest(pod: Pod, qos: QosClass, origin: Origin) -> Self {
        Self {
            pod,
            qos,
            origin,
            phase: None,
            has_reason: false,
            containers: BTreeMap::new(),
            deleting: false,
            resizing: false,
        }
    }

    /// Its name within its source.
    pub fn key(&self) -> &str {
        match &self.origin {
            Origin::Manifest { .. } | Origin::Kubelet => self.pod.uid.as_str(),
            Origin::Object { uid, .. } => uid,
        }
    }

    /// True where its containers have ended for good.
    pub fn has_ended(&self) -> bool {
        matches!(self.phase, Some(Phase::Succeeded | Phase::Failed))
    }

    /// True for a pod of the API server.
    pub fn is_object(&self) -> bool {
        matches!(self.origin, Origin::Object { .. })
    }

    pub fn is_mirror(&self) -> bool {
        matches!(self.origin, Origin::Object { mirror: true, .. })
    }
}

/// A pod of a source that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    #[error(transparent)]
    Manifest(ManifestError),
    #[error(
        "pod {pod} (uid {uid}) of the {by}: {problem}; what was known of it before stays in force"
    )]
    Object {
        by: Source,
        /// `metadata.uid`; empty where it has none.
        uid: String,
        pod: String,
        problem: Problem,
    },
}

impl SourceError {
    /// What is wrong, with the pod that it is about.
    pub fn problem(self) -> Problem {
        match self {
            Self::Manifest(error) => error.problem,
            Self::Object { pod, problem, .. } => Problem::InPod {
                pod,
                problem: Box::new(problem),
            },
        }
    }

    /// The [`SourcedPod::key`] of the pod that it is about, where that is known.
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Manifest(_) => None,
            Self::Object { uid, .. } => Some(uid).filter(|uid| !uid.is_empty()).map(String::as_str),
        }
    }
}
