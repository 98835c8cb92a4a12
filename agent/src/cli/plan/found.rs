//! The pods of documents, and what could not be made sense of.

use std::collections::BTreeSet;

use podwarden_policy::PodUid;
use serde_json::Value;

use super::objects::{self, Read};
use crate::pods::{ManifestError, Problem};

/// Pods and errors on the way.
#[derive(Default)]
pub(super) struct Found {
    pub(super) documents: usize,
    uids: BTreeSet<PodUid>,
    pods: Vec<Read>,
    errors: Vec<String>,
}

impl Found {
    pub(super) fn add(&mut self, name: &str, document: usize, mut value: Value) {
        self.documents += 1;
        if let Some(Value::Array(items)) = value.get_mut("items") {
            items.retain(|item| !objects::runs_nowhere(item));
        }
        if objects::runs_nowhere(&value) {
            return;
        }
        for result in objects::read(value) {
            match result {
                Ok(read) if self.uids.insert(read.pod.uid.clone()) => self.pods.push(read),
                Ok(Read { pod, .. }) => {
                    let problem = Problem::InPod {
                        pod: format!("{}/{}", pod.namespace, pod.name),
                        problem: Box::new(Problem::DuplicateUid {
                            uid: pod.uid.to_string(),
                            first: name.into(),
                        }),
                    };
                    self.error(name, document, problem);
                }
                Err(problem) => self.error(name, document, problem),
            }
        }
    }

    pub(super) fn error(&mut self, name: &str, document: usize, problem: Problem) {
        let error = ManifestError {
            file: name.into(),
            document: Some(document),
            problem,
        };
        self.errors.push(error.to_string());
    }

    /// Errors and pods; an error itself where no pod is left to plan for because of others.
    pub(super) fn finish(self, name: &str) -> anyhow::Result<(Vec<String>, Vec<Read>)> {
        if self.pods.is_empty() && !self.errors.is_empty() {
            anyhow::bail!("{name}: no pod can be planned\n{}", self.errors.join("\n"));
        }
        Ok((self.errors, self.pods))
    }
}
