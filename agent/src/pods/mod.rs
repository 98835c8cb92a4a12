//! Where pods come from, and what they are called.
//!
//! A source tells the whole desired state each time ([`PodSet`]); [`Identities`] remembers who is
//! behind a uid for as long as its cgroup may still be seen.

use std::{collections::HashMap, path::PathBuf};

use podwarden_policy::{Pod, PodUid, QosClass};

use crate::api::PodRef;

pub mod convert;
pub mod error;
pub mod file;
pub mod manifest;

pub use error::{ManifestError, Problem};
pub use file::{DirError, ManifestDir, Watcher};

/// A pod with where it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourcedPod {
    /// The pod.
    pub pod: Pod,
    /// Its class.
    pub qos: QosClass,
    /// The file that describes it.
    pub file: PathBuf,
    /// Which document of the file, from 1.
    pub document: usize,
}

/// Everything that a source wants to run, and what it could not make sense of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodSet {
    /// The pods, by file name and document; no uid twice.
    pub pods: Vec<SourcedPod>,
    /// One per manifest that cannot be used.
    pub errors: Vec<ManifestError>,
}

/// How podwarden knows of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KnownBy {
    /// Its manifest.
    Manifest,
    /// Only its cgroup.
    Cgroup,
}

impl KnownBy {
    /// As the API writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Manifest => "manifest",
            Self::Cgroup => "cgroup",
        }
    }
}

/// Who is behind a uid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodIdentity {
    /// Name, namespace and uid; where only the cgroup is known, the uid is the name.
    pub pod: PodRef,
    /// Its class by its manifest; `None` where only its cgroup can tell.
    pub qos: Option<QosClass>,
    /// How podwarden knows of it.
    pub known_by: KnownBy,
}

impl PodIdentity {
    fn of_manifest(pod: &SourcedPod) -> Self {
        Self {
            pod: PodRef {
                name: pod.pod.name.clone(),
                namespace: pod.pod.namespace.clone(),
                uid: pod.pod.uid.to_string(),
            },
            qos: Some(pod.qos),
            known_by: KnownBy::Manifest,
        }
    }

    /// Of a pod that only its cgroup tells of.
    pub fn of_cgroup(uid: &str) -> Self {
        Self {
            pod: PodRef {
                name: uid.to_owned(),
                namespace: String::new(),
                uid: uid.to_owned(),
            },
            qos: None,
            known_by: KnownBy::Cgroup,
        }
    }
}

/// uid -> identity, of every pod that a manifest named and that was not forgotten since.
#[derive(Debug, Default)]
pub struct Identities(HashMap<PodUid, PodIdentity>);

impl Identities {
    /// Learns the pods of a set. Those that are not in it any more keep their names until
    /// [`Identities::forget`]: their cgroups may outlive their manifests.
    pub fn learn(&mut self, set: &PodSet) {
        for pod in &set.pods {
            self.0
                .insert(pod.pod.uid.clone(), PodIdentity::of_manifest(pod));
        }
    }

    /// Who is behind a uid; the uid itself where no manifest named it.
    pub fn get(&self, uid: &str) -> PodIdentity {
        let known = self.0.get(&PodUid::from(uid));
        known
            .cloned()
            .unwrap_or_else(|| PodIdentity::of_cgroup(uid))
    }

    /// A pod's cgroup is gone, and it is in no manifest.
    pub fn forget(&mut self, uid: &str) {
        self.0.remove(&PodUid::from(uid));
    }
}

#[cfg(test)]
mod tests;
