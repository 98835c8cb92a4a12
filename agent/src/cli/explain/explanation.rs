//! An explanation as data, which text and JSON both print.

use podwarden_policy::{
    Container, ContainerKind, Node, Pod, QosClass, Resources, container,
    desired::{self, Desired},
    evict::{Ranked, Ranking},
    limits,
    plan::{self, Action, Ownership},
    qos,
    reason::Reason,
    reserve,
    settings::Setting,
};
use serde::Serialize;
use serde_with::skip_serializing_none;

use super::{
    change::{Scope, changes_container_with, changes_with},
    class,
};
use crate::{
    api::types::PodRef,
    cli::plan::{
        files::{File, container_files, files},
        input::Input,
        report::{pod_ref, ranking},
    },
    pods::KnownBy,
};

/// What `-o json` prints. What is not known is left out.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Explanation {
    pub(super) pod_ref: PodRef,
    /// `manifest`, or `cgroup` for a pod that no manifest names.
    pub(super) known_by: &'static str,
    pub(super) qos_class: &'static str,
    /// Why it has this class.
    pub(super) class_reason: String,
    /// Its class and priority band in co-location, and where they come from.
    pub(super) colocation: Option<String>,
    /// The requests of its containers and of the pod; empty without a manifest.
    pub(super) resources: Vec<Asked>,
    /// Its cgroup, then its tier's.
    pub(super) cgroups: Vec<Cgroup>,
    /// Values for the runtime.
    pub(super) containers: Vec<OfContainer>,
    pub(super) eviction: Eviction,
    /// Sentences about the whole.
    pub(super) notes: Vec<String>,
}

/// One row of requests, as Kubernetes writes quantities.
#[skip_serializing_none]
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Asked {
    /// A container, `spec.resources`, `spec.overhead` or `the pod`.
    pub(super) name: String,
    pub(super) cpu_request: Option<String>,
    pub(super) cpu_limit: Option<String>,
    pub(super) memory_request: Option<String>,
    pub(super) memory_limit: Option<String>,
}

/// A cgroup with its values.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Cgroup {
    pub(super) path: String,
    /// Whether it was found; `None` where the input has no cgroups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exists: Option<bool>,
    pub(super) values: Vec<Explained>,
}

/// A value with what makes it so.
#[skip_serializing_none]
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Explained {
    /// The reason is the formula with the numbers filled in.
    #[serde(flatten)]
    pub(super) file: File,
    /// Where a number of the formula comes from, where it has a formula of its own.
    pub(super) detail: Option<String>,
    /// What would change it.
    pub(super) changes_with: &'static str,
    /// What is to be written now, where it is not in force.
    pub(super) pending: Option<Pending>,
}

impl Explained {
    pub(super) fn new(file: File, changes_with: &'static str) -> Self {
        Self {
            file,
            detail: None,
            changes_with,
            pending: None,
        }
    }
}

/// What is to be written.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Pending {
    pub(super) value: String,
    pub(super) reason: String,
}

/// The values of one container.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OfContainer {
    pub(super) name: String,
    pub(super) values: Vec<Explained>,
}

/// Where the pod stands in the order of eviction.
#[derive(Debug, Serialize)]
#[serde(tag = "candidacy", rename_all = "camelCase")]
pub(super) enum Eviction {
    /// It is never evicted.
    Protected {
        reason: String,
    },
    /// It is not among the candidates.
    NoCandidate {
        reason: String,
    },
    Candidate(Box<Candidate>),
}

/// A pod's place in the order of eviction.
#[skip_serializing_none]
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Candidate {
    /// From 1.
    pub(super) place: usize,
    pub(super) candidates: usize,
    pub(super) reason: String,
    /// Who goes just before it.
    pub(super) after: Option<Neighbour>,
    /// Who goes just after it.
    pub(super) before: Option<Neighbour>,
    pub(super) changes_with: &'static str,
}

/// The next pod in the order.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Neighbour {
    pub(super) pod_ref: PodRef,
    pub(super) reason: String,
}

impl Explanation {
    /// Of a pod that a manifest names.
    pub(super) fn of(input: &Input, pod: &Pod) -> Self {
        let qos = qos::classify(pod);
        Self {
            pod_ref: pod_ref(pod),
            known_by: KnownBy::Manifest.as_str(),
            qos_class: qos.as_str(),
            class_reason: class::why(pod),
            colocation: Some(class::colocation(pod)),
            resources: asked(pod),
            cgroups: cgroups(input, qos, &input.snapshot.kubepods.pod(qos, &pod.uid)),
            containers: pod
                .containers
                .iter()
                .map(|container| of_container(input, pod, container))
                .collect(),
            eviction: eviction(input, pod),
            notes: notes(input),
        }
    }
}

pub(super) fn notes(input: &Input) -> Vec<String> {
    let mut notes = Vec::new();
    if input.snapshot.ownership == Ownership::Assist {
        notes.push(
            "A kubelet owns the tree (ownership: assist): shown is what podwarden writes there; \
             the rest is the kubelet's."
                .to_owned(),
        );
    }
    notes
}

fn asked(pod: &Pod) -> Vec<Asked> {
    let row = |name: String, from: &Resources| Asked {
        name,
        cpu_request: from.cpu_request.map(|a| a.to_string()),
        cpu_limit: from.cpu_limit.map(|a| a.to_string()),
        memory_request: from.memory_request.map(|a| a.to_string()),
        memory_limit: from.memory_limit.map(|a| a.to_string()),
    };
    let containers = pod.containers.iter();
    let mut rows: Vec<_> = containers
        .map(|c| row(container_name(c), &c.resources))
        .collect();
    if let Some(own) = &pod.pod_resources {
        rows.push(row("spec.resources".to_owned(), own));
    }
    if let Some(overhead) = &pod.overhead {
        let overhead = Resources {
            cpu_request: overhead.cpu,
            memory_request: overhead.memory,
            ..Resources::default()
        };
        rows.push(row("spec.overhead".to_owned(), &overhead));
    }
    let (requests, limits) = (limits::pod_requests(pod), limits::pod_limits(pod));
    // A sum of nothing is no limit.
    let total = Resources {
        cpu_request: Some(requests.cpu),
        cpu_limit: Some(limits.cpu).filter(|limit| !limit.is_zero()),
        memory_request: Some(requests.memory),
        memory_limit: Some(limits.memory).filter(|limit| !limit.is_zero()),
        ..Resources::default()
    };
    rows.push(row("the pod".to_owned(), &total));
    rows
}

fn container_name(container: &Container) -> String {
    match container.kind {
        ContainerKind::App => container.name.clone(),
        ContainerKind::Init => format!("{} (init)", container.name),
        ContainerKind::Sidecar => format!("{} (sidecar)", container.name),
    }
}

/// The cgroup of a pod and the one above it.
pub(super) fn cgroups(
    input: &Input,
    class: QosClass,
    of_pod: &podwarden_policy::name::CgroupName,
) -> Vec<Cgroup> {
    let snapshot = &input.snapshot;
    let tree = desired::tree(snapshot);
    let actions = plan::plan(snapshot);
    let above = match class {
        QosClass::Guaranteed => Scope::Node,
        QosClass::Burstable | QosClass::BestEffort => Scope::Tier,
    };
    let of_tier = snapshot.kubepods.tier(class);
    let wanted = [(of_pod, Scope::Pod), (&of_tier, above)];
    let found = wanted.into_iter().filter_map(|(name, scope)| {
        let cgroup = tree.iter().find(|cgroup| cgroup.name == *name)?;
        let known = !snapshot.cgroups.is_empty();
        Some(Cgroup {
            path: format!("/{}", input.layout.path(name)),
            exists: known.then(|| snapshot.cgroups.contains_key(name)),
            values: values(input, cgroup, scope, &actions),
        })
    });
    found.collect()
}

/// Every file of one cgroup.
fn values(input: &Input, cgroup: &Desired, scope: Scope, actions: &[Action]) -> Vec<Explained> {
    let mut values = Vec::new();
    for (setting, reason) in &cgroup.settings {
        let pending = pending(input, cgroup, setting, actions);
        let detail = match reason {
            Reason::TierReserve { .. } => Some(allocatable(&input.snapshot.node)),
            _ => None,
        };
        for file in files(setting, reason, input.version) {
            let pending = pending.iter().find(|p| p.name == file.name);
            values.push(Explained {
                pending: pending.map(|File { value, reason, .. }| Pending {
                    value: value.clone(),
                    reason: reason.clone(),
                }),
                detail: detail.clone(),
                ..Explained::new(file, changes_with(scope, setting, reason))
            });
        }
    }
    values
}

fn of_container(input: &Input, pod: &Pod, container: &Container) -> OfContainer {
    let values = container::values(&input.snapshot, pod, container);
    let explained = values.iter().flat_map(|(value, reason)| {
        let files = container_files(value, reason, input.version);
        let changes_with = changes_container_with(value, reason);
        files
            .into_iter()
            .map(|file| Explained::new(file, changes_with))
    });
    OfContainer {
        name: container_name(container),
        values: explained.collect(),
    }
}

/// How much memory the tiers' reserve is computed from.
fn allocatable(node: &Node) -> String {
    format!(
        "allocatable: capacity {} - kubeReserved {} - systemReserved {} = {}",
        node.memory_capacity,
        node.kube_reserved.memory,
        node.system_reserved.memory,
        reserve::allocatable(node).kubepods_memory
    )
}

/// The files that the plan writes for a setting of a cgroup.
fn pending(input: &Input, cgroup: &Desired, setting: &Setting, actions: &[Action]) -> Vec<File> {
    let written = actions.iter().filter_map(|action| match action {
        Action::Write {
            cgroup: name,
            setting: written,
            reason,
        } if *name == cgroup.name && same_files(written, setting) => {
            Some(files(written, reason, input.version))
        }
        _ => None,
    });
    written.flatten().collect()
}

fn same_files(a: &Setting, b: &Setting) -> bool {
    match (a, b) {
        (
            Setting::HugetlbLimit { page_size: a, .. },
            Setting::HugetlbLimit { page_size: b, .. },
        ) => a == b,
        _ => std::mem::discriminant(a) == std::mem::discriminant(b),
    }
}

fn eviction(input: &Input, pod: &Pod) -> Eviction {
    let snapshot = &input.snapshot;
    if let Some(protection) = snapshot.exemptions.of(pod) {
        let reason = protection.to_string();
        return Eviction::Protected { reason };
    }
    let order = ranking(snapshot);
    let Some(index) = order.iter().position(|r| r.pod.uid == pod.uid) else {
        let reason = "it has no cgroup".to_owned();
        return Eviction::NoCandidate { reason };
    };
    let neighbour = |ranked: &Ranked<'_>| Neighbour {
        pod_ref: pod_ref(ranked.pod),
        reason: ranked.rank.to_string(),
    };
    let before = index.checked_sub(1).and_then(|i| order.get(i));
    Eviction::Candidate(Box::new(Candidate {
        place: index + 1,
        candidates: order.len(),
        reason: order[index].rank.to_string(),
        after: before.map(neighbour),
        before: order.get(index + 1).map(neighbour),
        changes_with: match snapshot.ranking {
            Ranking::QosFirst => {
                "its class, its working set against its memory request, its priority"
            }
            Ranking::Kubelet => "its working set against its memory request, its priority",
        },
    }))
}
