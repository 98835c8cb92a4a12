//! What can be wrong with a manifest.

use std::{fmt, path::PathBuf};

use podwarden_policy::validate::PodError;

/// A manifest that cannot be used: where, and why. Compares by what it says, so that a source can
/// tell news from repetition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestError {
    /// The file.
    pub file: PathBuf,
    /// Which document of the file, from 1; `None` when it is about the whole file.
    pub document: Option<usize>,
    /// Why.
    pub problem: Problem,
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(document) = self.document {
            write!(f, ", document {document}")?;
        }
        write!(f, ": {}", self.problem)
    }
}

impl std::error::Error for ManifestError {}

/// Why a manifest cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The file cannot be read.
    #[error("it cannot be read: {0}")]
    Read(String),
    /// Larger than any manifest.
    #[error("it is larger than {limit} bytes, which no manifest is")]
    TooLarge {
        /// The limit, bytes.
        limit: u64,
    },
    /// There is nothing in it.
    #[error("it holds no document; remove the file if its pods shall go")]
    Empty,
    /// Neither YAML nor JSON.
    #[error("not YAML or JSON: {0}")]
    Syntax(String),
    /// Something else than a pod.
    #[error(
        "it is a {kind} ({api_version}), not a Pod (v1); write the pods themselves, as `kubectl get pod -o yaml` does"
    )]
    NotAPod {
        /// `kind`, or `(no kind)`.
        kind: String,
        /// `apiVersion`, or `(no apiVersion)`.
        api_version: String,
    },
    /// A value of the wrong type.
    #[error("{field}: {problem}")]
    Type {
        /// The field, with its parents.
        field: String,
        /// What the parser expected and found.
        problem: String,
    },
    /// A value that cannot be used.
    #[error("{field} is `{value}`: {problem}")]
    Value {
        /// The field, with its parents.
        field: String,
        /// What is written.
        value: String,
        /// What is wrong with it.
        problem: String,
    },
    /// What an API server refuses about the pod as a whole.
    #[error("spec.{0}")]
    Refused(PodError),
    /// Something that every pod has.
    #[error("{0} is missing")]
    Missing(String),
    /// The same, with the pod that it is about.
    #[error("pod {pod}: {problem}")]
    InPod {
        /// `namespace/name`, or the name where no namespace is written.
        pod: String,
        /// Why.
        problem: Box<Problem>,
    },
    /// Another manifest already describes a pod of this uid.
    #[error("uid {uid} is already that of a pod in {}; the one in {} is used", first.display(), first.display())]
    DuplicateUid {
        /// The uid.
        uid: String,
        /// The file whose pod is used.
        first: PathBuf,
    },
}

impl Problem {
    pub(super) fn value(
        field: impl Into<String>,
        value: impl Into<String>,
        problem: impl fmt::Display,
    ) -> Self {
        Self::Value {
            field: field.into(),
            value: value.into(),
            problem: problem.to_string(),
        }
    }
}
