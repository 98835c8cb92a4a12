//! The object of a pod, as far as it matters to its eviction status.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::server::{GET, Server};
use crate::{api::types::PodRef, eviction::pod_workers::JobError, pods::apiserver::MIRROR};

/// What has a pod's name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The pod, or the mirror of a static pod.
    Is(Object),
    /// Nothing.
    Gone,
    /// A pod that came after it.
    Another,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Object {
    /// Its own uid.
    pub(super) uid: String,
    /// `metadata.resourceVersion`.
    pub(super) version: String,
    /// It says that the pod has ended, by an eviction or otherwise: that is never taken back.
    pub(super) has_ended: bool,
    /// It says that all containers ended well.
    pub(super) has_succeeded: bool,
    /// It says why the pod is in its phase.
    pub(super) has_reason: bool,
    /// Traffic may still be sent to it.
    pub(super) ready: bool,
}

/// The conditions that say so.
pub(super) const READY: [&str; 2] = ["Ready", "ContainersReady"];

#[derive(Deserialize)]
struct Pod {
    metadata: Meta,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    uid: String,
    resource_version: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: String,
    reason: String,
    conditions: Vec<Condition>,
}

#[derive(Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

/// What an answer is to the pod `uid`, whose object is `object` where that is known.
fn found(text: &[u8], uid: &str, object: Option<&str>) -> Result<Found, serde_json::Error> {
    let Pod { metadata, status } = serde_json::from_slice(text)?;
    let is = match object {
        Some(object) => metadata.uid == object,
        None => metadata.uid == uid || metadata.annotations.get(MIRROR).is_some_and(|of| of == uid),
    };
    if !is {
        return Ok(Found::Another);
    }
    Ok(Found::Is(Object {
        uid: metadata.uid,
        version: metadata.resource_version,
        has_ended: matches!(status.phase.as_str(), "Succeeded" | "Failed"),
        has_succeeded: status.phase == "Succeeded",
        has_reason: !status.reason.is_empty(),
        ready: status
            .conditions
            .iter()
            .any(|c| READY.contains(&c.kind.as_str()) && c.status == "True"),
    }))
}

impl Server {
    /// Looks for the object of a pod.
    pub(super) async fn find(&self, pod: &PodRef, object: Option<&str>) -> Result<Found, JobError> {
        match self.pod(&pod.namespace, &pod.name).await? {
            Ok(text) => found(&text, &pod.uid, object).map_err(|error| {
                JobError::new(format!(
                    "the API server's answer to {GET} is not one ({error})"
                ))
            }),
            Err(refusal) if refusal.code == 404 => Ok(Found::Gone),
            Err(refusal) => Err(refusal.failure(GET)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_known_by_its_uid_and_a_mirror_by_that_of_the_static_pod() {
        let pod = |uid: &str, of: Option<&str>, phase: &str| {
            let mut pod = json!({
                "metadata": {"uid": uid, "resourceVersion": "7"},
                "status": {"phase": phase, "conditions": [
                    {"type": "Initialized", "status": "True"},
                    {"type": "Ready", "status": if phase == "Running" { "True" } else { "False" }},
                ]},
            });
            if let Some(of) = of {
                pod["metadata"]["annotations"] = json!({MIRROR: of, "further": "1"});
            }
            pod.to_string()
        };
        let is = |uid: &str, phase: &str| {
            Found::Is(Object {
                uid: uid.to_owned(),
                version: "7".to_owned(),
                has_ended: phase != "Running",
                has_succeeded: phase == "Succeeded",
                has_reason: false,
                ready: phase == "Running",
            })
        };
        for (text, object, expected) in [
            (pod("a", None, "Running"), None, is("a", "Running")),
            (pod("a", None, "Failed"), None, is("a", "Failed")),
            (pod("a", None, "Succeeded"), Some("a"), is("a", "Succeeded")),
            (pod("b", None, "Running"), None, Found::Another),
            (pod("b", Some("a"), "Running"), None, is("b", "Running")),
            (
                pod("b", Some("a"), "Running"),
                Some("b"),
                is("b", "Running"),
            ),
            // The kubelet has made the mirror anew.
            (pod("c", Some("a"), "Running"), Some("b"), Found::Another),
            (pod("b", Some("c"), "Running"), None, Found::Another),
        ] {
            let found = found(text.as_bytes(), "a", object).unwrap();
            assert_eq!(found, expected, "{text} {object:?}");
        }
        found(br#"{"metadata": {"uid": "a"}}"#, "a", None).unwrap_err();
        let starting = br#"{"metadata": {"uid": "a", "resourceVersion": "7"}}"#;
        let Found::Is(object) = found(starting, "a", None).unwrap() else {
            panic!("it is not found");
        };
        assert!(!object.has_ended && !object.ready);
    }
}
