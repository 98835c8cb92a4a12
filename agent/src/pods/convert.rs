//! A v1 Pod of the API -> the pod that the policy decides about.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::core::v1::{self, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use podwarden_policy::{
    Bytes, Container, ContainerKind, MilliCpu, Pod, PodUid, Reclaimed, Resources,
    colocation::{
        class::{Labels, PRIORITY_CLASS_LABEL, QOS_CLASS_LABEL, WAIT_OBJECTIVE_ANNOTATION},
        evict_cpu::{EVICTION_ENABLED_LABEL, EVICTION_POLICY_ANNOTATION},
    },
    model::{Overhead, ReclaimedTier, SYSTEM_CRITICAL_PRIORITY},
    quantity::{self, QuantityError},
    validate,
};

use super::{Problem, apiserver::MIRROR};

/// Built-in priority classes (`pkg/apis/scheduling/types.go`).
const CLUSTER_CRITICAL: &str = "system-cluster-critical";
const NODE_CRITICAL: &str = "system-node-critical";

/// Who has checked a pod's figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checked {
    /// A manifest: this is the check.
    Here,
    /// The API server or the kubelet has accepted the pod, and the kubelet runs it whatever is thought of
    /// its figures here: they are capped instead of refused (as `ParseQuantity` of apimachinery does).
    ByServer,
}

impl Checked {
    fn amount<T: From<u64>>(self, parsed: Result<T, QuantityError>) -> Result<T, QuantityError> {
        match self {
            Self::Here => parsed,
            Self::ByServer => quantity::capped(parsed),
        }
    }
}

/// Converts a pod, with `fallback_uid` where it has none.
///
/// Adds what the API server would have: the namespace `default`, requests from limits, the priority of the
/// two built-in classes.
pub fn pod(from: &v1::Pod, fallback_uid: &str, checked: Checked) -> Result<Pod, Problem> {
    let meta = &from.metadata;
    let name = named("metadata.name", meta.name.as_deref())?;
    let namespace = match meta.namespace.as_deref() {
        None | Some("") => "default".to_owned(),
        Some(namespace) => named("metadata.namespace", Some(namespace))?,
    };
    let uid = match meta.uid.as_deref() {
        None | Some("") => fallback_uid,
        Some(uid) => checked_uid(uid)?,
    };
    let spec = from
        .spec
        .as_ref()
        .ok_or_else(|| Problem::Missing("spec".to_owned()))?;
    let class = spec.priority_class_name.as_deref();
    // A manifest of this node may say so itself; for a server's pod its caller decides.
    let mirror = checked == Checked::Here
        && (meta.annotations.as_ref()).is_some_and(|a| a.contains_key(MIRROR));
    let mut pod = Pod {
        uid: PodUid::from(uid),
        name,
        namespace,
        priority: spec.priority.unwrap_or_else(|| class_priority(class)),
        critical: mirror,
        node_critical: class == Some(NODE_CRITICAL),
        static_pod: true,
        containers: containers(spec, checked)?,
        pod_resources: None,
        overhead: None,
        grace_seconds: grace(
            (meta.deletion_grace_period_seconds).or(spec.termination_grace_period_seconds),
        ),
        colocation: colocation_labels(meta.labels.as_ref(), meta.annotations.as_ref()),
    };
    if let Some(requirements) = &spec.resources {
        pod.pod_resources = Some(resources("spec.resources", requirements, checked)?);
    }
    let overhead = spec.overhead.as_ref().map(|from| overhead(from, checked));
    pod.overhead = overhead.transpose()?;
    pod.apply_defaults();
    if checked == Checked::ByServer {
        return Ok(pod);
    }
    // The pod's own resources against its containers'.
    match validate::validate(&pod).into_iter().next() {
        Some(error) => Err(Problem::Refused(error)),
        None => Ok(pod),
    }
}

/// A negative period is the shortest.
fn grace(seconds: Option<i64>) -> Option<u32> {
    seconds.map(|seconds| u32::try_from(seconds.max(0)).unwrap_or(u32::MAX))
}

fn colocation_labels(
    labels: Option<&BTreeMap<String, String>>,
    annotations: Option<&BTreeMap<String, String>>,
) -> Labels {
    let label = |name| labels.and_then(|labels| labels.get(name)).cloned();
    let annotation = |name| annotations.and_then(|all| all.get(name)).cloned();
    Labels {
        qos_class: label(QOS_CLASS_LABEL),
        priority_class: label(PRIORITY_CLASS_LABEL),
        wait_objective: annotation(WAIT_OBJECTIVE_ANNOTATION),
        eviction_policy: annotation(EVICTION_POLICY_ANNOTATION),
        eviction_enabled: label(EVICTION_ENABLED_LABEL),
    }
}

/// The priority admission would have set.
fn class_priority(class: Option<&str>) -> i32 {
    match class {
        Some(CLUSTER_CRITICAL) => SYSTEM_CRITICAL_PRIORITY,
        Some(NODE_CRITICAL) => SYSTEM_CRITICAL_PRIORITY + 1000,
        _ => 0,
    }
}

fn named(field: &str, name: Option<&str>) -> Result<String, Problem> {
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        return Err(Problem::Missing(field.to_owned()));
    };
    let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'-' | b'.');
    if name.len() <= 253 && name.bytes().all(allowed) {
        return Ok(name.to_owned());
    }
    Err(Problem::value(
        field,
        name,
        "only a-z, 0-9, - and . are allowed, at most 253 of them",
    ))
}

/// The uid becomes part of a path, so other characters are refused. No `_`: the systemd driver
/// writes `-` that way.
fn checked_uid(uid: &str) -> Result<&str, Problem> {
    if uid.len() <= 64 && uid.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-') {
        return Ok(uid);
    }
    let problem = "only letters, digits and - are allowed, at most 64 of them";
    Err(Problem::value("metadata.uid", uid, problem))
}

fn containers(spec: &v1::PodSpec, checked: Checked) -> Result<Vec<Container>, Problem> {
    if spec.containers.is_empty() {
        return Err(Problem::Missing("spec.containers".to_owned()));
    }
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let init = init
        .iter()
        .enumerate()
        .map(|(i, c)| ("initContainers", i, c));
    let app = spec
        .containers
        .iter()
        .enumerate()
        .map(|(i, c)| ("containers", i, c));
    let mut names = BTreeSet::new();
    let mut all = Vec::with_capacity(spec.containers.len());
    for (list, index, from) in init.chain(app) {
        let field = format!("spec.{list}[{index}]");
        let name = named(&format!("{field}.name"), Some(&from.name))?;
        if !names.insert(name.clone()) {
            let problem = "another container has this name";
            return Err(Problem::value(format!("{field}.name"), name, problem));
        }
        all.push(container(&field, list, name, from, checked)?);
    }
    Ok(all)
}

fn container(
    field: &str,
    list: &str,
    name: String,
    from: &v1::Container,
    checked: Checked,
) -> Result<Container, Problem> {
    let kind = match (list, from.restart_policy.as_deref()) {
        ("containers", _) => ContainerKind::App,
        (_, Some("Always")) => ContainerKind::Sidecar,
        _ => ContainerKind::Init,
    };
    let mut wanted = Resources::default();
    if let Some(requirements) = &from.resources {
        wanted = resources(&format!("{field}.resources"), requirements, checked)?;
    }
    Ok(Container {
        name,
        kind,
        resources: wanted,
    })
}

/// Requests and limits that a server's status tells of; what cannot be read counts as not written.
pub fn of_status(requests: Option<&Quantities>, limits: Option<&Quantities>) -> Resources {
    let (parse_cpu, parse_memory) = (quantity::parse_cpu, quantity::parse_memory);
    let of = Checked::ByServer;
    let cpu = |from, list| read("", list, from, "cpu", of, parse_cpu).ok().flatten();
    let memory = |from, list| {
        read("", list, from, "memory", of, parse_memory)
            .ok()
            .flatten()
    };
    Resources {
        cpu_request: cpu(requests, "requests"),
        cpu_limit: cpu(limits, "limits"),
        memory_request: memory(requests, "requests"),
        memory_limit: memory(limits, "limits"),
        ..Resources::default()
    }
}

fn resources(
    field: &str,
    from: &ResourceRequirements,
    checked: Checked,
) -> Result<Resources, Problem> {
    let requests = from.requests.as_ref();
    let limits = from.limits.as_ref();
    let (cpu, memory) = (quantity::parse_cpu, quantity::parse_memory);
    let result = Resources {
        cpu_request: read(field, "requests", requests, "cpu", checked, cpu)?,
        cpu_limit: read(field, "limits", limits, "cpu", checked, cpu)?,
        memory_request: read(field, "requests", requests, "memory", checked, memory)?,
        memory_limit: read(field, "limits", limits, "memory", checked, memory)?,
        hugepages: hugepages(field, requests, limits, checked)?,
        reclaimed: reclaimed(field, requests, limits, checked)?,
    };
    if checked == Checked::ByServer {
        return Ok(result);
    }
    known(field, "requests", requests)?;
    known(field, "limits", limits)?;
    within(field, "cpu", requests, result.cpu_request, result.cpu_limit)?;
    within(
        field,
        "memory",
        requests,
        result.memory_request,
        result.memory_limit,
    )?;
    Ok(result)
}

/// A name without a domain is one of Kubernetes' own (`validateContainerResourceName`,
/// `pkg/apis/core/validation`): `memry: 1Gi` must not become a pod without a limit.
fn known(field: &str, list: &str, from: Option<&Quantities>) -> Result<(), Problem> {
    let known = |name: &str| {
        matches!(name, "cpu" | "memory" | "ephemeral-storage")
            || name.starts_with("hugepages-")
            || name.contains('/')
    };
    match from.into_iter().flatten().find(|(name, _)| !known(name)) {
        None => Ok(()),
        Some((name, Quantity(text))) => Err(Problem::value(
            format!("{field}.{list}.{name}"),
            text,
            "there is no such resource; those of a vendor have a domain, as vendor.example/name",
        )),
    }
}

pub type Quantities = BTreeMap<String, Quantity>;

fn read<T: From<u64>>(
    field: &str,
    list: &str,
    from: Option<&Quantities>,
    resource: &str,
    checked: Checked,
    parse: impl Fn(&str) -> Result<T, QuantityError>,
) -> Result<Option<T>, Problem> {
    let Some(Quantity(text)) = from.and_then(|q| q.get(resource)) else {
        return Ok(None);
    };
    let parsed = checked.amount(parse(text));
    parsed
        .map(Some)
        .map_err(|e| Problem::value(format!("{field}.{list}.{resource}"), text, e))
}

/// A request may not exceed its limit (`ValidateResourceRequirements`, `pkg/apis/core/validation`).
fn within<T: PartialOrd>(
    field: &str,
    resource: &str,
    requests: Option<&Quantities>,
    request: Option<T>,
    limit: Option<T>,
) -> Result<(), Problem> {
    match (request, limit) {
        (Some(request), Some(limit)) if request > limit => {
            let text = requests
                .and_then(|q| q.get(resource))
                .map_or("", |q| q.0.as_str());
            let field = format!("{field}.requests.{resource}");
            Err(Problem::value(field, text, "it is above the limit"))
        }
        _ => Ok(()),
    }
}

/// `hugepages-<page size>`; the limit where both are written, as they must be equal.
fn hugepages(
    field: &str,
    requests: Option<&Quantities>,
    limits: Option<&Quantities>,
    checked: Checked,
) -> Result<BTreeMap<Bytes, Bytes>, Problem> {
    let mut found = BTreeMap::new();
    for (list, from) in [("requests", requests), ("limits", limits)] {
        for (resource, Quantity(text)) in from.into_iter().flatten() {
            let Some(size) = resource.strip_prefix("hugepages-") else {
                continue;
            };
            let field = format!("{field}.{list}.{resource}");
            let size = quantity::parse_memory(size)
                .map_err(|e| Problem::value(&field, resource, format!("as a page size: {e}")))?;
            let amount = checked.amount(quantity::parse_memory(text));
            let amount = amount.map_err(|e| Problem::value(&field, text, e))?;
            found.insert(size, amount);
        }
    }
    Ok(found)
}

/// `kubernetes.io/batch-cpu` and its like: whole numbers, CPU in thousandths of a core. A container that asks for
/// both kinds counts as batch.
fn reclaimed(
    field: &str,
    requests: Option<&Quantities>,
    limits: Option<&Quantities>,
    checked: Checked,
) -> Result<Option<Reclaimed>, Problem> {
    for tier in [ReclaimedTier::Batch, ReclaimedTier::Mid] {
        let [cpu, memory] = tier.resources();
        let amount = |list, from, resource| {
            read(field, list, from, resource, checked, quantity::parse_count)
        };
        let found = Reclaimed {
            tier,
            cpu_request: amount("requests", requests, cpu)?.map(MilliCpu),
            cpu_limit: amount("limits", limits, cpu)?.map(MilliCpu),
            memory_request: amount("requests", requests, memory)?.map(Bytes),
            memory_limit: amount("limits", limits, memory)?.map(Bytes),
        };
        if checked == Checked::Here {
            let (request, limit) = (found.memory_request, found.memory_limit);
            within(field, cpu, requests, found.cpu_request, found.cpu_limit)?;
            within(field, memory, requests, request, limit)?;
        }
        let empty = Reclaimed {
            tier,
            ..Reclaimed::default()
        };
        if found != empty {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn overhead(from: &Quantities, checked: Checked) -> Result<Overhead, Problem> {
    if checked == Checked::Here {
        known("spec", "overhead", Some(from))?;
    }
    let (cpu, memory) = (quantity::parse_cpu, quantity::parse_memory);
    Ok(Overhead {
        cpu: read("spec", "overhead", Some(from), "cpu", checked, cpu)?,
        memory: read("spec", "overhead", Some(from), "memory", checked, memory)?,
    })
}
