//! The pods of a document: those of an API server, as `kubectl get -o yaml` prints them, and manifests.

use podwarden_policy::Pod;
use serde_json::Value;

use crate::pods::{Problem, apiserver, manifest};

/// A pod that was read.
pub(super) struct Read {
    pub(super) pod: Pod,
    /// Of an API server: it says itself whether it is a static pod.
    pub(super) of_api: bool,
}

/// True for a pod of an API server that counts on no node: it has ended (`filterOutInactivePods` of kubelet
/// `pkg/kubelet/kubelet_pods.go`), or is bound to none yet. A manifest names no node.
pub(super) fn runs_nowhere(pod: &Value) -> bool {
    let text = |path| pod.pointer(path).and_then(Value::as_str);
    let ended = matches!(text("/status/phase"), Some("Succeeded" | "Failed"));
    let bound = text("/spec/nodeName").is_some_and(|node| !node.is_empty());
    ended || is_of_api(pod) && !bound
}

/// Reads a document. The pods of an API server are read as the agent reads them: a mirror has the uid of its
/// static pod, which names its cgroup, and of a resize that counts which was granted.
pub(super) fn read(mut document: Value) -> Vec<Result<Read, Problem>> {
    if is_of_api(&document) {
        return vec![object(&document)];
    }
    let mut all = Vec::new();
    if let Some(Value::Array(items)) = document.get_mut("items") {
        let (objects, others) = items.drain(..).partition::<Vec<_>, _>(is_of_api);
        *items = others;
        all.extend(objects.iter().map(object));
    }
    all.extend(manifest::pods(document).into_iter().map(|result| {
        let of_api = false;
        result.map(|(pod, _)| Read { pod, of_api })
    }));
    all
}

/// Only what an API server wrote has a version. The version of a list is the list's.
fn is_of_api(pod: &Value) -> bool {
    let is_pod = pod.get("kind").is_none_or(|kind| kind == "Pod");
    is_pod && pod.pointer("/metadata/resourceVersion").is_some()
}

fn object(object: &Value) -> Result<Read, Problem> {
    let pod = apiserver::object(object)?;
    Ok(Read { pod, of_api: true })
}
