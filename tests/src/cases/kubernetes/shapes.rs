//! Pods of all shapes that an API server takes and this node has room for. The same seed gives the same pods.

use anyhow::{Context as _, Result};
use podwarden::pods::manifest;
use podwarden_policy::{Bytes, ContainerKind, MilliCpu, QosClass, limits};
use serde_json::{Value, json};

use crate::containerd::BUSYBOX;
use crate::harness::{RandomPods, manifest as manifest_of};

/// A pod's overhead comes with a runtime class.
pub(super) const WITH_OVERHEAD: &str = "with-overhead";

/// Tries for one pod that is small enough.
const TRIES: usize = 500;
/// What a random pod may request.
const MOST_CPU: MilliCpu = MilliCpu(400);
const MOST_MEMORY: Bytes = Bytes::mebi(100);

/// What becomes of a pod by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// All its containers run.
    Runs,
    /// It ends.
    Ends,
    /// It has its sandbox, and not all of its containers start.
    Waits,
}

/// What is done to a pod that has met its fate.
#[derive(Debug, Clone)]
pub(super) enum Then {
    Nothing,
    /// A strategic merge patch of its resources.
    Resize(Value),
    /// It has a long time to end.
    Delete,
    /// One more container, for a look inside.
    Debug,
}

/// Where a pod comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    Server,
    /// A Job has it as its template.
    Job,
    /// The kubelet's manifest directory.
    File,
}

/// A pod to be made.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) name: String,
    pub(super) manifest: Value,
    pub(super) fate: Fate,
    pub(super) then: Then,
    pub(super) from: From,
    /// What it requests.
    pub(super) cpu: MilliCpu,
    pub(super) memory: Bytes,
    /// The smallest CPU limit of it and its containers.
    pub(super) cpu_limit: Option<MilliCpu>,
}

/// A pod of a class, of any other shape.
pub(super) fn random(pods: &mut RandomPods, class: QosClass) -> Result<Shape> {
    for _ in 0..TRIES {
        let mut pod = pods.pod(class)?;
        pod.overhead = None;
        let mut manifest = manifest_of(&pod);
        // The server gives it a uid, and no priority without a class of priority.
        manifest["metadata"] = json!({"name": pod.name});
        let spec = manifest["spec"].as_object_mut().context("no spec")?;
        spec.remove("priority");
        let kinds = pod.containers.iter();
        let (init, app): (Vec<_>, Vec<_>) =
            kinds.partition(|container| container.kind != ContainerKind::App);
        for (list, containers) in [("initContainers", init), ("containers", app)] {
            for (at, container) in containers.into_iter().enumerate() {
                let value = &mut manifest["spec"][list][at];
                value["image"] = BUSYBOX.into();
                value["command"] = match container.kind {
                    ContainerKind::Init => ends(),
                    ContainerKind::Sidecar | ContainerKind::App => stays(),
                };
            }
        }
        let shape = shape(&pod.name, manifest, Fate::Runs)?;
        if shape.cpu <= MOST_CPU && shape.memory <= MOST_MEMORY {
            return Ok(shape);
        }
    }
    anyhow::bail!("no small {class} pod came about in {TRIES} tries")
}

pub(super) fn stays() -> Value {
    json!(["/bin/sleep", "1000000"])
}

pub(super) fn ends() -> Value {
    json!(["/bin/sleep", "0"])
}

/// A pod that runs, by its spec; containers without a command stay.
pub(super) fn shape(name: &str, mut manifest: Value, fate: Fate) -> Result<Shape> {
    manifest["apiVersion"] = "v1".into();
    manifest["kind"] = "Pod".into();
    manifest["metadata"]["name"] = name.into();
    manifest["metadata"]["namespace"] = "default".into();
    let spec = &mut manifest["spec"];
    spec["terminationGracePeriodSeconds"] = 1.into();
    spec["automountServiceAccountToken"] = false.into();
    spec["enableServiceLinks"] = false.into();
    let mut read = manifest::parse(&manifest.to_string());
    let (_, pod) = read.pop().context("no pod")?;
    let (pod, _) = pod.with_context(|| format!("{name}: {manifest}"))?;
    let requests = limits::pod_requests(&pod);
    let resources = pod.containers.iter().map(|container| &container.resources);
    let limits = resources
        .chain(&pod.pod_resources)
        .filter_map(|resources| resources.cpu_limit);
    Ok(Shape {
        name: name.to_owned(),
        manifest,
        fate,
        then: Then::Nothing,
        from: From::Server,
        cpu: requests.cpu,
        memory: requests.memory,
        cpu_limit: limits.min(),
    })
}

pub(super) fn container(name: &str, command: &Value, resources: &Value) -> Value {
    json!({"name": name, "image": BUSYBOX, "command": command, "resources": resources})
}

/// One container.
pub(super) fn one(name: &str, resources: &Value) -> Result<Shape> {
    let spec = json!({"containers": [container("main", &stays(), resources)]});
    shape(name, json!({"spec": spec}), Fate::Runs)
}

/// The same, which does not stay.
pub(super) fn brief(name: &str, command: &[&str], restart: &str, fate: Fate) -> Result<Shape> {
    let resources = json!({"requests": {"cpu": "20m", "memory": "8Mi"}});
    let main = container("main", &json!(command), &resources);
    let spec = json!({"containers": [main], "restartPolicy": restart});
    shape(name, json!({"spec": spec}), fate)
}

/// Pod-level resources, and those of two containers.
pub(super) fn pod_level(name: &str, own: &Value, containers: [&Value; 2]) -> Result<Shape> {
    let names = ["first", "second"].into_iter().zip(containers);
    let containers: Vec<_> = names
        .map(|(name, resources)| container(name, &stays(), resources))
        .collect();
    let spec = json!({"resources": own, "containers": containers});
    shape(name, json!({"spec": spec}), Fate::Runs)
}

/// Pods with limits of their own, for CPU and memory and for memory alone; one container has none.
pub(super) fn with_own_limits() -> Result<[Shape; 2]> {
    let (none, small) = (json!({}), json!({"requests": amounts("5m", "4Mi")}));
    let memory = json!({"limits": {"memory": "64Mi"}});
    Ok([
        pod_level(
            "pod-guaranteed-limits",
            &guaranteed("60m", "80Mi"),
            [&limited(), &none],
        )?,
        pod_level("pod-limits", &memory, [&small, &none])?,
    ])
}

/// A container's resources with limits above its requests.
pub(super) fn limited() -> Value {
    json!({"requests": amounts("5m", "4Mi"), "limits": amounts("50m", "40Mi")})
}

pub(super) fn amounts(cpu: &str, memory: &str) -> Value {
    json!({"cpu": cpu, "memory": memory})
}

pub(super) fn guaranteed(cpu: &str, memory: &str) -> Value {
    json!({"limits": amounts(cpu, memory)})
}
