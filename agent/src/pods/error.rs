//! Errors in a manifest.

use std::{fmt, path::PathBuf};

use podwarden_policy::validate::PodError;

/// A manifest that cannot be used: where, and why. Compares by what it says, so that a source can
/// tell news from repetition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestError {
    pub file: PathBuf,
    /// Which document of the file, from 1; `None` when it is about the whole file.
    pub document: Option<usize>,
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
    #[error("it cannot be read: {0}")]
    Read(String),
    #[error("it is larger than {limit} bytes, which no manifest is")]
    TooLarge { limit: u64 },
    #[error(
        "the file has more than {limit} documents, and the first {limit} alone are read; split it"
    )]
    TooManyDocuments { limit: usize },
    #[error("it holds no document; remove the file if its pods shall go")]
    Empty,
    #[error("not YAML or JSON: {0}")]
    Syntax(String),
    #[error(
        "it is a {kind} ({api_version}), not a Pod (v1); write the pods themselves, as `kubectl get pod -o yaml` does"
    )]
    NotAPod { kind: String, api_version: String },
    #[error("{field}: {problem}")]
    Type { field: String, problem: String },
    #[error("{field} is `{value}`: {problem}")]
    Value {
        field: String,
        value: String,
        problem: String,
    },
    /// What an API server refuses about the pod as a whole.
    #[error("spec.{0}")]
    Refused(PodError),
    #[error("{0} is missing")]
    Missing(String),
    /// The same, with the pod that it is about.
    #[error("pod {pod}: {problem}")]
    InPod {
        /// `namespace/name`, or the name where no namespace is written.
        pod: String,
        problem: Box<Problem>,
    },
    /// Another manifest already describes a pod of this uid.
    #[error("uid {uid} is already that of a pod in {}; the one in {} is used", first.display(), first.display())]
    DuplicateUid { uid: String, first: PathBuf },
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
