//! The runtime's state: the pod and name of each container. Values only.

use std::collections::{BTreeMap, BTreeSet};

use arcstr::{ArcStr, literal};
use podwarden_cgroup::ChildKinds;
use podwarden_policy::PodUid;

use super::cri::{Container, PodSandbox, VersionResponse};
use crate::api::types::PodRef;

/// The kubelet writes the pod's uid on all that it has made (`pkg/kubelet/types/labels.go`).
const POD_UID: &str = "io.kubernetes.pod.uid";
/// And the container's name.
const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// Where the kubelet has the pod from: `api`, or `file` or `http` for a static pod. The kubelet writes it over
/// whatever the pod's author wrote (`pkg/kubelet/types/pod_update.go`).
const CONFIG_SOURCE: &str = "kubernetes.io/config.source";

/// What a sandbox is called among its pod's containers, as cAdvisor and dockershim called it. No container
/// of a spec can have that name: theirs are in lower case.
pub const SANDBOX_NAME: ArcStr = literal!("POD");

/// One container or sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownContainer {
    pub uid: PodUid,
    /// As in the pod's spec; [`SANDBOX_NAME`] for a sandbox.
    pub name: ArcStr,
    /// It is its pod's sandbox.
    pub is_sandbox: bool,
    /// It was made by a runtime that is not the default one, such as one whose sandbox is a virtual machine that
    /// holds the workload.
    pub of_other_handler: bool,
}

/// Everything that the runtime listed, also what has ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeState {
    containers: BTreeMap<String, KnownContainer>,
    pods: BTreeMap<PodUid, PodRef>,
    /// uids of static pods.
    static_pods: BTreeSet<PodUid>,
}

impl RuntimeState {
    /// From the lists. What belongs to no pod is left out.
    pub fn new(sandboxes: &[PodSandbox], containers: &[Container]) -> Self {
        let mut state = Self::default();
        for sandbox in sandboxes {
            let Some(uid) = uid_of_sandbox(sandbox) else {
                continue;
            };
            let uid = PodUid::from(uid);
            if let Some(metadata) = &sandbox.metadata {
                let pod = PodRef {
                    name: metadata.name.as_str().into(),
                    namespace: metadata.namespace.as_str().into(),
                    uid: uid.clone(),
                };
                state.pods.insert(uid.clone(), pod);
            }
            let source = sandbox.annotations.get(CONFIG_SOURCE);
            if source.is_some_and(|source| source != "api") {
                state.static_pods.insert(uid.clone());
            }
            let known = KnownContainer {
                uid,
                name: SANDBOX_NAME,
                is_sandbox: true,
                of_other_handler: !sandbox.runtime_handler.is_empty(),
            };
            state.containers.insert(sandbox.id.clone(), known);
        }
        for container in containers {
            let Some(uid) = uid_of_container(container, sandboxes) else {
                continue;
            };
            let metadata = container.metadata.as_ref().map(|metadata| &metadata.name);
            let label = container.labels.get(CONTAINER_NAME);
            let name = [metadata, label]
                .into_iter()
                .flatten()
                .find(|n| !n.is_empty());
            let known = KnownContainer {
                uid: uid.into(),
                name: name.unwrap_or(&container.id).as_str().into(),
                is_sandbox: false,
                of_other_handler: false,
            };
            state.containers.insert(container.id.clone(), known);
        }
        state
    }

    /// True when the runtime lists the container.
    pub fn has(&self, id: &str) -> bool {
        self.containers.contains_key(id)
    }

    /// A container of a pod; `None` also where the runtime says that it is another pod's.
    pub fn container(&self, uid: &str, id: &str) -> Option<&KnownContainer> {
        self.containers.get(id).filter(|known| known.uid == *uid)
    }

    pub fn pod(&self, uid: &str) -> Option<&PodRef> {
        self.pods.get(uid)
    }

    /// True for a static pod, by the kubelet's own word on its sandbox.
    pub fn is_static(&self, uid: &str) -> bool {
        self.static_pods.contains(uid)
    }

    /// For tests of other modules: uids with their sources.
    #[cfg(test)]
    pub fn of_sandboxes(pods: &[(&str, &str)]) -> Self {
        let sandbox = |(uid, source): &(&str, &str)| PodSandbox {
            id: format!("sandbox-{uid}"),
            labels: [(POD_UID.to_owned(), (*uid).to_owned())].into(),
            annotations: [(CONFIG_SOURCE.to_owned(), (*source).to_owned())].into(),
            ..PodSandbox::default()
        };
        Self::new(&pods.iter().map(sandbox).collect::<Vec<_>>(), &[])
    }

    /// Sorts the cgroups of a pod's containers into sandboxes and workloads. `containers` are pairs of the
    /// runtime's id and the cgroup. A sandbox of another than the default runtime is neither: it may hold the
    /// workload, and its content decides.
    pub fn child_kinds<'a>(
        &self,
        uid: &str,
        containers: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> ChildKinds {
        let mut kinds = ChildKinds::default();
        for (id, path) in containers {
            let Some(known) = self.container(uid, id) else {
                continue;
            };
            let Some(name) = path.rsplit('/').next().filter(|n| !n.is_empty()) else {
                continue;
            };
            if known.is_sandbox && known.of_other_handler {
                continue;
            }
            let names: &mut BTreeSet<String> = match known.is_sandbox {
                true => &mut kinds.sandboxes,
                false => &mut kinds.workloads,
            };
            names.insert(name.to_owned());
        }
        kinds
    }
}

pub(super) fn uid_of_sandbox(sandbox: &PodSandbox) -> Option<&str> {
    let label = sandbox.labels.get(POD_UID);
    let metadata = sandbox.metadata.as_ref().map(|metadata| &metadata.uid);
    let mut found = [label, metadata].into_iter().flatten();
    found.find(|uid| !uid.is_empty()).map(String::as_str)
}

/// The pod that a container is of.
pub(super) fn uid_of_container<'a>(
    container: &'a Container,
    sandboxes: &'a [PodSandbox],
) -> Option<&'a str> {
    let label = container.labels.get(POD_UID).map(String::as_str);
    label.filter(|uid| !uid.is_empty()).or_else(|| {
        let id = &container.pod_sandbox_id;
        uid_of_sandbox(sandboxes.iter().find(|sandbox| sandbox.id == *id)?)
    })
}

/// The runtime, as far as it has answered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Runtime {
    /// Its last answer, which stays in force while it does not answer.
    pub state: RuntimeState,
    /// Its name and version; `None` before the first answer.
    pub version: Option<VersionResponse>,
    /// Why it does not answer.
    pub problem: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::super::cri::{ContainerMetadata, PodSandboxMetadata};
    use super::*;

    fn sandbox(id: &str, uid: &str, labelled: bool) -> PodSandbox {
        let labels = labelled.then(|| (POD_UID.to_owned(), uid.to_owned()));
        PodSandbox {
            id: id.to_owned(),
            metadata: Some(PodSandboxMetadata {
                name: format!("pod-{uid}"),
                uid: uid.to_owned(),
                namespace: "ns".to_owned(),
                attempt: 0,
            }),
            labels: labels.into_iter().collect(),
            ..PodSandbox::default()
        }
    }

    fn container(id: &str, sandbox: &str, name: &str) -> Container {
        Container {
            id: id.to_owned(),
            pod_sandbox_id: sandbox.to_owned(),
            metadata: Some(ContainerMetadata {
                name: name.to_owned(),
                attempt: 0,
            }),
            ..Container::default()
        }
    }

    #[test]
    fn containers_are_their_pods_and_have_their_names() {
        let sandboxes = [sandbox("s1", "a", true), sandbox("s2", "b", false)];
        let mut labelled = container("c1", "gone", "web");
        labelled.labels.insert(POD_UID.to_owned(), "a".to_owned());
        let stray = container("c3", "gone", "who");
        let containers = [labelled, container("c2", "s2", "db"), stray];
        let state = RuntimeState::new(&sandboxes, &containers);
        let name = |uid, id| state.container(uid, id).map(|known| known.name.as_str());
        assert_eq!(name("a", "s1"), Some("POD"));
        assert_eq!(name("a", "c1"), Some("web"));
        assert_eq!(name("b", "c2"), Some("db"));
        assert_eq!(name("a", "c2"), None, "another pod's");
        assert!(!state.has("c3"), "of no pod");
        assert_eq!(state.pod("b").map(|pod| pod.name.as_str()), Some("pod-b"));
    }

    #[test]
    fn a_pods_cgroups_are_told_apart_by_their_names_on_disk() {
        let state = RuntimeState::new(
            &[sandbox("s1", "a", true), sandbox("s2", "b", true)],
            &[container("c1", "s1", "web")],
        );
        let containers = [
            ("s1", "kubepods/poda/cri-containerd-s1.scope"),
            ("c1", "kubepods/poda/c1"),
            ("unknown", "kubepods/poda/unknown"),
            // Another pod's sandbox, although its cgroup is below this pod.
            ("s2", "kubepods/poda/s2"),
        ];
        let kinds = state.child_kinds("a", containers);
        assert_eq!(
            kinds.sandboxes,
            ["cri-containerd-s1.scope".to_owned()].into()
        );
        assert_eq!(kinds.workloads, ["c1".to_owned()].into());
    }

    #[test]
    fn a_sandbox_of_another_runtime_is_not_told_to_be_one() {
        let mut kata = sandbox("s1", "a", true);
        kata.runtime_handler = "kata".to_owned();
        let state = RuntimeState::new(&[kata], &[container("c1", "s1", "web")]);
        let containers = [("s1", "kubepods/poda/s1"), ("c1", "kubepods/poda/c1")];
        let kinds = state.child_kinds("a", containers);
        assert!(kinds.sandboxes.is_empty(), "its content decides");
        assert_eq!(kinds.workloads, ["c1".to_owned()].into());
        assert!(
            state.container("a", "s1").unwrap().is_sandbox,
            "it keeps its name"
        );
    }

    #[test]
    fn static_pods_are_known_by_the_kubelets_annotation() {
        let state = RuntimeState::of_sandboxes(&[("a", "file"), ("b", "api"), ("c", "http")]);
        let known = ["a", "b", "c", "d"].map(|uid| state.is_static(uid));
        assert_eq!(known, [true, false, true, false]);
    }
}
