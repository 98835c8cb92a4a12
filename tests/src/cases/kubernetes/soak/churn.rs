//! Pods of all kinds that come, change and go.

use std::collections::{BTreeMap, VecDeque};

use anyhow::{Context as _, Result, ensure};
use podwarden_policy::{Bytes, MilliCpu, QosClass};
use serde_json::{Value, json};

use crate::cases::kubernetes::LIMIT;
use crate::cases::kubernetes::shapes::{self, Fate, Shape, amounts, brief, guaranteed, one};
use crate::harness::{RandomPods, eventually};
use crate::kubernetes::{Cluster, PODS};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
/// Something comes in one of so many steps.
const SELDOM: u8 = 6;
/// So many are there at once, at most.
const OBJECTS: usize = 14;
/// What they may request together: this node has 2 CPUs and 1 GiB for pods.
const CPU: MilliCpu = MilliCpu(1700);
const MEMORY: Bytes = Bytes::mebi(700);
const REPLICAS: u64 = 3;
const COMPLETIONS: u64 = 4;
/// Answers to a change of what may have gone meanwhile, or changes itself.
const PASSED_BY: [u16; 4] = [200, 404, 409, 422];

/// See the module.
pub(super) struct Churn<'a> {
    cluster: &'a Cluster,
    pods: RandomPods,
    objects: VecDeque<Object>,
    number: usize,
    made: BTreeMap<&'static str, usize>,
}

/// What is made at once and removed at once.
struct Object {
    name: String,
    kind: Kind,
    cpu: MilliCpu,
    memory: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A pod of any shape, of one container or several, with init containers, sidecars or resources of its own.
    Plain,
    /// One whose requests and limits change.
    Resized,
    /// One whose probes fail.
    Probed,
    Deployment,
    Job,
    Static,
}

impl<'a> Churn<'a> {
    pub(super) fn new(cluster: &'a Cluster, seed: u64) -> Self {
        Self {
            cluster,
            pods: RandomPods::new(seed, Vec::new()),
            objects: VecDeque::new(),
            number: 0,
            made: BTreeMap::new(),
        }
    }

    /// How many of each were made.
    pub(super) fn made(&self) -> impl Iterator<Item = (&'static str, usize)> {
        self.made.iter().map(|(name, count)| (*name, *count))
    }

    /// One thing comes, where there is no room another goes; without an API server those of the kubelet's directory.
    pub(super) fn step(&mut self, random: &mut fastrand::Rng, server: bool) -> Result<()> {
        if random.u8(0..SELDOM) > 0 {
            return Ok(());
        }
        if !server {
            return match random.u8(0..4) {
                0 => self.make(Kind::Static, random),
                _ => Ok(()),
            };
        }
        let kind = match random.u8(0..20) {
            0..=7 => Kind::Plain,
            8..=10 => Kind::Resized,
            11 | 12 => Kind::Probed,
            13..=15 => Kind::Deployment,
            16 | 17 => Kind::Job,
            _ => Kind::Static,
        };
        self.change(random)?;
        self.make(kind, random)
    }

    fn make(&mut self, kind: Kind, random: &mut fastrand::Rng) -> Result<()> {
        let shape = self.shape(kind, random)?;
        let times = match kind {
            Kind::Deployment => REPLICAS,
            // Two at a time.
            Kind::Job => 2,
            _ => 1,
        };
        let object = Object {
            name: shape.name.clone(),
            kind,
            cpu: MilliCpu(shape.cpu.0 * times),
            memory: Bytes(shape.memory.0 * times),
        };
        if kind == Kind::Static {
            let file = &shape.manifest;
            self.cluster.write_static(&shape.name, file)?;
        } else {
            self.make_room(&object)?;
            self.post(kind, &shape)?;
        }
        self.count(match kind {
            Kind::Plain => "made_plain",
            Kind::Resized => "made_resized",
            Kind::Probed => "made_probed",
            Kind::Deployment => "made_deployment",
            Kind::Job => "made_job",
            Kind::Static => "made_static",
        });
        let own = ["resources", "initContainers"].map(|key| !shape.manifest["spec"][key].is_null());
        for (has, name) in own
            .into_iter()
            .zip(["with_pod_level", "with_init_containers"])
        {
            if has {
                self.count(name);
            }
        }
        self.objects.push_back(object);
        self.keep_statics_few()
    }

    fn count(&mut self, name: &'static str) {
        *self.made.entry(name).or_default() += 1;
    }

    fn shape(&mut self, kind: Kind, random: &mut fastrand::Rng) -> Result<Shape> {
        self.number += 1;
        let number = self.number;
        let small = json!({"requests": amounts("10m", "8Mi"), "limits": amounts("60m", "48Mi")});
        Ok(match kind {
            Kind::Plain if random.bool() => {
                let class = *random.choice(&QosClass::ALL).context("no class")?;
                shapes::random(&mut self.pods, class)?
            }
            Kind::Plain | Kind::Deployment | Kind::Static => {
                let resources = [
                    json!({}),
                    json!({"requests": amounts("7m", "6Mi")}),
                    small,
                    guaranteed("15m", "36Mi"),
                ];
                let resources = random.choice(&resources).context("no resources")?;
                let kind = format!("{kind:?}").to_lowercase();
                one(&format!("{kind}-{number}"), resources)?
            }
            Kind::Resized => one(&format!("resized-{number}"), &small)?,
            Kind::Probed => probed(&format!("probed-{number}"), &small, random)?,
            Kind::Job => {
                let brief_one = ["/bin/sleep", "1"];
                brief(&format!("job-{number}"), &brief_one, "Never", Fate::Ends)?
            }
        })
    }

    fn post(&self, kind: Kind, shape: &Shape) -> Result<()> {
        let spec = &shape.manifest["spec"];
        let name = &shape.name;
        let (path, object) = match kind {
            Kind::Deployment => {
                let labels = json!({"app": name});
                let spec = json!({
                    "replicas": REPLICAS,
                    "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": spec},
                });
                let meta = json!({"name": name});
                let object = json!({
                    "apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec,
                });
                (DEPLOYMENTS, object)
            }
            Kind::Job => {
                let spec = json!({
                    "completions": COMPLETIONS,
                    "parallelism": 2,
                    "template": {"spec": spec},
                });
                let meta = json!({"name": name});
                let object = json!({
                    "apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec,
                });
                (JOBS, object)
            }
            _ => (PODS, shape.manifest.clone()),
        };
        // A server that has just been started does not admit pods at once.
        eventually(LIMIT, || {
            let api = &self.cluster.api;
            let (code, said) = api.answer("POST", path, "application/json", &object)?;
            ensure!(code == 201 || code == 409, "{name}: {code}: {said:?}");
            Ok(())
        })
    }

    fn make_room(&mut self, next: &Object) -> Result<()> {
        loop {
            let cpu: u64 = self.objects.iter().map(|one| one.cpu.0).sum();
            let memory: u64 = self.objects.iter().map(|one| one.memory.0).sum();
            let fits = self.objects.len() < OBJECTS
                && cpu + next.cpu.0 <= CPU.0
                && memory + next.memory.0 <= MEMORY.0;
            match self.objects.pop_front() {
                Some(oldest) if !fits => self.remove(&oldest)?,
                Some(oldest) => {
                    self.objects.push_front(oldest);
                    return Ok(());
                }
                None => return Ok(()),
            }
        }
    }

    /// Without an API server nothing else makes room.
    fn keep_statics_few(&mut self) -> Result<()> {
        let statics = self.objects.iter().filter(|one| one.kind == Kind::Static);
        if statics.count() > 3 {
            let oldest = self.objects.iter().position(|one| one.kind == Kind::Static);
            if let Some(object) = oldest.and_then(|at| self.objects.remove(at)) {
                self.remove(&object)?;
            }
        }
        Ok(())
    }

    fn remove(&self, object: &Object) -> Result<()> {
        let name = &object.name;
        let path = match object.kind {
            Kind::Static => return self.cluster.end_static(name),
            Kind::Deployment => format!("{DEPLOYMENTS}/{name}?propagationPolicy=Background"),
            Kind::Job => format!("{JOBS}/{name}?propagationPolicy=Background"),
            _ => format!("{PODS}/{name}"),
        };
        eventually(LIMIT, || self.cluster.api.delete(&path))
    }

    /// One pod is resized, or the template of a Deployment changes.
    fn change(&mut self, random: &mut fastrand::Rng) -> Result<()> {
        if self.objects.is_empty() {
            return Ok(());
        }
        let object = &self.objects[random.usize(..self.objects.len())];
        let name = &object.name;
        let kind = "application/strategic-merge-patch+json";
        let (path, body, what) = match object.kind {
            Kind::Resized => {
                let (cpu, memory) = (random.u64(5..40), random.u64(4..24));
                let more = (cpu + random.u64(10..60), memory + random.u64(36..48));
                let amounts = |(cpu, memory)| json!({"cpu": format!("{cpu}m"), "memory": format!("{memory}Mi")});
                let resources =
                    json!({"requests": amounts((cpu, memory)), "limits": amounts(more)});
                let spec = json!({"containers": [{"name": "main", "resources": resources}]});
                let path = format!("{PODS}/{name}/resize");
                (path, json!({"spec": spec}), "resizes")
            }
            Kind::Deployment => {
                let template =
                    json!({"metadata": {"annotations": {"update": random.u32(..).to_string()}}});
                let path = format!("{DEPLOYMENTS}/{name}");
                (path, json!({"spec": {"template": template}}), "updates")
            }
            _ => return Ok(()),
        };
        let (code, said) = self.cluster.api.answer("PATCH", &path, kind, &body)?;
        ensure!(PASSED_BY.contains(&code), "{name}: {code}: {said:?}");
        if code == 200 {
            self.count(what);
        }
        Ok(())
    }

    /// All of it goes.
    pub(super) fn clear(&mut self) -> Result<()> {
        let objects = std::mem::take(&mut self.objects);
        objects.iter().try_for_each(|object| self.remove(object))
    }
}

/// A pod with one probe that fails.
fn probed(name: &str, resources: &Value, random: &mut fastrand::Rng) -> Result<Shape> {
    let mut shape = one(name, resources)?;
    let probes = ["livenessProbe", "readinessProbe", "startupProbe"];
    let probe = *random.choice(&probes).context("no probe")?;
    shape.manifest["spec"]["containers"][0][probe] = json!({
        "exec": {"command": ["/bin/sh", "-c", "exit 1"]},
        "periodSeconds": 2,
        "failureThreshold": 2,
    });
    Ok(shape)
}
