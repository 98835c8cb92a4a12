//! Sources of pods -> one set of pods, and the names behind uids.
//!
//! ```text
//!  apiserver ──┐        ┌──> checkpoint
//!  kubelet ────┼─> mux ──> PodSet ──> the reconciler
//!  file ───────┘
//! ```
//!
//! [`runtime`] says what containers a pod has; no source of pods waits for it.
//!
//! [`Identities`] keeps the name of a uid for as long as its cgroup may still be seen.

use std::{collections::BTreeMap, sync::Arc};

use arcstr::{ArcStr, literal};
use foldhash::HashMap;
use podwarden_policy::{PodUid, QosClass};

use self::runtime::Runtime;
use crate::api::types::PodRef;

pub(crate) mod apiserver;
mod checkpoint;
mod convert;
mod error;
pub mod feed;
mod file;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod http;
mod kubelet;
pub mod manifest;
mod manifests;
mod mux;
pub mod runtime;
mod source;
mod typed;
mod url;

pub use apiserver::Apiserver;
pub use error::{ManifestError, Problem};
pub use feed::Feed;
pub use file::DirError;
use file::{ManifestDir, Watcher};
use manifests::Manifests;
pub use source::{Origin, Phase, Source, SourceError, SourcedPod};

/// The pods of this node, by all sources together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodSet {
    /// The pods that run or will run, by uid; no uid twice.
    pub pods: Vec<SourcedPod>,
    /// Pods that have ended and that a source still has.
    pub ended: Vec<SourcedPod>,
    /// One per pod that cannot be used.
    pub errors: Vec<SourceError>,
    /// The sources that have not sent a whole list yet: a pod that is not in this set may still be one of
    /// theirs.
    pub waiting: Vec<Source>,
    /// When it became known.
    pub since: Since,
}

/// A moment, `CLOCK_MONOTONIC` nanoseconds; 0 without a clock. It does not count when two sets are compared.
#[derive(Debug, Clone, Copy, Default)]
pub struct Since(pub u64);

impl PartialEq for Since {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Since {}

impl PodSet {
    /// True where a source has this pod, whether it runs or has ended.
    pub fn mentions(&self, uid: &PodUid) -> bool {
        let mut all = self.pods.iter().chain(&self.ended);
        all.any(|p| p.pod.uid == *uid)
    }

    /// `metadata.uid` of the API's object for this pod, where the API server is its source.
    pub fn object_of(&self, uid: &PodUid) -> Option<String> {
        let mut all = self.pods.iter().chain(&self.ended);
        match &all.find(|p| p.pod.uid == *uid)?.origin {
            Origin::Object { uid, .. } => Some(uid.clone()),
            Origin::Manifest { .. } | Origin::Kubelet => None,
        }
    }
}

podwarden_policy::names! {
    /// The origin of a pod.
    pub enum KnownBy {
        Manifest = "manifest",
        Apiserver = "apiserver",
        Kubelet = "kubelet",
        /// The container runtime: it has the name and not the spec.
        Runtime = "runtime",
        /// Only its cgroup.
        Cgroup = "cgroup",
    }
}

impl KnownBy {
    /// Its name; the copies take no memory.
    pub fn text(self) -> ArcStr {
        match self {
            Self::Manifest => literal!("manifest"),
            Self::Apiserver => literal!("apiserver"),
            Self::Kubelet => literal!("kubelet"),
            Self::Runtime => literal!("runtime"),
            Self::Cgroup => literal!("cgroup"),
        }
    }
}

/// The pod behind a uid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodIdentity {
    /// Name, namespace and uid; where only the cgroup is known, the uid is the name.
    pub pod: PodRef,
    /// Its class by its source; `None` where only its cgroup shows one.
    pub qos: Option<QosClass>,
    pub known_by: KnownBy,
}

impl PodIdentity {
    fn of(pod: &SourcedPod) -> Self {
        Self {
            pod: PodRef {
                name: pod.pod.name.as_str().into(),
                namespace: pod.pod.namespace.as_str().into(),
                uid: pod.pod.uid.clone(),
            },
            qos: Some(pod.qos),
            known_by: match pod.origin {
                Origin::Manifest { .. } => KnownBy::Manifest,
                Origin::Object { .. } => KnownBy::Apiserver,
                Origin::Kubelet => KnownBy::Kubelet,
            },
        }
    }

    /// Of a pod that is known from its cgroup alone.
    pub fn of_cgroup(uid: &PodUid) -> Self {
        Self {
            pod: PodRef {
                name: uid.as_str().into(),
                namespace: ArcStr::new(),
                uid: uid.clone(),
            },
            qos: None,
            known_by: KnownBy::Cgroup,
        }
    }
}

/// uid -> identity, of every pod that a source named and that was not forgotten since, or that the
/// container runtime knows.
#[derive(Debug, Default)]
pub struct Identities {
    sources: HashMap<PodUid, Known>,
    runtime: Arc<Runtime>,
}

#[derive(Debug)]
struct Known {
    identity: PodIdentity,
    /// Names by the runtime's ids.
    containers: BTreeMap<String, ArcStr>,
}

impl Identities {
    /// Learns the pods of a set. Those that are not in it any more keep their names until
    /// [`Identities::forget`]: their cgroups may outlive them.
    pub fn learn(&mut self, set: &PodSet) {
        for pod in set.pods.iter().chain(&set.ended) {
            let known = Known {
                identity: PodIdentity::of(pod),
                containers: (pod.containers.iter())
                    .map(|(id, name)| (id.clone(), name.as_str().into()))
                    .collect(),
            };
            self.sources.insert(pod.pod.uid.clone(), known);
        }
    }

    /// Replaces what the runtime knows.
    pub fn learn_runtime(&mut self, runtime: Arc<Runtime>) {
        self.runtime = runtime;
    }

    /// The pod behind a uid; named by the uid itself where neither a source nor the runtime knows it.
    pub fn get(&self, uid: &PodUid) -> PodIdentity {
        match self.sources.get(uid) {
            Some(known) => known.identity.clone(),
            None => match self.runtime.state.pod(uid) {
                Some(pod) => PodIdentity {
                    pod: pod.clone(),
                    qos: None,
                    known_by: KnownBy::Runtime,
                },
                None => PodIdentity::of_cgroup(uid),
            },
        }
    }

    /// The name of a container, where the runtime or a source knows it.
    pub fn container(&self, uid: &PodUid, id: &str) -> Option<&str> {
        self.container_name(uid, id).map(ArcStr::as_str)
    }

    /// As [`Identities::container`].
    pub fn container_name(&self, uid: &PodUid, id: &str) -> Option<&ArcStr> {
        if let Some(known) = self.runtime.state.container(uid, id) {
            return Some(&known.name);
        }
        let known = self.sources.get(uid)?;
        known.containers.get(id)
    }

    /// True where the runtime says that it is its pod's sandbox.
    pub fn is_sandbox(&self, uid: &PodUid, id: &str) -> bool {
        let known = self.runtime.state.container(uid, id);
        known.is_some_and(|known| known.is_sandbox)
    }

    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// For a pod whose cgroup is gone and that no source has.
    pub fn forget(&mut self, uid: &PodUid) {
        self.sources.remove(uid);
    }
}

#[cfg(test)]
mod tests;
