//! The texts of manifests -> pods, and the errors of those that cannot be used.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use podwarden_policy::PodUid;

use super::{ManifestError, Origin, Problem, SourcedPod, manifest};

/// The largest text that is read, bytes: above what the API server takes for one object (1.5 MiB), with
/// room for a list.
pub(super) const MOST: u64 = 16 << 20;

/// Everything that a place of manifests holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifests {
    /// By file name and document; no uid twice.
    pub pods: Vec<SourcedPod>,
    /// One per manifest that cannot be used.
    pub errors: Vec<ManifestError>,
}

/// One pass over a place of manifests.
#[derive(Default)]
pub(super) struct Reading {
    set: Manifests,
    uids: BTreeMap<PodUid, PathBuf>,
}

impl Reading {
    pub(super) fn done(self) -> Manifests {
        self.set
    }

    /// How many manifests cannot be used so far.
    pub(super) fn errors(&self) -> usize {
        self.set.errors.len()
    }

    /// Adds the pods of one file.
    pub(super) fn add(&mut self, file: &Path, text: &str) {
        let parsed = manifest::parse(text);
        if parsed.is_empty() && manifest::is_blank(text) {
            self.error(file, None, Problem::Empty);
        }
        for (document, result) in parsed {
            match result {
                Err(problem) => self.error(file, Some(document), problem),
                Ok((pod, qos)) => match self.uids.get(&pod.uid) {
                    Some(first) => {
                        let problem = Problem::DuplicateUid {
                            uid: pod.uid.to_string(),
                            first: first.clone(),
                        };
                        self.error(file, Some(document), problem);
                    }
                    None => {
                        let file = file.to_owned();
                        let origin = Origin::Manifest { file, document };
                        self.pod(SourcedPod::of_manifest(pod, qos, origin));
                    }
                },
            }
        }
    }

    fn pod(&mut self, pod: SourcedPod) {
        if let Origin::Manifest { file, .. } = &pod.origin {
            self.uids.insert(pod.pod.uid.clone(), file.clone());
        }
        self.set.pods.push(pod);
    }

    /// A file, or a document of it, cannot be used.
    pub(super) fn error(&mut self, file: &Path, document: Option<usize>, problem: Problem) {
        self.set.errors.push(ManifestError {
            file: file.to_owned(),
            document,
            problem,
        });
    }

    /// Keeps the pods of the documents of `file` that have just failed.
    pub(super) fn keep(&mut self, file: &Path, previous: &Manifests) {
        let failed = |document| {
            self.set.errors.iter().any(|e| {
                e.file == file
                    && e.document.is_none_or(|d| d == document)
                    && !matches!(e.problem, Problem::DuplicateUid { .. })
            })
        };
        let kept: Vec<_> = previous
            .pods
            .iter()
            .filter(|p| {
                matches!(&p.origin, Origin::Manifest { file: from, document }
                    if from == file && failed(*document))
            })
            .cloned()
            .collect();
        for pod in kept {
            if !self.uids.contains_key(&pod.pod.uid) {
                self.pod(pod);
            }
        }
    }
}
