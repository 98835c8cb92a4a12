//! The text of the API server, or of a kubelet -> events of the mux. Text in, values out.
//!
//! Every pod is parsed on its own, so that an invalid one hides no other. Large
//! unused fields, such as annotations of a megabyte and managedFields, are skipped while
//! parsing.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{self, ResourceRequirements};
use podwarden_policy::{
    colocation::{
        class::{PRIORITY_CLASS_LABEL, QOS_CLASS_LABEL, WAIT_OBJECTIVE_ANNOTATION},
        evict_cpu::{EVICTION_ENABLED_LABEL, EVICTION_POLICY_ANNOTATION},
    },
    qos,
};
use serde::{Deserialize, Deserializer, de};
use serde_json::value::RawValue;

use super::allocated::{self, Condition, ContainerStatus};
use crate::pods::{
    Origin, Phase, Problem, Source, SourceError, SourcedPod,
    convert::{self, Checked, Quantities},
    http::Refusal,
    mux::PodEvent,
    typed::from_json,
};

/// Kubelet `pkg/kubelet/types/pod_update.go`. The value of `mirror` is that of `config.hash`, which is
/// the static pod's uid (`CreateMirrorPod` of `pkg/kubelet/pod/mirror_client.go`, `applyDefaults` of
/// `pkg/kubelet/config/common.go`).
pub(crate) const MIRROR: &str = "kubernetes.io/config.mirror";
/// `file` and `http` are static pods' (the same file).
const SOURCE: &str = "kubernetes.io/config.source";

/// A list, page or whole.
#[derive(Debug, Deserialize)]
pub(in crate::pods) struct List<'a> {
    #[serde(default)]
    pub(super) metadata: ListMeta,
    /// Go writes no items as null.
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ListMeta {
    /// A kubelet writes none.
    pub(super) resource_version: Option<String>,
    /// There is more.
    #[serde(rename = "continue")]
    pub(super) more: String,
}

impl List<'_> {
    /// The pods of the list, which is that of `by`, and the errors of those that cannot be used.
    pub(in crate::pods) fn pods(&self, by: Source) -> (Vec<SourcedPod>, Vec<SourceError>) {
        let (mut pods, mut errors) = (Vec::new(), Vec::new());
        for item in self.items.iter().flatten() {
            match pod(item, by) {
                Ok(pod) => pods.push(pod),
                Err(error) => errors.push(*error),
            }
        }
        (pods, errors)
    }
}

/// One line of a watch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// A pod changed; `version` is where the watch stands after it.
    Pod { event: PodEvent, version: String },
    /// Nothing of ours changed up to `version`.
    Bookmark { version: String },
    /// The server ends the watch for this reason.
    Refused(Refusal),
}

#[derive(Deserialize)]
struct RawLine<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Reads a line of a watch.
pub(super) fn line(text: &str) -> Result<Line, serde_json::Error> {
    let raw: RawLine<'_> = serde_json::from_str(text)?;
    let version = || {
        let object: Object<'_> = serde_json::from_str(raw.object.get())?;
        let version = object.metadata.resource_version;
        version.ok_or_else(|| de::Error::missing_field("metadata.resourceVersion"))
    };
    Ok(match raw.kind {
        "ADDED" | "MODIFIED" => Line::Pod {
            version: version()?,
            event: match pod(raw.object, Source::Apiserver) {
                Ok(pod) => PodEvent::Apply(Box::new(pod)),
                Err(error) => PodEvent::Unusable(error),
            },
        },
        "DELETED" => {
            let object: Object<'_> = serde_json::from_str(raw.object.get())?;
            let uid = object.metadata.uid;
            Line::Pod {
                version: version()?,
                event: PodEvent::Delete(
                    uid.ok_or_else(|| de::Error::missing_field("metadata.uid"))?,
                ),
            }
        }
        "BOOKMARK" => Line::Bookmark {
            version: version()?,
        },
        "ERROR" => Line::Refused(serde_json::from_str(raw.object.get())?),
        other => {
            let known = &["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"];
            return Err(de::Error::unknown_variant(other, known));
        }
    })
}

/// A pod as the API server writes it.
#[derive(Deserialize)]
struct Object<'a> {
    #[serde(default)]
    metadata: Meta,
    #[serde(borrow, default)]
    spec: Option<&'a RawValue>,
    #[serde(default)]
    status: Option<PodStatus>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Meta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    deletion_timestamp: Option<String>,
    #[serde(deserialize_with = "annotations")]
    annotations: BTreeMap<String, String>,
    #[serde(deserialize_with = "of_colocation")]
    labels: BTreeMap<String, String>,
    owner_references: Option<Vec<Owner>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Owner {
    api_version: String,
    kind: String,
    name: String,
}

impl Meta {
    /// The node owns it, as it owns each mirror that its kubelet makes (`CreateMirrorPod`).
    fn is_of_node(&self, node: &str) -> bool {
        let owners = self.owner_references.iter().flatten();
        !node.is_empty()
            && owners
                .into_iter()
                .any(|of| (&*of.api_version, &*of.kind, &*of.name) == ("v1", "Node", node))
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodStatus {
    phase: Option<String>,
    reason: Option<String>,
    pub(super) init_container_statuses: Option<Vec<ContainerStatus>>,
    pub(super) container_statuses: Option<Vec<ContainerStatus>>,
    ephemeral_container_statuses: Option<Vec<ContainerStatus>>,
    pub(super) conditions: Option<Vec<Condition>>,
    pub(super) observed_generation: Option<i64>,
    pub(super) resources: Option<ResourceRequirements>,
    pub(super) allocated_resources: Option<Quantities>,
}

impl PodStatus {
    /// Names by id.
    fn containers(&self) -> BTreeMap<String, String> {
        let all = [
            &self.init_container_statuses,
            &self.container_statuses,
            &self.ephemeral_container_statuses,
        ];
        let all = all.into_iter().flatten().flatten();
        all.filter_map(|status| {
            let (_, id) = status.id.as_ref()?.split_once("://")?;
            Some((id.to_owned(), status.name.clone()))
        })
        .collect()
    }
}

/// The annotations that the kubelet writes, and those that co-location goes by; others are not kept.
fn annotations<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    from.deserialize_any(Kept(&[
        MIRROR,
        SOURCE,
        WAIT_OBJECTIVE_ANNOTATION,
        EVICTION_POLICY_ANNOTATION,
    ]))
}

/// The labels that co-location goes by; others are not kept.
fn of_colocation<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    from.deserialize_any(Kept(&[
        QOS_CLASS_LABEL,
        PRIORITY_CLASS_LABEL,
        EVICTION_ENABLED_LABEL,
    ]))
}

/// Reads a map's entries under these keys.
struct Kept(&'static [&'static str]);

impl<'de> de::Visitor<'de> for Kept {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a map of texts")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(BTreeMap::new())
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut kept = BTreeMap::new();
        while let Some(key) = map.next_key::<String>()? {
            if self.0.contains(&key.as_str()) {
                kept.insert(key, map.next_value()?);
            } else {
                map.next_value::<de::IgnoredAny>()?;
            }
        }
        Ok(kept)
    }
}

/// Reads one pod.
pub(crate) fn pod(raw: &RawValue, by: Source) -> Result<SourcedPod, Box<SourceError>> {
    let error = |uid, pod, problem| {
        Box::new(SourceError::Object {
            by,
            uid,
            pod,
            problem,
        })
    };
    let object: Object<'_> = from_json(raw.get(), "")
        .map_err(|problem| error(uid_of(raw), "(not readable)".to_owned(), problem))?;
    let meta = &object.metadata;
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    converted(&object, by).map_err(|problem| {
        let name = format!("{}/{}", text(&meta.namespace), text(&meta.name));
        error(text(&meta.uid), name, problem)
    })
}

/// The uid of an object that is not understood otherwise, so that what was known of it can stay.
fn uid_of(raw: &RawValue) -> String {
    #[derive(Default, Deserialize)]
    struct Id {
        #[serde(default)]
        metadata: Uid,
    }
    #[derive(Default, Deserialize)]
    struct Uid {
        #[serde(default)]
        uid: String,
    }
    serde_json::from_str::<Id>(raw.get())
        .unwrap_or_default()
        .metadata
        .uid
}

fn converted(object: &Object<'_>, by: Source) -> Result<SourcedPod, Problem> {
    let meta = &object.metadata;
    let uid = meta.uid.clone().filter(|uid| !uid.is_empty());
    let uid = uid.ok_or_else(|| Problem::Missing("metadata.uid".to_owned()))?;
    let mut typed = v1::Pod::default();
    typed.metadata.name.clone_from(&meta.name);
    typed.metadata.namespace.clone_from(&meta.namespace);
    typed.metadata.labels = Some(meta.labels.clone());
    let of_colocation = [WAIT_OBJECTIVE_ANNOTATION, EVICTION_POLICY_ANNOTATION];
    let written = of_colocation.map(|name| meta.annotations.get_key_value(name));
    let written = written.into_iter().flatten();
    typed.metadata.annotations = Some(
        written
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
    );
    let spec = object.spec.map(|raw| from_json(raw.get(), "spec."));
    typed.spec = spec.transpose()?;
    let node = typed
        .spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref());
    // The author of a pod writes its annotations. The kubelet overwrites these in its own list, and
    // a mirror that it made is its node's.
    let of_kubelet = by == Source::Kubelet;
    let mirror = !of_kubelet && meta.is_of_node(node.unwrap_or_default());
    let hash = meta.annotations.get(MIRROR).filter(|_| mirror);
    let of_node = (of_kubelet || hash.is_some())
        && (meta.annotations.get(SOURCE)).is_some_and(|source| source != "api");
    // Its cgroup has the static pod's uid.
    typed.metadata.uid = Some(hash.unwrap_or(&uid).clone());
    let mut pod = convert::pod(&typed, &uid, Checked::ByServer)?;
    pod.static_pod = hash.is_some() || of_node;
    // `IsCriticalPod` of kubelet `pkg/kubelet/types/pod_update.go`.
    pod.critical = pod.static_pod;
    let resizing = match &object.status {
        Some(status) => allocated::apply(&mut pod, status, meta.generation),
        None => false,
    };
    Ok(SourcedPod {
        qos: qos::classify(&pod),
        pod,
        origin: match by {
            Source::Kubelet => Origin::Kubelet,
            Source::Apiserver | Source::File | Source::Http => Origin::Object {
                uid,
                mirror: hash.is_some(),
            },
        },
        phase: object
            .status
            .as_ref()
            .and_then(|s| phase(s.phase.as_deref()?)),
        has_reason: object
            .status
            .as_ref()
            .is_some_and(|s| s.reason.as_ref().is_some_and(|reason| !reason.is_empty())),
        containers: object
            .status
            .as_ref()
            .map_or_else(BTreeMap::new, PodStatus::containers),
        deleting: meta.deletion_timestamp.is_some(),
        resizing,
    })
}

fn phase(text: &str) -> Option<Phase> {
    Some(match text {
        "Pending" => Phase::Pending,
        "Running" => Phase::Running,
        "Succeeded" => Phase::Succeeded,
        "Failed" => Phase::Failed,
        // `Unknown`: the node did not report for a while, which says nothing here.
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
